"""What becomes of a delivery on a route without a store: held by the broker for so long, delivered, or dead. Pure.

Such a route has queues in which everything waits equally long (``levels``), or powers of two of a second (``ladder``).
``bridge.pipeline.relay`` carries it out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.core.errors import HeaderError
from bridge.core.message import Delivery
from bridge.delay import ladder
from bridge.delay.duration import write_duration
from bridge.delay.header import Due, HeaderRules, read_due
from bridge.delay.trust import Trust

NO_CANCEL = "not_possible: a route without a store cannot cancel, so x-delay-cancel has cancelled nothing"


class Hold(NamedTuple):
    """It waits in the broker for ``wait_ms``; a level, or the sum of a ladder's steps."""

    wait_ms: int


class Deliver(NamedTuple):
    """It goes to its destination now."""


class Bury(NamedTuple):
    """It is kept as a dead letter, in a queue of the broker."""

    reason: str


Move = Hold | Deliver | Bury
#: The wait that is left (ms, above 0) and the one that was asked for (None: a moment was) to what is really waited.
#: Raises ValueError, with the second half of a sentence, where there is no such wait.
Round = Callable[[int, int | None], int]


@dataclass(frozen=True)
class LevelRules:
    """What the way in of a route without a store needs to know. ``trust``: as in ``pipeline.decide.RouteRules``."""

    headers: HeaderRules
    round: Round
    on_bad: str
    body_max: int
    trust: Trust | None = None


def decide(delivery: Delivery, rules: LevelRules, now_ms: int) -> Move:
    """What becomes of what came to the intake. ``now_ms``: Unix ms; the wait begins when the broker has it again."""
    if delivery.fault:
        return Bury(f"bad_header: {delivery.fault}")
    if len(delivery.payload) > rules.body_max:
        return Bury(f"too_large: it has {len(delivery.payload)} bytes and limits.max_body is {rules.body_max}")
    if rules.trust is not None and (refused := rules.trust.refusal(delivery)):
        return Bury(refused)
    try:
        due = read_due(delivery.headers, delivery.arrived_ms, delivery.published_ms, rules.headers)
        return _move(due, rules, now_ms)
    except HeaderError as error:
        return Bury(f"bad_header: {error}") if rules.on_bad == "dead" else Deliver()


def _move(due: Due, rules: LevelRules, now_ms: int) -> Move:
    if due.cancel is not None:
        return Bury(NO_CANCEL)
    if due.due_ms is None or due.due_ms <= now_ms:
        return Deliver()
    wait_ms = due.due_ms - now_ms
    if due.delay_ms is not None:  # where the producer's clock is ahead, or 30 s would be more than the level of 30 s
        wait_ms = min(wait_ms, due.delay_ms)
    try:
        return Hold(rules.round(wait_ms, due.delay_ms))
    except ValueError as error:
        raise HeaderError(f"the delay {error}") from None


def rounding(levels_ms: Sequence[int], how: str) -> Round:
    """How a wait becomes a level. ``how``: up, nearest (a level may then be shorter than the wait), or refuse: only
    what was asked for as exactly a level."""
    ordered = sorted(levels_ms)

    def to_level(wait_ms: int, asked_ms: int | None) -> int:
        if how == "refuse":
            if asked_ms not in ordered:
                raise ValueError("is none of the route's levels, and levels.rounding is refuse")
            return asked_ms
        if _longest(wait_ms, asked_ms) > ordered[-1]:
            longest = write_duration(ordered[-1])
            raise ValueError(f"of {_said(wait_ms, asked_ms)} is longer than the longest level of the route, {longest}")
        place = bisect_left(ordered, wait_ms)
        above, below = ordered[place], ordered[max(0, place - 1)]
        return below if how == "nearest" and wait_ms - below < above - wait_ms else above

    return to_level


def to_whole_seconds(wait_ms: int, asked_ms: int | None) -> int:
    """How a wait becomes one of the ladder's: see ``Round``."""
    if ladder.whole_seconds(_longest(wait_ms, asked_ms)) > ladder.LONGEST_S:
        raise ValueError(f"of {_said(wait_ms, asked_ms)} is longer than the ladder, {ladder.LONGEST_S} s")
    return 1000 * ladder.whole_seconds(wait_ms)


def _longest(wait_ms: int, asked_ms: int | None) -> int:
    """What must not be too long. What was asked for, or a delay just above would be refused or taken by chance: by
    the milliseconds that have passed."""
    return wait_ms if asked_ms is None else max(wait_ms, asked_ms)


def _said(wait_ms: int, asked_ms: int | None) -> str:
    """As the producer knows it: of what he asked for, some milliseconds have passed when it is decided."""
    return write_duration(wait_ms if asked_ms is None else asked_ms)
