"""A real Redis or Valkey under test. Its clock cannot be moved, so the moments are moved instead."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from adapters.memory.store import HISTORY_LIMITS
from adapters.redis.connect import close, connect
from adapters.redis.keys import ShardKeys, StoreKeys
from adapters.redis.scripts import Call, Wait
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Store
from bridge.parking.identity import ID_BYTES, shard_of
from bridge.settings import Redis as RedisSettings
from tests.conformance.rig import SHARDS, Rig

#: A script, because it must work on a server that is full.
_MOVE = """#!lua flags=allow-oom
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], ARGV[1], member) end
"""
#: The same for the leases of claims (lua/include/claims.lua): to one moment, or by some time.
_MOVE_LEASES = """#!lua flags=allow-oom
local claims = redis.call('HGETALL', KEYS[1])
for at = 1, #claims, 2 do
  local lease = ARGV[1] ~= '' and ARGV[1] or struct.unpack('>I8', claims[at + 1]) + ARGV[2]
  redis.call('HSET', KEYS[1], claims[at], struct.pack('>I8', lease) .. string.sub(claims[at + 1], 9))
end
"""
_STRETCH = """#!lua
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZINCRBY', KEYS[1], ARGV[1], member) end
"""


def claimed_ids(claims: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the claim token of each claimed message."""
    return {
        record[at : at + ID_BYTES]: field[:8]
        for field, record in claims.items()
        for at in range(8, len(record), ID_BYTES)
    }


class RedisRig(Rig):
    """One server, group or cluster, seen through one key prefix."""

    def __init__(self, url: str, prefix: str, durability: str = "everysec", timeout_ms: int = 5000) -> None:
        super().__init__()
        self.settings = RedisSettings.model_validate({"url": url, "timeout": f"{timeout_ms}ms"})
        self._prefix = prefix
        self._durability = durability
        self._keys = StoreKeys(prefix, SHARDS, "a")
        self.client: Any = connect(self.settings)
        self._stores: list[RedisStore] = []

    async def open(self, instance: str = "a", wait_ms: int = 2000) -> RedisStore:
        store = RedisStore(connect(self.settings), self._prefix, SHARDS, instance, StoreClock(), HISTORY_LIMITS)
        self._stores.append(store)
        await store.open(self._durability, 1, wait_ms)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await close(self.client)

    async def now_ms(self) -> int:
        # On a cluster each node has a clock; here they are one machine's.
        seconds, microseconds = await self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def after_ms(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def after_leases(self) -> None:
        past_ms = await self.now_ms() - 1
        for keys in self._keys.shards:
            await self.client.delete(keys.drain)
            await self.client.eval(_MOVE_LEASES, 1, keys.claims, past_ms, 0)
        await self._move(self._keys.instances, past_ms)

    async def stretch(self, ms: int) -> None:
        for keys in self._keys.shards:
            await self.client.eval(_MOVE_LEASES, 1, keys.claims, "", ms)
            left_ms = await self.client.pttl(keys.drain)
            if left_ms > 0:
                await self.client.pexpire(keys.drain, left_ms + ms)
        await self.client.eval(_STRETCH, 1, self._keys.instances, ms)

    async def _move(self, key: str, moment_ms: int) -> None:
        await self.client.eval(_MOVE, 1, key, moment_ms)

    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        key = self.keys_of(message_id).messages
        if envelope is None:
            await self.client.hdel(key, message_id)
        else:
            await self.client.hset(key, message_id, envelope)

    async def envelope(self, message_id: bytes) -> bytes | None:
        return cast("bytes | None", await self.client.hget(self.keys_of(message_id).messages, message_id))

    async def word(self, message_id: bytes) -> str:
        keys = self.keys_of(message_id)
        claimed = claimed_ids(await self.client.hgetall(keys.claims))
        words = {
            "parked": await self.client.zscore(keys.due, message_id) is not None,
            "dead": await self.client.zscore(keys.dead, message_id) is not None,
            "claimed": message_id in claimed,
        }
        found = [word for word, is_there in words.items() if is_there]
        assert len(found) <= 1, f"in two states at once: {found}"
        there = await self.envelope(message_id) is not None
        assert there == bool(found), f"an envelope: {there}, a state: {found}"
        return found[0] if found else "none"

    async def reasons(self, shard: int = 0) -> dict[bytes, str]:
        reasons = await self.client.hgetall(self._keys.shards[shard].why)
        return {message_id: reason.decode() for message_id, reason in reasons.items()}

    async def index_fields(self, shard: int = 0) -> set[bytes]:
        return set(await self.client.hkeys(self._keys.shards[shard].index))

    async def counts(self, shard: int = 0) -> dict[str, int]:
        counts = await self.client.hgetall(self._keys.shards[shard].counts)
        return {name.decode(): int(number) for name, number in counts.items() if name[:1] != b"\1"}

    async def retry(self, store: Store, message_id: bytes) -> bool:
        keys = self.keys_of(message_id)
        reply = await self._run(store, keys.call("retry", (keys.wake, message_id)))
        return bool(reply == [1])

    async def reschedule(self, store: Store, message_id: bytes, due_ms: int) -> str:
        keys = self.keys_of(message_id)
        [word] = await self._run(store, keys.call("reschedule", (keys.wake, due_ms, message_id)))
        return str(word.decode())

    async def _run(self, store: Store, call: Call) -> Any:
        return await cast(RedisStore, store)._runner.run(call)

    def lose_reply(self, store: Store) -> None:
        runner: Any = cast(RedisStore, store)._runner
        many = runner.many

        async def losing(calls: Sequence[Call], wait: Wait | None = None) -> list[Any]:
            del runner.many  # only once
            await many(calls, wait)
            return [StoreUnavailable("the reply was lost")] * len(calls)

        runner.many = losing

    def keys_of(self, message_id: bytes) -> ShardKeys:
        """The keys of the shard that an id names."""
        return self._keys.shards[shard_of(message_id)]
