"""What all instances must agree on, as it is written in {postdate}:store, and the last loss that one of them saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.redis.connect import Client, store_errors
from adapters.redis.keys import StoreKeys
from bridge.core.errors import StoreUnfit
from bridge.delay.duration import write_moment

#: The layout of the keys and of the envelope.
FORMAT = 1
#: For how long a loss is told of: by ``check`` and ``stats``, and by the health of the instances.
TOLD_MS, HEALTH_MS = 24 * 3_600_000, 3_600_000


def judge_agreement(made: Mapping[str, int], shards: int) -> None:
    """Pure. Raises ``StoreUnfit`` for a store that was made with another format or another number of shards."""
    if made.get("format", FORMAT) != FORMAT:
        raise StoreUnfit(f"the store has format {made['format']}, and this postdate reads format {FORMAT}")
    if made.get("shards", shards) != shards:
        raise StoreUnfit(
            f"the store was made with {made['shards']} shards and redis.shards is {shards}: "
            f"set redis.shards = {made['shards']}, or use another redis.key_prefix"
        )


def loss_in(made: Mapping[str, int], now_ms: int, told_ms: int = TOLD_MS) -> str:
    """Pure: what is known of the last loss, a sentence without its stop; "" where there was none in ``told_ms``."""
    if "lost_ms" not in made or now_ms - made["lost_ms"] >= told_ms:
        return ""
    return (
        f"Redis was emptied, or replaced by an older copy of its data, at {write_moment(made['lost_ms'])}. Messages "
        f"that are gone: about {made.get('lost', 0)}"
    )


def read_pairs(rows: Mapping[bytes, bytes] | list[bytes]) -> dict[str, int]:
    """The fields of the hash, by either way of asking."""
    pairs = rows.items() if isinstance(rows, Mapping) else zip(rows[::2], rows[1::2], strict=True)
    return {key.decode(): int(value) for key, value in pairs}


async def read_agreement(client: Client, prefix: str) -> dict[str, int]:
    """What the store was made with; empty for one that was never used. Writes nothing. Raises ``StoreUnavailable``."""
    anyone: Any = client
    with store_errors():
        return read_pairs(await anyone.hgetall(StoreKeys(prefix, 0, "").store))
