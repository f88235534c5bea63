"""What of a route may be carried out in one round of calls to the store. Pure.

In a round everything is looked up first, then cancelled, then parked. So it has the same outcome as one step after the
other as long as nothing in it cancels, or replaces in another shard, what the same round parks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bridge.core.message import Delivery
from bridge.parking.envelope import found_key
from bridge.pipeline.decide import Cancellation, Parking, Rejection, Step

#: What is due later than this can wait a little for company.
SOON_MS = 100


class Run(NamedTuple):
    """The next steps of a route. ``superseded`` are deliveries that are not parked, because a later one of the run
    replaces them, with its shard; ``heavy`` says that some of it is more work than parking: a look under a key, or a
    dead letter."""

    steps: list[Step]
    superseded: list[tuple[Delivery, int]]
    heavy: bool


def urgent(steps: Iterable[Step], now_ms: int) -> bool:
    """Something here is due so soon that gathering more first could make it late."""
    return any(
        isinstance(step.decision, Cancellation)
        or (isinstance(step.decision, Parking) and step.decision.due_ms < now_ms + SOON_MS)
        for step in steps
    )


def next_run(waiting: deque[Step], replace: bool, now_ms: int, heavy_max: int) -> Run:
    """Take the next run from the front of what waits of one route: as much as its order allows, with ``heavy_max``
    cancellations, messages with keys of their own, and rejections. ``replace`` says what the route does with the same
    key."""
    superseded: list[Step] = []
    parked: dict[bytes, list[Step]] = {}
    cancelled: dict[bytes, int] = {}
    heavy = count = 0
    for step in waiting:
        decision = step.decision
        if isinstance(decision, Cancellation):
            if heavy == heavy_max or decision.key in parked or found_key(decision.key) in parked:
                break
            heavy += 1
            cancelled[decision.key] = cancelled[found_key(decision.key)] = step.shard
        elif isinstance(decision, Rejection):
            if heavy == heavy_max:
                break
            heavy += 1
        elif decision.key:
            if step.delivery.origin is not None and cancelled.get(decision.key, step.shard) != step.shard:
                break  # the mark of its shard says nothing of the cancellation, which would be done again and take it
            if decision.owned:
                older = parked.get(decision.key, [])
                moves = bool(older) and older[0].shard != step.shard
                if heavy == heavy_max or (moves and not (replace and _leave_no_trace(older, step, now_ms))):
                    break
                heavy += 1
                if moves:
                    superseded += parked.pop(decision.key)
            parked.setdefault(decision.key, []).append(step)
        count += 1
    steps = [waiting.popleft() for _ in range(count)]
    if not superseded:
        return Run(steps, [], heavy > 0)
    left_out = {id(step) for step in superseded}
    heirs = {step.decision.key: step.shard for step in steps if isinstance(step.decision, Parking)}
    replaced = [(step.delivery, heirs[step.decision.key]) for step in superseded if isinstance(step.decision, Parking)]
    return Run([step for step in steps if id(step) not in left_out], replaced, heavy > 0)


def _leave_no_trace(older: Sequence[Step], younger: Step, now_ms: int) -> bool:
    """Whether messages that are replaced at once need not be parked at all: no consumer could have got them meanwhile.

    A record of a log is not left out: whether the younger one is new is known only when the store has been asked.
    """
    return younger.delivery.origin is None and all(
        step.delivery.origin is None and isinstance(step.decision, Parking) and step.decision.due_ms >= now_ms + SOON_MS
        for step in older
    )
