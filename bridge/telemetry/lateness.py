"""Lateness: the moment a publish was confirmed minus the due moment, by the store's clock.

Where an operator's order held the message (a pause, ``max_rate``), it counts from the end of that hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

#: Upper ends of the classes in milliseconds, each a quarter wider than the last: a percentile is exact to that.
BOUNDS_MS = tuple(round(1.25**n / 4, 3) for n in range(72))
#: Upper ends of the classes of the metric ``postdate_lateness_seconds`` and of the counts of the last days, in ms.
LATENESS_BOUNDS_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)


class Lateness:
    """Counts deliveries by lateness."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.total = 0
        self.max_ms = 0.0

    def add(self, now_ms: float, dues_ms: Iterable[int]) -> None:
        """Add deliveries confirmed at ``now_ms``, from whose moments lateness counts (Unix ms by the store's clock)."""
        counts = self.counts
        for due_ms in dues_ms:
            late = now_ms - due_ms
            counts[bisect_left(BOUNDS_MS, late)] += 1
            self.total += 1
            if late > self.max_ms:
                self.max_ms = late

    def percentile_ms(self, share: float) -> float:
        """Return the lateness in ms that ``share`` (0 to 1) of the deliveries did not exceed, to 25%; 0 for none."""
        left = share * self.total
        for bound, count in zip(BOUNDS_MS, self.counts, strict=False):
            left -= count
            if left <= 0 and self.total:
                return min(bound, self.max_ms)
        return self.max_ms
