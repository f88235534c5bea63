"""Opens the envelopes that a claim took from a store."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core.message import Claim, unopened
from bridge.core.ports import Claimed
from bridge.parking.envelope import DamagedEnvelope, NewerEnvelope, unseal
from bridge.parking.identity import ID_BYTES


def claimed_from(
    ids: bytes,
    envelopes: Sequence[bytes],
    shard: int,
    token: bytes,
    lease_ends: float,
    now_ms: int,
    next_due_ms: int | None,
    ghosts: int,
) -> Claimed:
    """Return what a claim took: ``ids`` are joined, ``now_ms`` is the store's clock. Pure."""
    claims, newer, damaged = [], [], []
    for place, envelope in enumerate(envelopes):
        message_id = ids[place * ID_BYTES : (place + 1) * ID_BYTES]
        try:
            due_ms, tries, arrived_ms, route, key, first, payload, reached = unseal(envelope)
        except NewerEnvelope:
            newer.append(message_id)
            continue
        except DamagedEnvelope as error:
            damaged.append((unopened(message_id, shard, token, lease_ends), str(error)))
            continue
        claims.append(
            Claim(
                message_id,
                shard,
                token,
                due_ms,
                arrived_ms,
                tries,
                route,
                key,
                payload,
                first or message_id,
                lease_ends,
                now_ms,
                0,
                reached,
            )
        )
    return Claimed(claims, next_due_ms, None, ghosts, newer, tuple(damaged))
