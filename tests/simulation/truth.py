"""What must be true of the store between any two calls: every message in one state, and the counts equal to it."""

from __future__ import annotations

from collections import Counter

from adapters.memory.shard import Shard
from bridge.core.journal import Written
from bridge.core.orders import HELD_MS
from bridge.parking.envelope import route_in
from bridge.parking.identity import ID_BYTES, shard_of
from bridge.pipeline.journal_watch import JOURNAL_RESTORE
from tests.simulation.plan import LOAD_S
from tests.simulation.world import ADOPTED_S, World


def look(world: World) -> None:
    """Look at every shard, and note what is wrong."""
    cold = _cold(world)
    counted = world.loop.time() > world.counted_from_s()
    for number, shard in enumerate(world.store.memory.shards):
        if text := _wrong(shard, cold.get(number, Counter()) if counted else None):
            world.wrong.append(f"{text} (shard {number}, {world.loop.time():.1f} s)")
    if world.journal is not None:
        _look_at_tiers(world)


def _cold(world: World) -> dict[int, Counter[tuple[str, bytes]]]:
    """Return by shard how many messages of each route wait in the journal alone, as the store counts them."""
    found: dict[int, Counter[tuple[str, bytes]]] = {}
    if world.journal is not None:
        left, stored, rows = world.left(), world.in_store(), world.journal.memory.rows
        for message_id, state in world.journal.waiting().items():
            if state is Written.COLD and message_id not in stored and message_id not in left:
                route = rows[message_id].message.route.encode()
                found.setdefault(shard_of(message_id), Counter())["cold", route] += 1
    return found


def _look_at_tiers(world: World) -> None:
    """A message that was accepted is in one tier or in both, and no loss is reported that did not happen."""
    assert world.journal is not None
    world.look_for_missing()
    rows, left, accepted, kept = world.journal.memory.rows, world.left(), world.broker.accepted, world.kept()
    neither = [
        number
        for message_id, state in world.journal.waiting().items()
        if state is not Written.COLD and not (message_id in kept or message_id in left or message_id in world.missing)
        for number in [world.number_of(message_id, rows[message_id].message.envelope)]
        if number in accepted and number not in world.maybe_back  # a restore writes first that it waits again
    ]
    if neither:  # the row of an instance that died, while another one parked the same record
        whole = [(key, row.message) for key, row in rows.items() if row.message.envelope]
        # One that is lost is in no tier either, and a restore chooses one of its rows.
        others = [(key, row) for key, row in whole if row.state.ended or key in left or key in world.missing]
        elsewhere = {*kept.values(), *(world.number_of(key, message.envelope) for key, message in others)}
        if world.turns_lost:  # a restore filled a store that was emptied meanwhile: what left first is in no log
            elsewhere |= {arrival.number for arrival in world.broker.arrived}
        neither = [number for number in neither if number not in elsewhere and not world.behind_its_row(number)]
    now_s = world.loop.time()
    if now_s > max(world.faults_end_s, LOAD_S) + ADOPTED_S and (without := _without_a_row(world)):
        world.wrong.append(f"the journal lacks {len(without)} that wait, first {without[:5]} ({now_s:.1f} s)")
    if neither:
        world.wrong.append(f"in neither tier: {len(neither)}, first {neither[:5]} ({now_s:.1f} s)")
    if not (world.undone or world.maybe_back or world.froze):
        for instance in world.instances:
            health = getattr(instance, "health", None)
            if health is not None and not instance.process.killed and JOURNAL_RESTORE in health.troubles():
                world.wrong.append(f"{instance.name} tells of a loss that was none ({now_s:.1f} s)")


def _without_a_row(world: World) -> list[int]:
    assert world.journal is not None
    rows, accepted = world.journal.memory.rows, world.broker.accepted
    lacking = (number for key, number in world.kept().items() if key not in rows or not rows[key].message.envelope)
    until_s = world.loop.time() - ADOPTED_S
    found = [number for number in lacking if number in accepted and accepted[number].at_s < until_s]
    if found:  # a copy, which an instance parked and did not accept, has its row under another id
        written = {world.number_of(key, row.message.envelope) for key, row in rows.items() if row.message.envelope}
        found = [number for number in found if number not in written]
    return found


def _wrong(shard: Shard, cold: Counter[tuple[str, bytes]] | None) -> str:
    claimed = {member[:ID_BYTES] for member in shard.claimed}
    parked = {message_id for _, message_id in shard.due}
    if len(claimed) + len(parked) + len(shard.dead) != len(shard.messages) or len(claimed) != len(shard.claimed):
        where = {"parked": len(parked), "claimed": len(claimed), "dead": len(shard.dead)}
        return f"states: {len(shard.messages)} messages, {where}"
    routes = {message_id: route_in(envelope) for message_id, envelope in shard.messages.items()}
    truth: Counter[tuple[str, bytes]] = Counter()
    truth.update(("dead" if message_id in shard.dead else "parked", route) for message_id, route in routes.items())
    truth.update(("held", routes[message_id]) for at_ms, message_id in shard.due if at_ms >= HELD_MS)
    if cold is None:  # an older state of the store has older counts, until the loader counts again
        truth.update({place: number for place, number in shard.routes.items() if place[0] == "cold"})
    else:
        truth.update(cold)
    if truth != shard.routes:
        return f"counts: {dict(shard.routes)}, and in truth {dict(truth)}"
    return ""
