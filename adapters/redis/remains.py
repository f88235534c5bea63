"""Counts what is in a store that no route uses any more: two questions, and nothing is written."""

from __future__ import annotations

from typing import Any

from adapters.redis.connect import close, connect
from adapters.redis.errors import store_errors
from adapters.redis.guard import judge_agreement, read_agreement
from adapters.redis.keys import StoreKeys
from bridge.admin.leftovers import Remains
from bridge.settings import Redis


async def remains(settings: Redis) -> Remains:
    """What is parked or claimed, and what is dead.

    Raises ``StoreUnavailable``, and ``StoreUnfit`` for a store whose shards are not those of the settings.
    """
    client = connect(settings)
    try:
        return await count(client, settings)
    finally:
        await close(client)


async def count(client: Any, settings: Redis) -> Remains:
    """The same by a client that there is already."""
    made = await read_agreement(client, settings.key_prefix)
    if not made:
        return Remains(0, 0)
    judge_agreement(made, settings.shards)
    with store_errors():
        counts = client.pipeline(transaction=False)
        for keys in StoreKeys(settings.key_prefix, settings.shards, "").shards:
            counts.zcard(keys.due).zcard(keys.claimed).zcard(keys.dead)
        counted = await counts.execute()
    return Remains(sum(counted[0::3]) + sum(counted[1::3]), sum(counted[2::3]))
