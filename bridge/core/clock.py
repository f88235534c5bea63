"""The store's clock, as seen from this process.

Leases are decided by the store alone (Redis ``TIME``, inside the scripts). This process needs to know it to stamp an
arrival, to look in time and to let a message go at its moment; where it does not know it well, it errs towards late.
"""

from __future__ import annotations

import time
from collections import deque

#: What a stamp may be too early by.
_STAMP_ERROR_US = 500.0
#: Quartz drifts by less than so many microseconds a second, and an observation is trusted for so long.
_DRIFT_US = 50.0
_WINDOW_S = 20.0
#: A step of the store's clock larger than this is worth a word in the log.
JUMP_US = 500_000


class StoreClock:
    """Estimates the store's clock from replies that carry it; the quickest reply of the last seconds is the best one.

    An estimate that a new reply contradicts (the store's clock stepped, or another server took over) is thrown away
    at once. ``jumped_us`` holds the last such step until somebody reads it.
    """

    def __init__(self) -> None:
        # Best first: of two replies, an older one that is no better will never be the best again.
        self._samples: deque[tuple[float, float, float, float]] = deque()
        self._offset_us = self._floor_us = self._stamp_us = time.time() * 1e6 - time.monotonic() * 1e6
        self.jumped_us = 0.0

    def observe(self, sent_s: float, received_s: float, store_us: int) -> None:
        """One reply: when it was asked for and when it came (monotonic seconds), and the store's clock in it."""
        earliest, latest = store_us - received_s * 1e6, store_us - sent_s * 1e6
        if self._samples and not earliest - 1000 <= self._offset_us <= latest + 1000:
            step = (earliest + latest) / 2 - self._offset_us
            # A slow reply says little of the moment at which the store looked, neither this one nor the one before.
            unsure = (latest - earliest) / 2 + self._samples[0][2] * 5e5
            self._samples.clear()
            if abs(step) - unsure > JUMP_US:
                self.jumped_us = step
        samples = self._samples
        took_s = received_s - sent_s
        # Its error grows with its age, for all of them alike, so this order never changes.
        badness = took_s * 5e5 - received_s * _DRIFT_US
        while samples and samples[-1][0] >= badness:
            samples.pop()
        samples.append((badness, received_s, took_s, (earliest + latest) / 2))
        while samples[0][1] < received_s - _WINDOW_S:
            samples.popleft()
        _, seen_s, took_s, self._offset_us = samples[0]
        error_us = took_s * 5e5 + (received_s - seen_s) * _DRIFT_US
        # The store read its clock before we read its reply, at the latest; a second passes until the next observation.
        self._floor_us = self._offset_us - error_us - _DRIFT_US
        self._stamp_us = self._offset_us + max(0.0, error_us - _STAMP_ERROR_US)

    def now_us(self) -> float:
        """Unix microseconds by the store's clock."""
        return time.monotonic() * 1e6 + self._offset_us

    def surely_us(self) -> float:
        """What the store's clock shows at least: no message whose moment is not later than this is early."""
        return time.monotonic() * 1e6 + self._floor_us

    def now_ms(self) -> int:
        """Unix milliseconds by the store's clock, to the nearest.

        Arrivals are stamped with this, so a due moment may be half a millisecond before arrival plus delay. The way
        from the producer to here takes longer than that, so nothing comes before publish plus delay; rounding up
        instead would make everything half a millisecond later for nothing. Where the estimate may be off by more, as
        after an outage or on a machine that is too busy for a quick reply, it is the late side that is stamped.
        """
        return round((self.now_us() + self._stamp_us - self._offset_us) / 1000)

    def seconds_until(self, due_ms: int) -> float:
        """Seconds from now to a moment of the store's clock; negative when it has passed."""
        return (due_ms * 1000 - self.now_us()) / 1e6
