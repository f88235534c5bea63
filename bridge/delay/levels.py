"""Decide what becomes of a delivery on a route without a store: held by the broker, delivered, or dead. Pure.

Such a route has queues in which every message waits equally long (``levels``), or powers of two of a second
(``ladder``). ``bridge.pipeline.relay`` carries the decision out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.core.errors import BadValue, HeaderError
from bridge.core.message import Delivery
from bridge.core.reasons import Reason, ReasonKind, bad_headers, over_body_max
from bridge.delay import ladder
from bridge.delay.duration import write_duration
from bridge.delay.header import Due, HeaderRules, read_due
from bridge.delay.trust import Trust

NO_CANCEL = Reason(
    ReasonKind.NOT_POSSIBLE, "a route without a store cannot cancel, so x-delay-cancel has cancelled nothing"
)


class Hold(NamedTuple):
    """It waits in the broker for ``wait_ms``: a level, or the sum of ladder steps."""

    wait_ms: int


class Deliver(NamedTuple):
    """It goes to its destination now."""


class Bury(NamedTuple):
    """It is kept as a dead letter, in a queue of the broker. Without a reason none is added."""

    reason: Reason | None


Move = Hold | Deliver | Bury
#: From the remaining wait (ms, above 0) and the delay asked for (None for a moment) to the actual wait.
#: Raises BadValue, with the second half of a sentence, if there is no such wait.
Round = Callable[[int, int | None], int]


@dataclass(frozen=True)
class LevelRules:
    """What the relay needs to know of a route without a store. ``trust``: as in ``pipeline.decide.RouteRules``."""

    headers: HeaderRules
    round: Round
    on_bad: str
    body_max: int
    trust: Trust | None = None


def decide(delivery: Delivery, rules: LevelRules, now_ms: int) -> Move:
    """Return what becomes of a delivery from the intake. ``now_ms``: Unix ms, when the wait in the broker begins."""
    if delivery.fault:
        return Bury(bad_headers(delivery.fault))
    if len(delivery.payload) > rules.body_max:
        return Bury(over_body_max(len(delivery.payload), rules.body_max))
    if rules.trust is not None and (refused := rules.trust.refusal(delivery)):
        return Bury(refused)
    try:
        due = read_due(delivery.headers, delivery.arrived_ms, delivery.published_ms, rules.headers)
        return _move(due, rules, now_ms)
    except HeaderError as error:
        return Bury(error.reason) if rules.on_bad == "dead" else Deliver()


def _move(due: Due, rules: LevelRules, now_ms: int) -> Move:
    if due.cancel is not None:
        return Bury(NO_CANCEL)
    if due.due_ms is None or due.due_ms <= now_ms:
        return Deliver()
    wait_ms = due.due_ms - now_ms
    if due.delay_ms is not None:  # if the producer's clock is ahead, 30 s would exceed the level of 30 s
        wait_ms = min(wait_ms, due.delay_ms)
    try:
        return Hold(rules.round(wait_ms, due.delay_ms))
    except BadValue as error:
        raise HeaderError(Reason(ReasonKind.BAD_HEADER, f"the delay {error.text}", error.values)) from None


def rounding(levels_ms: Sequence[int], how: str) -> Round:
    """Return how a wait becomes a level.

    ``how``: up; nearest, where a level may be shorter than the wait; or refuse, which takes only delays that are
    levels.
    """
    ordered = sorted(levels_ms)

    def to_level(wait_ms: int, asked_ms: int | None) -> int:
        if how == "refuse":
            if asked_ms not in ordered:
                raise BadValue("is none of the route's levels, and levels.rounding is refuse")
            return asked_ms
        if _longest(wait_ms, asked_ms) > ordered[-1]:
            longest = write_duration(ordered[-1])
            text = "of {delay} is longer than the longest level of the route, {longest}"
            raise BadValue(text, delay=_written(wait_ms, asked_ms), longest=longest)
        place = bisect_left(ordered, wait_ms)
        above, below = ordered[place], ordered[max(0, place - 1)]
        return below if how == "nearest" and wait_ms - below < above - wait_ms else above

    return to_level


def to_the_millisecond(wait_ms: int, asked_ms: int | None) -> int:
    """Return the wait as it is (``Round``). ``limits.max_delay`` allows no moment that stops a queue of RabbitMQ."""
    return wait_ms


def to_whole_seconds(wait_ms: int, asked_ms: int | None) -> int:
    """Round a wait up to one that the ladder has (``Round``)."""
    if ladder.whole_seconds(_longest(wait_ms, asked_ms)) > ladder.LONGEST_S:
        raise BadValue(
            f"of {{delay}} is longer than the ladder, {ladder.LONGEST_S} s", delay=_written(wait_ms, asked_ms)
        )
    return 1000 * ladder.whole_seconds(wait_ms)


def _longest(wait_ms: int, asked_ms: int | None) -> int:
    """Return the wait that must not be too long.

    It is the delay asked for. With the remaining wait, the milliseconds that have passed would decide whether a delay
    just above the limit is refused.
    """
    return wait_ms if asked_ms is None else max(wait_ms, asked_ms)


def _written(wait_ms: int, asked_ms: int | None) -> str:
    """Return the delay as the producer wrote it, without the milliseconds that have passed since."""
    return write_duration(wait_ms if asked_ms is None else asked_ms)
