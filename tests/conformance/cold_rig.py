"""Desks on both tiers: whatever is parked for later goes to the journal alone, at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from adapters.memory import Memory, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from adapters.memory.store import HISTORY_LIMITS
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import JournalEntry, Written
from bridge.core.ports import Batch, Found, Parked
from bridge.desk.past import PastCursor, PastFilter
from bridge.desk.protocol import Desk, Desks
from bridge.operate.journaled_desk import JournaledDesk
from bridge.parking.history import HistoryRow
from bridge.pipeline.tiers import Loader, TieredStore
from tests.api import MemoryStores
from tests.conformance.desk_rig import Feature, MemoryDeskRig, RedisDeskRig
from tests.conformance.rig import SHARDS

FAR_MS = 1000


class Cold:
    """A store that keeps nothing that is due later. It comes before the class of the store."""

    def cool(self, inner: Any, tiers: Any, moves: Any, journal: MemoryJournal) -> None:
        """``inner`` is the store as it is."""
        self._cold_tier, self._moves, self._journal = tiers, moves, journal
        self.loader = Loader(journal, moves, tiers, inner.shards)
        self._tiered = TieredStore(inner, self.loader)

    async def park(self, batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        replies = await self._tiered.park(batches)
        await self.loader.begin()
        await self._moves.read(range(self._tiered.shards), 1)
        for shard, batch in batches.items():
            far = [row for row in batch.messages if row[1] > self._tiered.clock.now_ms() + FAR_MS]
            known = await self._moves.known([row[0] for row in far])
            await self._journal.write([JournalEntry(*row) for row in far if row[0] in known])
            cold = await self._journal.shift(list(known), Written.WAITING, Written.COLD)
            assert await self._cold_tier.unload(shard, [row[:2] for row in far if row[0] in cold]) == len(cold)
        return replies

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, Found]:
        return await self._tiered.find(fields)

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        return await self._tiered.parked(ids)

    async def cancel(
        self, ids: Sequence[bytes], dead_too: bool, replaced: bool = False, reason: str = ""
    ) -> dict[bytes, str]:
        return await self._tiered.cancel(ids, dead_too, replaced, reason)


class ColdStore(Cold, MemoryStore):
    """In memory."""

    def __init__(self, memory: Memory, instance: str, journal: MemoryJournal) -> None:
        super().__init__(memory, instance)
        inner = MemoryStore(memory, instance)
        self.cool(inner, inner, inner, journal)


class ColdRedisStore(Cold, RedisStore):
    """On Redis."""


class ColdDesk(JournaledDesk):
    """With the history of the store alone, as the suite wants it."""

    def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        return Desks.history(self, wanted, after)


class ColdDeskRig(MemoryDeskRig):
    """The desk of a memory store with a cold tier."""

    def __init__(self) -> None:
        super().__init__()
        journal = MemoryJournal()
        self.store: ColdStore = ColdStore(self.memory, "tester", journal)
        self.desk = ColdDesk(MemoryDesk(MemoryStore(self.memory, "tester")), journal, "rabbitmq", self.store.loader)

    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        await self.store.loader.ids([message_id])
        await self.store.loader.settle([message_id])
        await super().tamper(message_id, envelope)


class ColdRedisDeskRig(RedisDeskRig):
    """The desk of a store on Redis with a cold tier."""

    #: Redis has no message whose size it could tell.
    features: frozenset[Feature] = frozenset()

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        journal, inner = MemoryJournal(), self.redis_store
        self.store: ColdRedisStore = ColdRedisStore(self.client, prefix, SHARDS, "tester", StoreClock(), HISTORY_LIMITS)
        self.store.cool(inner, inner.tiers, inner.moves, journal)
        self.desk = ColdDesk(self.redis_desk, journal, "rabbitmq", self.store.loader)

    async def open(self) -> None:
        await super().open()
        await self.store.open("none", 1, 5000)

    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        await self.store.loader.ids([message_id])
        await self.store.loader.settle([message_id])
        await super().tamper(message_id, envelope)


class ColdStores(MemoryStores):
    """A memory store with a cold tier behind an app."""

    def __init__(self) -> None:
        super().__init__()
        journal = self.spare
        self.store: ColdStore = ColdStore(self.memory, "memory", journal)
        self.kept: Desk = ColdDesk(self.kept, journal, "rabbitmq", self.store.loader)
