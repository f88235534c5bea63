"""The store in numbers, from the counts of its shards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from adapters.redis.agreement import loss_in, read_pairs
from adapters.redis.connect import store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.room import dead_letters, memory_of, nearly_full
from bridge.admin.desk import Stats

#: How many shards are measured for the estimate, and how many fields of a hash Redis looks at for it.
_SHARDS, _SAMPLES = 4, 20


async def sum_up(client: Any, keys: StoreKeys, counted: Sequence[Any]) -> Stats:
    """Add up the replies of ``lua/desk/count.lua``, one a shard in order, and ask for the rest. Raises
    ``StoreUnavailable``."""
    ever: dict[str, int] = {}
    for reply in counted:
        for name, value in zip(reply[7::2], reply[8::2], strict=True):
            ever[name.decode()] = ever.get(name.decode(), 0) + int(value)
    now_ms = max(reply[0] for reply in counted) // 1000
    parked, claimed, dead, overdue = (sum(reply[place] for reply in counted) for place in range(1, 5))
    refused = sum(reply[6] for reply in counted)
    next_due_ms = min((reply[5] for reply in counted if reply[5] >= 0), default=None)
    with store_errors():
        instances, memory = await _instances(client, keys, now_ms), await memory_of(client)
        made = read_pairs(await client.hgetall(keys.store))
        each = await _bytes_each(client, keys, [sum(reply[1:4]) for reply in counted])
    words = [word for word in (loss_in(made, now_ms), nearly_full(memory), dead_letters(dead)) if word]
    return Stats(now_ms, parked, claimed, dead, overdue, next_due_ms, ever, instances, memory, each, refused, words)


async def _instances(client: Any, keys: StoreKeys, now_ms: int) -> dict[str, Mapping[str, object]]:
    names = await client.zrangebyscore(keys.instances, now_ms, "+inf")
    told = await client.hmget(keys.health, names) if names else []
    return {name.decode("utf-8", "replace"): _health(text) for name, text in zip(names, told, strict=True)}


def _health(text: bytes | None) -> dict[str, object]:
    """What an instance says of itself: a digit (can it deliver) and JSON."""
    try:
        told = json.loads((text or b"0")[1:])
    except ValueError:
        told = {}
    return {"able": (text or b"0")[:1] == b"1", **(told if isinstance(told, dict) else {})}


async def _bytes_each(client: Any, keys: StoreKeys, messages: Sequence[int]) -> int | None:
    """What a message takes in the fullest shards, by Redis's own estimate; a managed service may not tell."""
    fullest = sorted(range(len(messages)), key=messages.__getitem__)[-_SHARDS:]
    total = 0
    try:
        for shard in fullest:
            of = keys.shards[shard]
            for key in (of.due, of.msg, of.claimed, of.dead, of.keys):
                total += await client.memory_usage(key, samples=_SAMPLES) or 0
    except ResponseError:
        return None
    count = sum(messages[shard] for shard in fullest)
    return total // count if count else None
