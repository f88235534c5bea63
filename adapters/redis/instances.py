"""The instances that report to a store, for a reader that looks only once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from adapters.redis.keys import StoreKeys
from bridge.core.roll import believable, silent_ms


async def instances_of(
    client: Any, keys: StoreKeys, now_ms: int
) -> tuple[dict[str, Mapping[str, object]], dict[str, int]]:
    """Return the reports of the running instances, and for how long (ms) others have been silent.

    One whose time ends later than it can has died before the clock stepped back. Raises what redis-py raises.
    """
    beats = await client.zrange(keys.instances, 0, -1, withscores=True)
    texts = await client.hmget(keys.health, [name for name, _ in beats]) if beats else []
    running: dict[str, Mapping[str, object]] = {}
    silent: dict[str, int] = {}
    for (raw, until_ms), text in zip(beats, texts, strict=True):
        name, report = raw.decode("utf-8", "replace"), _report(text)
        if believable(until_ms, now_ms, report):
            running[name] = report
        else:
            silent[name] = silent_ms(until_ms, now_ms, report)
    return running, silent


async def losses_of(client: Any, keys: StoreKeys) -> dict[str, int]:
    """Return when each lost instance was removed (Unix ms), while that is not over. Raises what redis-py raises."""
    found = await client.hgetall(keys.lost)
    return {name.decode("utf-8", "replace"): int(value.split()[0]) for name, value in found.items()}


def _report(text: bytes | None) -> dict[str, object]:
    """Return what an instance reports: a digit (can it deliver) and JSON."""
    try:
        report = json.loads((text or b"0")[1:])
    except ValueError:
        report = {}
    return {"able": (text or b"0")[:1] == b"1", **(report if isinstance(report, dict) else {})}
