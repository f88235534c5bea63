"""Judges a store without changing it: for ``postdate check``."""

from __future__ import annotations

from typing import Any

from adapters.redis.connect import close, connect
from adapters.redis.durability import ask, judge
from adapters.redis.errors import store_errors
from adapters.redis.guard import judge_agreement, loss_in, many_dead, memory_of, nearly_full, read_agreement
from adapters.redis.keys import StoreKeys
from bridge.settings import Redis


async def inspect(settings: Redis) -> tuple[list[str], int]:
    """Return warnings, and the number of running instances.

    Raises ``StoreUnavailable``, and ``StoreUnfit`` for a store that can lose messages.
    """
    client: Any = connect(settings)
    try:
        servers = await ask(client)
        verdicts = [judge(server, settings.durability, settings.replicas, settings.timeout) for server in servers]
        made = await read_agreement(client, settings.key_prefix)
        judge_agreement(made, settings.shards)
        keys = StoreKeys(settings.key_prefix, settings.shards, "")
        with store_errors():
            seconds, _ = await client.time()
            now_ms = int(seconds) * 1000
            instances = int(await client.zcount(keys.instances, now_ms, "+inf"))
            dead = sum([await client.zcard(shard.dead) for shard in keys.shards])
            room = nearly_full(await memory_of(client))
        warnings = [warning for verdict in verdicts for warning in verdict.warnings]
        return [one for one in (*warnings, loss_in(made, now_ms), room, many_dead(dead)) if one], instances
    finally:
        await close(client)
