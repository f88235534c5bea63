"""What all instances must agree on, as it is written in {postdate}:store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.redis.connect import Client, store_errors
from adapters.redis.keys import StoreKeys
from bridge.errors import StoreUnfit

#: The layout of the keys and of the envelope.
FORMAT = 1


def judge_agreement(made: Mapping[str, int], shards: int) -> None:
    """Pure. Raises ``StoreUnfit`` for a store that was made with another format or another number of shards."""
    if made.get("format", FORMAT) != FORMAT:
        raise StoreUnfit(f"the store has format {made['format']}, and this postdate reads format {FORMAT}")
    if made.get("shards", shards) != shards:
        raise StoreUnfit(
            f"the store was made with {made['shards']} shards and redis.shards is {shards}: "
            f"set redis.shards = {made['shards']}, or use another redis.key_prefix"
        )


async def read_agreement(client: Client, prefix: str) -> dict[str, int]:
    """What the store was made with; empty for one that was never used. Writes nothing. Raises ``StoreUnavailable``."""
    anyone: Any = client
    with store_errors():
        made = await anyone.hgetall(StoreKeys(prefix, 0, "").store)
    return {key.decode(): int(value) for key, value in made.items()}
