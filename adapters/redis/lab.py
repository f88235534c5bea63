"""The store's keys of one run of demo, bench or compare: counts, messages, usage of the server, deletion."""

from __future__ import annotations

import asyncio
from typing import Any

from adapters.redis.connect import close, connect
from adapters.redis.errors import store_errors
from adapters.redis.keys import ShardKeys, StoreKeys
from adapters.redis.servers import observe, servers
from bridge.core.clock import StoreClock
from bridge.lab.ports import StoredMessage
from bridge.parking.envelope import unseal
from bridge.settings import Redis

_SCAN = 1000
#: Parts of INFO's used_memory that are released a moment later.
_PASSING = ("mem_clients_normal", "mem_aof_buffer")


class TrialStore:
    """The keys of one run. Every method raises ``StoreUnavailable``."""

    def __init__(self, settings: Redis, clock: StoreClock) -> None:
        self._client: Any = connect(settings)
        self._prefix = settings.key_prefix
        self._shards = StoreKeys(settings.key_prefix, settings.shards, "trial").shards
        self._clock = clock

    async def look_at_clock(self) -> None:
        """Observe the store's clock once."""
        await observe(self._client, self._clock)

    async def version(self) -> str:
        """Name and version of the server, such as "Redis 7.0.15"."""
        info = (await self._info())[0]
        return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"

    async def usage(self) -> tuple[float, int]:
        """Processor time (s) of the server and memory (bytes) for all its data, over all nodes of a cluster.

        Without connection buffers: they are as large as the last batch and released seconds later.
        """
        found = await self._info()
        cpu_s = sum(float(info[name]) for info in found for name in ("used_cpu_user", "used_cpu_sys"))
        return cpu_s, sum(int(info["used_memory"]) - sum(int(info.get(name, 0)) for name in _PASSING) for info in found)

    async def parked(self) -> int:
        with store_errors():
            return sum(await asyncio.gather(*(self._client.zcard(keys.due) for keys in self._shards)))

    async def drained(self) -> bool:
        """Whether an instance drains every shard."""
        with store_errors():
            return all(await asyncio.gather(*(self._client.exists(keys.drain) for keys in self._shards)))

    async def kept(self) -> list[StoredMessage]:
        """Every message in the store. For small numbers only."""
        with store_errors():
            return [message for found in await asyncio.gather(*map(self._kept_in, self._shards)) for message in found]

    async def remove(self) -> None:
        with store_errors():
            keys = [key async for key in self._client.scan_iter(match=f"{{{self._prefix}*", count=_SCAN)]
            for key in keys:
                await self._client.unlink(key)

    async def close(self) -> None:
        await close(self._client)

    async def _kept_in(self, keys: ShardKeys) -> list[StoredMessage]:
        # Messages first: one that is parked later is not seen yet, and one that is in no set has been claimed.
        messages = await self._client.hgetall(keys.messages)
        due = await self._client.zrange(keys.due, 0, -1, withscores=True)
        dead = await self._client.zrange(keys.dead, 0, -1)
        why = await self._client.hgetall(keys.why)
        parked = {message_id: int(score) for message_id, score in due}
        found = []
        for message_id, data in messages.items():
            envelope = unseal(data)
            state = "dead" if message_id in dead else "parked" if message_id in parked else "claimed"
            due_ms = parked.get(message_id, envelope.due_ms)
            found.append(
                StoredMessage(state, due_ms, why.get(message_id, b"").decode(errors="replace"), envelope.payload)
            )
        return found

    async def _info(self) -> list[dict[str, Any]]:
        """INFO of every server that holds data."""
        with store_errors():
            return [await self._client.info(**where) for where in (await servers(self._client)).values()]
