"""How much room the servers of the store have left, and whether dead letters fill it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridge.admin.desk import Memory

#: From this part of maxmemory on, a warning. At all of it nothing new is parked.
_NEARLY = 0.8
#: More dead letters than this are worth a word: they stay until somebody acts.
_MANY_DEAD = 10_000


def nearly_full(memory: Sequence[Memory]) -> str:
    """Pure: a sentence without its stop about the fullest server, or ""."""
    limited = [one for one in memory if one.most]
    fullest = max(limited, key=lambda one: one.used / one.most, default=None)
    if fullest is None or fullest.used < _NEARLY * fullest.most:
        return ""
    return (
        f"{fullest.server} uses {fullest.used * 100 // fullest.most}% of its maxmemory. At 100% nothing new is parked: "
        "give it more memory"
    )


def dead_letters(count: int) -> str:
    """Pure: a sentence without its stop where there are many, or ""."""
    if count <= _MANY_DEAD:
        return ""
    return f"dead letters: {count}. They take memory until you retry or cancel them: `postdate list --state dead`"


async def memory_of(client: Any) -> list[Memory]:
    """Of every server that holds data. Raises what redis-py raises."""
    if not hasattr(client, "get_primaries"):
        return [_memory_of("Redis", await client.info("memory"))]
    found = []
    for node in client.get_primaries():
        told = await client.info("memory", target_nodes=node)
        found.append(_memory_of(str(node.name), told if "used_memory" in told else next(iter(told.values()))))
    return found


def _memory_of(server: str, info: Mapping[str, Any]) -> Memory:
    return Memory(server, int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
