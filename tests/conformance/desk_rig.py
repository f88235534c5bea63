"""What the desk suite needs of a store with an admin desk: to fill it, to let time pass, to change it by hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from adapters.memory import ManualClock, Memory, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.store import HISTORY_LIMITS
from adapters.redis.connect import close, connect
from adapters.redis.desk import RedisDesk
from adapters.redis.keys import ShardKeys, StoreKeys
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.message import Claim
from bridge.core.ports import Piece, Store
from bridge.core.state import State
from bridge.desk.past import PastCursor, PastFilter
from bridge.desk.protocol import Desk, Desks
from bridge.desk.rows import Filter, Row
from bridge.operate.send import Message, send
from bridge.parking.history import HistoryRow, PastState
from bridge.parking.identity import Ids, shard_of
from bridge.settings import Redis as RedisSettings
from tests.conformance.rig import HOUR_MS, SHARDS
from tests.entries import pack_entry

ALL = Filter()


class Feature(Enum):
    """What a desk may offer beyond the protocol. The suite skips a test whose feature the rig does not declare."""

    SERVER_MEMORY = "stats tell the memory of the servers and the size of a message"


def _delivered(message_id: bytes, moments: Sequence[int]) -> HistoryRow:
    received_ms, due_ms, claimed_ms, published_ms, ended_ms = moments
    return HistoryRow(
        message_id,
        "orders",
        b"k",
        PastState.DELIVERED,
        received_ms,
        due_ms,
        claimed_ms,
        published_ms,
        ended_ms,
        0,
        7,
        "",
    )


class DeskRig(ABC):
    """A store, and a desk on it."""

    features: frozenset[Feature] = frozenset()

    def __init__(self, store: Store, desk: Desk) -> None:
        self.store = store
        self.desk = desk
        self.ids = Ids("tester")

    @abstractmethod
    async def pass_by(self, moment_ms: int) -> None:
        """Let time pass until the store's clock is beyond a moment that is about now."""

    @abstractmethod
    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        """Change or delete an envelope by hand."""

    @abstractmethod
    async def silence(self) -> None:
        """Let the membership of every instance expire."""

    @abstractmethod
    async def beside(self, instance: str) -> Store:
        """Return the store as another instance has it."""

    async def park(self, due_in_ms: int = HOUR_MS, order_key: bytes = b"k", key: bytes = b"", **more: Any) -> bytes:
        """Park a message with ``send``. Return its id."""
        message = Message(
            route="orders",
            order="key",
            on_same_key="replace",
            order_key=order_key,
            payload=b"\1k" + b"p" * 10,
            due_ms=self.store.clock.now_ms() + due_in_ms,
            key=key,
        )
        return await send(self.store, self.ids, replace(message, **more))

    async def park_many(self, dues_ms: Sequence[int]) -> list[bytes]:
        """Park messages in all shards. Return their ids."""
        return [await self.park(due_ms, str(place).encode()) for place, due_ms in enumerate(dues_ms)]

    async def claim(self) -> list[Claim]:
        """Claim every message that is due now."""
        await self.pass_by(self.store.clock.now_ms())
        claimed = await self.store.claim(range(SHARDS), 1000, 2**30, 60_000, 60_000)
        return [claim for answer in claimed.values() for claim in answer.claims]  # type: ignore[union-attr]

    async def bury(self, reason: str, **more: Any) -> bytes:
        """Park a message and make it a dead letter. Return its id."""
        message_id = await self.park(0, **more)
        (claim,) = [claim for claim in await self.claim() if claim.id == message_id]
        await self.store.bury([(claim, reason)])
        return message_id

    async def deliver(self, *ended_ms: int, **more: Any) -> list[bytes]:
        """Record deliveries that ended at these moments (ms from now). Return their ids."""
        now_ms = self.store.clock.now_ms()
        found: dict[int, list[HistoryRow]] = {}
        for place, ended in enumerate(ended_ms):
            message_id = self.ids.next(now_ms + ended - 50, place % SHARDS)
            row = _delivered(message_id, [now_ms + ended - before for before in (50, 10, 8, 5, 0)])
            found.setdefault(place % SHARDS, []).append(replace(row, **more))
        pieces = {shard: [Piece(len(rows), b"".join(map(pack_entry, rows)))] for shard, rows in found.items()}
        await self.store.record(pieces, HISTORY_LIMITS.most)
        return [row.id for rows in found.values() for row in rows]

    def piece(self, message_id: bytes) -> Piece:
        """Return a delivery that ended now."""
        now_ms = self.store.clock.now_ms()
        return Piece(1, pack_entry(_delivered(message_id, [now_ms] * 5)))

    async def past(self, most: int = 10**6, after: PastCursor | None = None, **wanted: Any) -> list[HistoryRow]:
        """Return at most ``most`` entries of the history, newest first."""
        rows: list[HistoryRow] = []
        async for row in self.desk.history(PastFilter(**wanted), after):
            if len(rows) == most:
                break
            rows.append(row)
        return rows

    async def states(self, *ids: bytes) -> list[str]:
        """Return the state of each message, or "none"."""
        found = {row.id: row.state.value for row in await self.desk.look(ids, 0)}
        return [found.get(message_id, "none") for message_id in ids]

    async def listed(self, state: State, wanted: Filter = ALL, most: int = 10**6) -> list[Row]:
        """Return at most ``most`` rows of a list."""
        rows: list[Row] = []
        async for row in self.desk.rows(state, wanted):
            if len(rows) == most:
                break
            rows.append(row)
        return rows


class MemoryDeskRig(DeskRig):
    """The desk of a memory store, whose clock moves by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = Memory(SHARDS, self.clock)
        store = MemoryStore(self.memory, "tester")
        super().__init__(store, MemoryDesk(store))

    async def pass_by(self, moment_ms: int) -> None:
        self.clock.advance(max(0, moment_ms + 1 - self.memory.now_ms()))

    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        messages = self.memory.shards[shard_of(message_id)].messages
        if envelope is None:
            del messages[message_id]
        else:
            messages[message_id] = envelope

    async def silence(self) -> None:
        self.clock.advance(HOUR_MS)

    async def beside(self, instance: str) -> Store:
        return MemoryStore(self.memory, instance)


class JoinedDeskRig(MemoryDeskRig):
    """Desks of two stores behind one. All messages are in the second one."""

    def __init__(self) -> None:
        super().__init__()
        empty = MemoryDesk(MemoryStore(Memory(SHARDS, self.clock), "other"))
        self.desk = Desks([empty, self.desk])


class RedisDeskRig(DeskRig):
    """The desk of a store on a real server or cluster, under one key prefix."""

    features = frozenset(Feature)

    def __init__(self, url: str, prefix: str) -> None:
        self.prefix = prefix
        self.client: Any = connect(RedisSettings.model_validate({"url": url}))
        self.redis_store = RedisStore(self.client, prefix, SHARDS, "tester", StoreClock(), HISTORY_LIMITS)
        self.redis_desk = RedisDesk(self.client, prefix, SHARDS, self.redis_store, limits=HISTORY_LIMITS)
        self.keys = StoreKeys(prefix, SHARDS, "tester")
        super().__init__(self.redis_store, self.redis_desk)

    async def open(self) -> None:
        await self.redis_store.open("none", 1, 5000)

    async def close(self) -> None:
        await close(self.client)

    async def beside(self, instance: str) -> Store:
        return RedisStore(self.client, self.prefix, SHARDS, instance, StoreClock(), HISTORY_LIMITS)

    async def pass_by(self, moment_ms: int) -> None:
        while await self.desk.now_ms() <= moment_ms:
            pass

    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        if envelope is None:
            await self.client.hdel(self.keys_of(message_id).messages, message_id)
        else:
            await self.client.hset(self.keys_of(message_id).messages, message_id, envelope)

    async def silence(self) -> None:
        for name in await self.client.zrange(self.keys.instances, 0, -1):
            await self.client.zadd(self.keys.instances, {name: 1})

    def keys_of(self, message_id: bytes) -> ShardKeys:
        """Return the keys of a message's shard."""
        return self.keys.shards[shard_of(message_id)]
