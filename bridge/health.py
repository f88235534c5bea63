"""How postdate is, in sentences: one for each thing that is wrong, none when all is well."""

from __future__ import annotations

import math
import re
import time

import structlog

log = structlog.get_logger("postdate")

WELL = "All well."
_NUMBERS = re.compile(r"[\d.]+")


class Health:
    """Collects what each part says of itself. A sentence is logged once when it comes and once when it has gone."""

    def __init__(self) -> None:
        self._troubles: dict[str, str] = {}
        self._until: dict[str, float] = {}

    def say(self, subject: str, sentence: str, for_s: float = math.inf) -> None:
        """What is wrong with ``subject``; an empty sentence means that it is well.

        ``for_s``: forget it after so long, where no part can tell that it is well again. The log then says "not seen
        again", because nothing has shown that it is well.
        """
        self._forget_old()
        before = self._troubles.get(subject, "")
        self._until[subject] = time.monotonic() + for_s
        if sentence == before:
            return
        if sentence:
            self._troubles[subject] = sentence
            if _NUMBERS.sub("", sentence) != _NUMBERS.sub("", before):  # "due 12s ago" is no news after "due 11s ago"
                log.warning("trouble", subject=subject, what=sentence)
        else:
            del self._troubles[subject]
            log.info("well again", subject=subject)

    def troubles(self) -> dict[str, str]:
        """Subject and sentence of everything that is wrong now."""
        self._forget_old()
        return dict(self._troubles)

    def sentence(self) -> str:
        """All of it, for a person."""
        return " ".join(f"{text}." for text in self.troubles().values()) or WELL

    def _forget_old(self) -> None:
        now = time.monotonic()
        for subject in [subject for subject in self._troubles if self._until[subject] < now]:
            del self._troubles[subject]
            log.info("not seen again", subject=subject)
