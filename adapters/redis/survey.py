"""Questions of operators about a store: can it be used, what does it still hold. Nothing is written."""

from __future__ import annotations

from collections import Counter
from typing import Any

from adapters.redis import guard
from adapters.redis.connect import close, connect
from adapters.redis.durability import ask, judge
from adapters.redis.errors import store_errors
from adapters.redis.instances import instances_of
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from adapters.redis.servers import time_us
from adapters.redis.steps import step_in
from bridge.desk.leftovers import Inspection, Remains
from bridge.settings import Redis


async def inspect(settings: Redis) -> Inspection:
    """Raises ``StoreUnavailable``, and ``StoreUnfit`` for a store that can lose messages."""
    client: Any = connect(settings)
    try:
        servers = await ask(client)
        verdicts = [judge(server, settings.durability, settings.replicas, settings.timeout) for server in servers]
        keys = StoreKeys(settings.key_prefix, settings.shards, "")
        made = await guard.read_agreement(client, keys.store)
        guard.judge_agreement(made, settings.shards)
        now_ms = await time_us(client) // 1000
        with store_errors():
            instances = len((await instances_of(client, keys, now_ms))[0])
            dead = sum([await client.zcard(shard.dead) for shard in keys.shards])
            room = guard.nearly_full(await guard.memory_of(client))
        warnings = [warning for verdict in verdicts for warning in verdict.warnings]
        loss = guard.loss_in(made, now_ms, guard.LOSS_IN_HEALTH_MS)
        past = "" if loss else guard.loss_in(made, now_ms)
        texts = (*warnings, past, room, guard.many_dead(dead))
        return Inspection([text for text in texts if text], loss, instances, step_in(made, now_ms))
    finally:
        await close(client)


async def remains(settings: Redis) -> Remains:
    """Count what a store holds, in both tiers.

    Raises ``StoreUnavailable``, and ``StoreUnfit`` for a store whose shards are not those of the settings.
    """
    client = connect(settings)
    try:
        return await count(client, settings)
    finally:
        await close(client)


async def count(client: Any, settings: Redis) -> Remains:
    """Do the same with a client that is open."""
    keys = StoreKeys(settings.key_prefix, settings.shards, "")
    made = await guard.read_agreement(client, keys.store)
    if not made:
        return Remains(0, 0, {})
    guard.judge_agreement(made, settings.shards)
    replies = await Runner(client).all([shard.call("count", ()) for shard in keys.shards])
    parked: Counter[str] = Counter()
    cold = 0
    for reply in replies:
        for (state, route), number in guard.route_counts(reply).items():
            parked[route] += number if state in ("parked", "cold") else 0
            cold += number if state == "cold" else 0
    waiting = cold + sum(reply[1] + reply[2] for reply in replies)
    return Remains(waiting, sum(reply[3] for reply in replies), +parked)
