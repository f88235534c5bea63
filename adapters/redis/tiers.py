"""The cold tier of a store on Redis: messages go to the journal alone, and come back."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from bridge.core.journal import FarPage, TierMoved
from bridge.core.ports import Parked

#: Bytes of envelopes that Redis reads in one step for ``far``.
_FAR_BYTES = 1024 * 1024
_COLD = b"\0cold\0"


class RedisTiers:
    """``bridge.core.journal.Tiers`` on Redis."""

    def __init__(self, client: Client, keys: StoreKeys) -> None:
        self._client: Any = client
        self._runner = Runner(client)
        self._keys = keys.shards

    async def marks(self, shards: Iterable[int]) -> dict[int, bytes]:
        wanted = list(shards)
        with store_errors():
            found = await asyncio.gather(*(self._client.get(self._keys[shard].cold) for shard in wanted))
        return {shard: mark or b"" for shard, mark in zip(wanted, found, strict=True)}

    async def begin(self, shard: int, counts: Mapping[str, int], mark: bytes = b"") -> None:
        args = [mark, mark or secrets.token_bytes(8), *(part for route in counts.items() for part in route)]
        await self._runner.run(self._keys[shard].call("begin", args))

    async def far(self, shard: int, from_ms: int, skip: int, limit: int) -> FarPage:
        found = await self._runner.run(self._keys[shard].call("far", (from_ms, skip, limit, _FAR_BYTES)))
        rows = list(zip(found[::2], found[1::2], strict=True))
        return FarPage([row for row in rows if row[1] >= 0], [message_id for message_id, due_ms in rows if due_ms < 0])

    async def unload(self, shard: int, messages: Sequence[tuple[bytes, int]]) -> int:
        args = [secrets.token_bytes(8), *(part for message in messages for part in message)]
        return int(await self._runner.run(self._keys[shard].call("unload", args)))

    async def load(
        self, shard: int, mark: bytes, messages: Sequence[tuple[bytes, int, bytes]], known: Sequence[bytes]
    ) -> bool:
        keys = self._keys[shard]
        args = [mark, secrets.token_bytes(8), keys.wake, len(known), *known]
        args += [part for message in messages for part in message]
        return bool(await self._runner.run(keys.call("load", args)))

    async def cold(self) -> dict[int, dict[str, int]]:
        with store_errors():
            found = await asyncio.gather(*(self._client.hgetall(keys.counts) for keys in self._keys))
        return dict(enumerate(map(cold_in, found)))


def parked_in(reply: Any) -> Parked | TierMoved:
    """Return what the script park answered. Pure."""
    if reply == 0:
        return TierMoved("a message changed its tier meanwhile")
    return Parked((), ()) if reply == 1 else Parked(*map(tuple, reply))


def cold_in(counts: Mapping[bytes, Any]) -> dict[str, int]:
    """Return the number of cold messages by route, from the counts of a shard. Pure."""
    cold = (name for name in counts if name.startswith(_COLD))
    return {name.removeprefix(_COLD).decode(): int(counts[name]) for name in cold}
