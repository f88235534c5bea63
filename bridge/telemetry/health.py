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

import structlog

from bridge.core.reasons import Reason
from bridge.telemetry.printable import brief

log = structlog.get_logger("postdate")

WELL = "All well."
#: The log line for a trouble that is over: a part reported it as well, or its time ran out.
WELL_AGAIN, NOT_SEEN_AGAIN = "well again", "not seen again"
#: Seconds between two lines of one subject, and without trouble before the log says "well again".
_EVERY_S = 1.0
#: How long a refusal counts if the route stays silent, and if it delivers other messages.
_REFUSED_S = 60.0
_CALM_S = 5.0


@dataclass(slots=True)
class _Subject:
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
        self._subjects: dict[str, _Subject] = {}
        #: Attempts to connect: by the first word of the subject, connected and failed.
        self.attempts: dict[str, list[int]] = {}

    def say(self, subject: str, sentence: str, for_s: float = math.inf, cause: Hashable = None) -> None:
        """Set what is wrong with ``subject``; an empty sentence means that it is well.

        A sentence with the ``cause`` of the last line in the log gets no other line. Give one where the sentence has
        numbers that change; without it the sentence is the cause.

        After ``for_s`` seconds it is forgotten, where no part can know that it is well again. The log then says "not
        seen again".
        """
        one = self._subjects.get(subject)
        if one is None:
            if not sentence:
                return
            one = self._subjects[subject] = _Subject()
        now = self._now()
        if sentence:
            sentence = brief(sentence)
            one.cause = sentence if cause is None else cause
            one.held_back = "" if one.logged and one.cause == one.logged_cause else sentence
        elif one.sentence:
            one.well_since, one.over = now, WELL_AGAIN
        one.sentence, one.until = sentence, now + for_s
        self._log(subject, one, now)

    def attempted(self, subject: str, connected: bool) -> None:
        """Count an attempt to connect. The first word of ``subject`` names the server."""
        self.attempts.setdefault(subject.partition(" ")[0], [0, 0])[not connected] += 1

    def troubles(self) -> dict[str, str]:
        """Return subject and sentence of everything that is wrong now."""
        now = self._now()
        return {subject: one.sentence for subject, one in self._subjects.items() if one.sentence and one.until >= now}

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
            for subject, one in self._subjects.items():
                if one.held_back:
                    log.warning("trouble", subject=subject, what=one.held_back)

    def look(self) -> None:
        """Log what was held back long enough, and forget what is over."""
        now = self._now()
        for subject, one in tuple(self._subjects.items()):
            if one.sentence and one.until < now:
                one.sentence, one.well_since, one.over = "", now, NOT_SEEN_AGAIN
            self._log(subject, one, now)
            if not (one.sentence or one.logged or one.held_back) and now - one.logged_at >= _EVERY_S:
                del self._subjects[subject]

    def _log(self, subject: str, one: _Subject, now: float) -> None:
        if now - one.logged_at < _EVERY_S:
            return
        if one.held_back:
            log.warning("trouble", subject=subject, what=one.held_back)
            one.logged, one.logged_cause, one.logged_at, one.held_back = one.held_back, one.cause, now, ""
        elif one.logged and not one.sentence and now - one.well_since >= _EVERY_S:
            log.info(one.over, subject=subject)
            one.logged, one.logged_at = "", now


class RefusedRoutes:
    """The routes whose destination refuses messages, as ``Health`` reports them."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._refused_at: dict[str, tuple[float, str, Hashable]] = {}

    def __bool__(self) -> bool:
        """Return whether any route is refused: only then ``delivered`` has to be called."""
        return bool(self._refused_at)

    def refused(self, route: str, reason: Reason) -> None:
        """Note that the destination refused a message of this route."""
        words = f"messages of route {route} are refused, the last one as {reason}"
        self._refused_at[route] = (time.monotonic(), words, reason.cause)
        self._health.say(f"route {route}", words, _REFUSED_S, reason.cause)

    def delivered(self, routes: AbstractSet[str]) -> None:
        """Note that these routes delivered: one without a refusal for some seconds is well again."""
        now = time.monotonic()
        for route in routes & self._refused_at.keys():
            at, words, cause = self._refused_at[route]
            if at + _CALM_S < now:
                del self._refused_at[route]
                self._health.say(f"route {route}", "")
            else:
                self._health.say(f"route {route}", words, at + _CALM_S - now, cause)
