"""The health of a process, in sentences: one for each thing that is wrong, none when all is well.

The log gets at most one line a second for each subject. Health logs what it held back a second later, or when the
process stops.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from bridge.core.reasons import MISSING_TARGET, Reason
from bridge.delay.duration import write_age
from bridge.telemetry.printable import brief
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

WELL = "All well."
#: The log line for a trouble that is over: a part reported it as well, or its time ran out.
WELL_AGAIN, NOT_SEEN_AGAIN = "well again", "not seen again"
#: Seconds between two lines of one subject, and without trouble before the log says "well again".
_EVERY_S = 1.0
#: How long a refusal counts if the route stays silent, and if it delivers other messages.
_REFUSED_S = 60.0
_CALM_S = 5.0
#: A delivery so long after the last refusal shows that the destination takes messages again.
_PAST_S = 2.0


@dataclass(slots=True)
class _Trouble:
    """``sentence`` is true now, "" for none. ``logged`` is the last line in the log, "" for "well again"; ``held_back``
    is not logged yet; ``over`` is the line for the end. ``cause`` is the cause of the last sentence."""

    sentence: str = ""
    cause: Hashable = None
    until: float = math.inf
    well_since: float = 0.0
    logged: str = ""
    logged_cause: Hashable = None
    logged_at: float = -math.inf
    held_back: str = ""
    over: str = WELL_AGAIN


class Health:
    """Collects what each part of a process reports about itself."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._subjects: dict[Subject, _Trouble] = {}
        #: Attempts to connect: by peer, connected and failed.
        self.attempts: dict[str, list[int]] = {}
        self._connected: dict[str, asyncio.Event] = {}

    def say(self, subject: Subject, sentence: str, for_s: float = math.inf, cause: Hashable = None) -> None:
        """Set what is wrong with ``subject``; an empty sentence means that it is well.

        A sentence with the ``cause`` of the last line in the log gets no other line. Give one where the sentence has
        numbers that change; without it the sentence is the cause.

        After ``for_s`` seconds it is forgotten, where no part can know that it is well again. The log then says "not
        seen again".
        """
        trouble = self._subjects.get(subject)
        if trouble is None:
            if not sentence:
                return
            trouble = self._subjects[subject] = _Trouble()
        now = self._now()
        if sentence:
            sentence = brief(sentence)
            trouble.cause = sentence if cause is None else cause
            trouble.held_back = "" if trouble.logged and trouble.cause == trouble.logged_cause else sentence
        elif trouble.sentence:
            trouble.well_since, trouble.over = now, WELL_AGAIN
        trouble.sentence, trouble.until = sentence, now + for_s
        self._log(subject, trouble, now)

    def attempted(self, subject: Subject, connected: bool) -> None:
        """Count an attempt to connect. The peer of ``subject`` is the server."""
        self.attempts.setdefault(subject.peer, [0, 0])[0 if connected else 1] += 1
        if connected:
            self.answered(subject)

    def answered(self, subject: Subject) -> None:
        """End the waits of all that wait for the peer of ``subject``: it answers."""
        if waiting := self._connected.pop(subject.peer, None):
            waiting.set()

    def connected(self, subject: Subject) -> asyncio.Event:
        """Return what is set when the peer of ``subject`` answers again."""
        return self._connected.setdefault(subject.peer, asyncio.Event())

    def troubles(self) -> dict[Subject, str]:
        """Return subject and sentence of everything that is wrong now."""
        now = self._now()
        return {
            subject: trouble.sentence
            for subject, trouble in self._subjects.items()
            if trouble.sentence and trouble.until >= now
        }

    def sentence(self) -> str:
        """Return all of it as text."""
        return " ".join(f"{text}." for text in self.troubles().values()) or WELL

    async def run(self) -> None:
        """Log what is held back, until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                self.look()
        finally:
            for subject, trouble in self._subjects.items():
                if trouble.held_back:
                    log.warning("trouble", subject=str(subject), what=trouble.held_back)

    def look(self) -> None:
        """Log what was held back long enough, and forget what is over."""
        now = self._now()
        for subject, trouble in tuple(self._subjects.items()):
            if trouble.sentence and trouble.until < now:
                trouble.sentence, trouble.well_since, trouble.over = "", now, NOT_SEEN_AGAIN
            self._log(subject, trouble, now)
            if not (trouble.sentence or trouble.logged or trouble.held_back) and now - trouble.logged_at >= _EVERY_S:
                del self._subjects[subject]

    def _log(self, subject: Subject, trouble: _Trouble, now: float) -> None:
        if now - trouble.logged_at < _EVERY_S:
            return
        if trouble.held_back:
            log.warning("trouble", subject=str(subject), what=trouble.held_back)
            trouble.logged, trouble.logged_cause, trouble.logged_at, trouble.held_back = (
                trouble.held_back,
                trouble.cause,
                now,
                "",
            )
        elif trouble.logged and not trouble.sentence and now - trouble.well_since >= _EVERY_S:
            log.info(trouble.over, subject=str(subject))
            trouble.logged, trouble.logged_at = "", now


def overdue_for(ms: float) -> str:
    """Return the sentence about the oldest overdue message. Pure."""
    return f"the oldest overdue message was due {write_age(ms)} ago"


#: What ends a loss that the journal can end: an operator, ``journal.restore = "auto"``, or a restore that runs.
RESTORE, RESTORES_ITSELF = "Run `postdate restore`", "The instances restore them from the journal"
RESTORING = "A restore is under way"


def lacks_messages(cure: str) -> str:
    """Return the sentence about messages of the journal that the store lacks. Pure."""
    return f"Redis lacks messages that wait according to the journal. {cure}"


def waits_after_refusal(route: str) -> str:
    """Return how the sentence begins for a route that delivers again, while refused messages wait. Pure."""
    return f"route {route} delivers again, and messages wait for their next try after a refusal"


class _Refusal(NamedTuple):
    """The last refusal of a route: when it was, and until when refused messages wait for their next try."""

    at: float
    until: float
    reason: Reason


class RefusedRoutes:
    """The routes whose destination refuses messages, as ``Health`` reports them."""

    def __init__(self, health: Health, now: Callable[[], float] = time.monotonic) -> None:
        self._health = health
        self._now = now
        self._refusals: dict[str, _Refusal] = {}

    def __bool__(self) -> bool:
        """Return whether any route is refused: only then ``delivered`` has to be called."""
        return bool(self._refusals)

    def refused(self, route: str, reason: Reason, wait_ms: int = 0) -> None:
        """Note that the destination refused a message of this route. It waits so long for its next try."""
        now = self._now()
        until, before = now + wait_ms / 1000, self._refusals.get(route)
        self._refusals[route] = _Refusal(now, max(until, before.until) if before else until, reason)
        words = f"messages of route {route} are refused, the last one as {reason}"
        self._health.say(Subject("route", route), words, until + _REFUSED_S - now, reason.cause)

    def delivered(self, routes: AbstractSet[str], retried: AbstractSet[str] = frozenset()) -> None:
        """Note that these routes delivered. A refused message of ``retried`` was among it, so its cause is over."""
        now = self._now()
        for route in routes & self._refusals.keys():
            at, until, reason = self._refusals[route]
            over = route in retried or reason.kind in MISSING_TARGET  # any delivery at all shows that it is there
            rest_s = until - now + (0 if over else _CALM_S)
            if rest_s <= 0:
                del self._refusals[route]
                self._health.say(Subject("route", route), "")
                continue
            past = over or at + _PAST_S < min(now, until)
            what = waits_after_refusal(route) if past else f"messages of route {route} are refused"
            # The same cause makes no other line in the log.
            self._health.say(Subject("route", route), f"{what}, the last one as {reason}", rest_s, reason.cause)
