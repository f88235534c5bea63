"""How long a message waits after each failure of its consumer, and how moments are spread. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from bridge.delay.duration import read_duration_ms, write_duration

_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?%")
#: Each wait is at most a year, so a schedule of ``attempts`` waits stays below every limit of a moment.
WAIT_MAX_MS = 365 * 86_400_000


class Jitter(NamedTuple):
    """By how much a moment may be postponed: a share of the delay, or up to a number of milliseconds.

    It only postpones, so that nothing is early.
    """

    share: float = 0.0
    most_ms: int = 0

    def extra_ms(self, delay_ms: int, spread: float) -> int:
        """Return by how many milliseconds to postpone. ``spread``, 0 to 1, is the caller's number for this message."""
        return int((max(0, delay_ms) * self.share + self.most_ms) * spread)


NO_JITTER = Jitter()


def read_jitter(text: str) -> Jitter:
    """Read a share ("20%") or a duration ("30s"); "" is none. Raises ValueError for other text."""
    if not text:
        return NO_JITTER
    if found := _SHARE.fullmatch(text.strip()):
        share = float(found[1]) / 100
        if share > 1:
            raise ValueError("more than 100%")
        return Jitter(share=share)
    if text.strip().isdecimal():
        raise ValueError("a number without a unit")
    return Jitter(most_ms=read_duration_ms(text.strip()))


@cache
def growing_waits_ms(first_ms: int, factor: float, max_ms: int, attempts: int) -> tuple[int, ...]:
    """Return ``attempts`` waits. The first one is ``first_ms``, each next one is longer by ``factor``, up to
    ``max_ms``."""
    waits, wait = [], float(first_ms)
    for _ in range(attempts):
        waits.append(int(min(wait, max_ms)))
        wait = min(wait * factor, float(max_ms))
    return tuple(waits)


@dataclass(frozen=True)
class RetrySchedule:
    """The waits (ms) after the first, second, ... failure.

    ``keeps_dead``: a message that failed once more becomes a dead letter. If false, it leaves at once for another
    destination. ``consumers`` describes in a reason what failed. ``hold``: a message waits at least as long as an
    earlier one with the same key.
    """

    waits_ms: Sequence[int]
    jitter: Jitter = NO_JITTER
    keeps_dead: bool = True
    consumers: str = "the consumers"
    hold: bool = False

    def wait_ms(self, attempt: int, spread: float) -> int | None:
        """Return the wait (ms) after failure number ``attempt`` (from 1); None if the schedule has no more.

        ``spread`` as in ``Jitter.extra_ms``.
        """
        if attempt > len(self.waits_ms):
            return None
        wait = self.waits_ms[max(0, attempt - 1)]
        return wait + self.jitter.extra_ms(wait, spread)

    def write(self) -> str:
        return ", ".join(write_duration(wait_ms) for wait_ms in self.waits_ms)
