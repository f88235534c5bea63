"""Questions to the servers themselves: each that holds data, and their clock."""

from __future__ import annotations

import time
from typing import Any

from adapters.redis.errors import store_errors
from bridge.core.clock import StoreClock


async def servers(client: Any) -> dict[str, dict[str, Any]]:
    """Return the servers that hold data by name: "" for a single one, or the primaries of a Cluster. The value has the
    options with which redis-py's client sends a command there. Raises what redis-py raises."""
    if not hasattr(client, "get_primaries"):
        return {"": {}}
    await client.initialize()
    return {str(node.name): {"target_nodes": node} for node in client.get_primaries()}


async def time_us(client: Any) -> int:
    """Return Unix microseconds by the store's clock. Raises ``StoreUnavailable``."""
    with store_errors():
        seconds, microseconds = await client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


async def observe(client: Any, clock: StoreClock) -> None:
    """Let a clock observe the store's once. Raises ``StoreUnavailable``."""
    sent = time.monotonic()
    now_us = await time_us(client)
    clock.observe(sent, time.monotonic(), now_us)
