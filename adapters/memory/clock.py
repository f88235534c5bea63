"""A store's clock that stands still until somebody moves it."""

from __future__ import annotations

from bridge.core.clock import StoreClock

#: Some moment in 2027, so that ids and envelopes look as they do in earnest.
START_MS = 1_800_000_000_000


class ManualClock(StoreClock):
    """Stands for the store's clock and for what every process believes it to be: the two never differ."""

    def __init__(self, now_ms: int = START_MS) -> None:
        super().__init__()
        self._now_us = now_ms * 1000.0

    def advance(self, ms: float) -> None:
        """Let time pass; a negative number is a clock that steps back."""
        self._now_us += ms * 1000

    def now_us(self) -> float:
        """See ``StoreClock.now_us``."""
        return self._now_us

    def surely_us(self) -> float:
        """See ``StoreClock.surely_us``."""
        return self._now_us

    def observe(self, sent_s: float, received_s: float, store_us: int) -> None:
        """There is nothing to estimate."""
