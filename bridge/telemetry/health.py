"""How postdate is, in sentences: one for each thing that is wrong, none when all is well.

The log gets at most one line a second for each subject, however the details differ. What is not logged at once is
logged a second later, or when the process stops.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from bridge.telemetry.printable import brief

log = structlog.get_logger("postdate")

WELL = "All well."
#: What the log says of a trouble that is over: a part has said so, or only time has passed.
WELL_AGAIN, NOT_SEEN_AGAIN = "well again", "not seen again"
_NUMBERS = re.compile(r"[\d.]+")
#: Seconds between two lines of one subject, and without trouble before the log says "well again".
_EVERY_S = 1.0


@dataclass(slots=True)
class _Subject:
    """``sentence`` holds now, "" for none. ``logged`` is what the log said last, "" for "well again"; ``held_back`` a
    sentence that it has not said yet, ``over`` what it will say of the end."""

    sentence: str = ""
    until: float = math.inf
    well_since: float = 0.0
    logged: str = ""
    logged_at: float = -math.inf
    held_back: str = ""
    over: str = WELL_AGAIN


class Health:
    """Collects what each part says of itself."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._subjects: dict[str, _Subject] = {}

    def say(self, subject: str, sentence: str, for_s: float = math.inf) -> None:
        """Set what is wrong with ``subject``; an empty sentence means that it is well.

        ``for_s``: forget it after so long, where no part can tell that it is well again. The log then says "not seen
        again", because nothing has shown that it is well.
        """
        one = self._subjects.get(subject)
        if one is None:
            if not sentence:
                return
            one = self._subjects[subject] = _Subject()
        now = self._now()
        if sentence:
            sentence = brief(sentence)
            one.held_back = "" if _same(sentence, one.logged) else sentence
        elif one.sentence:
            one.well_since, one.over = now, WELL_AGAIN
        one.sentence, one.until = sentence, now + for_s
        self._log(subject, one, now)

    def troubles(self) -> dict[str, str]:
        """Subject and sentence of everything that is wrong now."""
        now = self._now()
        return {subject: one.sentence for subject, one in self._subjects.items() if one.sentence and one.until >= now}

    def sentence(self) -> str:
        """All of it, for a person."""
        return " ".join(f"{text}." for text in self.troubles().values()) or WELL

    async def run(self) -> None:
        """Log what is held back, until cancelled and once more then."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                self.look()
        finally:
            for subject, one in self._subjects.items():
                if one.held_back:
                    log.warning("trouble", subject=subject, what=one.held_back)

    def look(self) -> None:
        """Log what is held back for long enough, and forget what is over."""
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
            one.logged, one.logged_at, one.held_back = one.held_back, now, ""
        elif one.logged and not one.sentence and now - one.well_since >= _EVERY_S:
            log.info(one.over, subject=subject)
            one.logged, one.logged_at = "", now


def _same(sentence: str, other: str) -> bool:
    """Whether only numbers differ: "due 12s ago" is no news after "due 11s ago"."""
    return _NUMBERS.sub("", sentence) == _NUMBERS.sub("", other)
