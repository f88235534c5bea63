"""The memory store under test."""

from __future__ import annotations

from typing import cast

from adapters.memory import ManualClock, Memory, MemoryStore
from adapters.memory.shard import Shard
from bridge.core.ports import Store
from bridge.parking.identity import shard_of
from tests.conformance.rig import DRAIN_MS, LEASE_MS, SHARDS, Rig


class MemoryRig(Rig):
    """Its time passes by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.memory = Memory(SHARDS, self.clock)

    async def open(self, instance: str = "a") -> Store:
        return MemoryStore(self.memory, instance)

    async def now_ms(self) -> int:
        return self.memory.now_ms()

    async def after_ms(self, ms: int) -> None:
        self.clock.advance(ms)

    async def after_leases(self) -> None:
        self.clock.advance(max(LEASE_MS, DRAIN_MS) + 1)

    async def stretch(self, ms: int) -> None:
        self.clock.step(-ms)

    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        if envelope is None:
            del self._shard(message_id).messages[message_id]
        else:
            self._shard(message_id).messages[message_id] = envelope

    async def envelope(self, message_id: bytes) -> bytes | None:
        return self._shard(message_id).messages.get(message_id)

    async def word(self, message_id: bytes) -> str:
        return self._shard(message_id).word(message_id)

    async def reasons(self, shard: int = 0) -> dict[bytes, str]:
        return self.memory.shards[shard].why

    async def index_fields(self, shard: int = 0) -> set[bytes]:
        return self.memory.shards[shard].keys.fields()

    async def counts(self, shard: int = 0) -> dict[str, int]:
        return self.memory.shards[shard].counts

    async def retry(self, store: Store, message_id: bytes) -> bool:
        return await cast(MemoryStore, store).retry([message_id]) == 1

    async def reschedule(self, store: Store, message_id: bytes, due_ms: int) -> str:
        return (await cast(MemoryStore, store).reschedule([message_id], due_ms))[message_id]

    def lose_reply(self, store: Store) -> None:
        cast(MemoryStore, store).lose_reply()

    def _shard(self, message_id: bytes) -> Shard:
        return self.memory.shards[shard_of(message_id)]
