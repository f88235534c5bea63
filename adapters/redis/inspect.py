"""Judges a store without changing anything in it: for ``postdate check``."""

from __future__ import annotations

from typing import Any

from adapters.redis.agreement import judge_agreement, read_agreement
from adapters.redis.connect import close, connect, store_errors
from adapters.redis.durability import ask, judge
from adapters.redis.keys import StoreKeys
from bridge.settings import Redis


async def inspect(settings: Redis) -> tuple[list[str], int]:
    """Warnings, a sentence each, and how many instances of postdate are there now.

    Raises ``StoreUnavailable``, and ``StoreUnfit`` for a store under which messages can be lost.
    """
    client = connect(settings)
    try:
        servers = await ask(client)
        words = [
            word
            for server in servers
            for word in judge(server, settings.durability, settings.replicas, settings.timeout).words
        ]
        judge_agreement(await read_agreement(client, settings.key_prefix), settings.shards)
        return words, await _instances(client, settings.key_prefix)
    finally:
        await close(client)


async def _instances(client: Any, prefix: str) -> int:
    with store_errors():
        seconds, _ = await client.time()
        return int(await client.zcount(StoreKeys(prefix, 0, "").instances, int(seconds) * 1000, "+inf"))
