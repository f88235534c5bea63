"""What must be true of the store between any two calls: every message in one state, and the counts equal to it."""

from __future__ import annotations

from collections import Counter

from adapters.memory.shard import Shard
from bridge.core.orders import HELD_MS
from bridge.parking.envelope import route_in
from bridge.parking.identity import ID_BYTES
from tests.simulation.world import World


def look(world: World) -> None:
    """Look at every shard, and note what is wrong."""
    for number, shard in enumerate(world.store.memory.shards):
        if text := _wrong(shard):
            world.wrong.append(f"{text} (shard {number}, {world.loop.time():.1f} s)")


def _wrong(shard: Shard) -> str:
    claimed = {member[:ID_BYTES] for member in shard.claimed}
    parked = {message_id for _, message_id in shard.due}
    if len(claimed) + len(parked) + len(shard.dead) != len(shard.messages) or len(claimed) != len(shard.claimed):
        where = {"parked": len(parked), "claimed": len(claimed), "dead": len(shard.dead)}
        return f"states: {len(shard.messages)} messages, {where}"
    routes = {message_id: route_in(envelope) for message_id, envelope in shard.messages.items()}
    truth: Counter[tuple[str, bytes]] = Counter()
    truth.update(("dead" if message_id in shard.dead else "parked", route) for message_id, route in routes.items())
    truth.update(("held", routes[message_id]) for at_ms, message_id in shard.due if at_ms >= HELD_MS)
    if truth != shard.routes:
        return f"counts: {dict(shard.routes)}, and in truth {dict(truth)}"
    return ""
