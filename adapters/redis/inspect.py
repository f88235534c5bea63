"""Judges a store without changing anything in it: for ``postdate check``."""

from __future__ import annotations

from typing import Any

from adapters.redis.agreement import judge_agreement, loss_in, read_agreement
from adapters.redis.connect import close, connect, store_errors
from adapters.redis.durability import ask, judge
from adapters.redis.keys import StoreKeys
from adapters.redis.room import dead_letters, memory_of, nearly_full
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
        made = await read_agreement(client, settings.key_prefix)
        judge_agreement(made, settings.shards)
        instances, now_ms = await _instances(client, settings.key_prefix)
        words += [loss_in(made, now_ms), *await _room(client, settings)]
        return [word for word in words if word], instances
    finally:
        await close(client)


async def _room(client: Any, settings: Redis) -> list[str]:
    shards = StoreKeys(settings.key_prefix, settings.shards, "").shards
    with store_errors():
        dead = sum([await client.zcard(keys.dead) for keys in shards])
        return [nearly_full(await memory_of(client)), dead_letters(dead)]


async def _instances(client: Any, prefix: str) -> tuple[int, int]:
    """How many there are, and the store's clock (Unix ms)."""
    with store_errors():
        seconds, _ = await client.time()
        now_ms = int(seconds) * 1000
        return int(await client.zcount(StoreKeys(prefix, 0, "").instances, now_ms, "+inf")), now_ms
