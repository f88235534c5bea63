"""The store's clock, as seen from this process.

The store alone decides leases (Redis ``TIME``, inside the scripts). This process estimates its clock to stamp arrivals,
to claim in time, and to publish at the due moment. Where the estimate is uncertain, it errs towards late.
"""

from __future__ import annotations

import time
from collections import deque

#: A stamp may be too early by this much.
_STAMP_ERROR_US = 500.0
#: A quartz clock drifts by less than this many microseconds a second. An observation is used for the window.
_DRIFT_US = 50.0
_WINDOW_S = 20.0
#: A larger difference is a step of the store's clock.
JUMP_US = 500_000
#: A machine's clock that differs from the store's by more (s) is reported. The alert PostdateClockOffset has it, too.
CLOCK_OFF_S = 1.0


class StoreClock:
    """Estimates the store's clock from replies that carry it. The quickest reply of the last seconds is the best.

    A new reply that contradicts the estimate (the store's clock stepped, or another server took over) replaces it at
    once.
    """

    def __init__(self) -> None:
        # Best first. An older reply that is no better than a newer one can never be the best again.
        self._samples: deque[tuple[float, float, float, float]] = deque()
        self._offset_us = self._floor_us = self._stamp_us = time.time() * 1e6 - time.monotonic() * 1e6
        self._stamped_ms = 0

    def observe(self, sent_s: float, received_s: float, store_us: int) -> float:
        """Take one reply: when it was asked for, when it came (monotonic seconds), and the store's clock in it.

        Return by how many microseconds the clock stepped since the last reply; 0 for less than ``JUMP_US``.
        """
        stepped_us = 0.0
        earliest, latest = store_us - received_s * 1e6, store_us - sent_s * 1e6
        if self._samples and not earliest - 1000 <= self._offset_us <= latest + 1000:
            step = (earliest + latest) / 2 - self._offset_us
            # A slow reply, this one or the one before, does not tell when the store read its clock.
            unsure = (latest - earliest) / 2 + self._samples[0][2] * 5e5
            self._samples.clear()
            if abs(step) - unsure > JUMP_US:
                stepped_us = step
        samples = self._samples
        took_s = received_s - sent_s
        # The error of each sample grows with its age at the same rate, so their order never changes.
        badness = took_s * 5e5 - received_s * _DRIFT_US
        while samples and samples[-1][0] >= badness:
            samples.pop()
        samples.append((badness, received_s, took_s, (earliest + latest) / 2))
        while samples[0][1] < received_s - _WINDOW_S:
            samples.popleft()
        _, seen_s, took_s, self._offset_us = samples[0]
        error_us = took_s * 5e5 + (received_s - seen_s) * _DRIFT_US
        # The store read its clock before this process read the reply. The next observation comes within a second.
        self._floor_us = self._offset_us - error_us - _DRIFT_US
        self._stamp_us = self._offset_us + max(0.0, error_us - _STAMP_ERROR_US)
        return stepped_us

    def now_us(self) -> float:
        return time.monotonic() * 1e6 + self._offset_us

    def offset_s(self) -> float:
        """Return the store's clock minus this machine's."""
        return self.now_us() / 1e6 - time.time()

    def surely_us(self) -> float:
        """Return the least that the store's clock shows. A message due at this moment or before is not early."""
        return time.monotonic() * 1e6 + self._floor_us

    def now_ms(self) -> int:
        """Return Unix milliseconds by the store's clock, rounded to the nearest.

        Arrivals are stamped with this, so a due moment may be half a millisecond before arrival plus delay. A message
        needs longer than that from the producer to here, so nothing is delivered before publish plus delay. Rounding
        up would only add half a millisecond of lateness. Where the estimate may be off by more, as after an outage or
        on a busy machine, the late side of it is used.

        A better estimate may be lower. It does not set this back: messages that are due on arrival, or have the same
        delay, leave in the order in which they came. A step of the store's clock does.
        """
        now_ms = round((self.now_us() + self._stamp_us - self._offset_us) / 1000)
        if now_ms < self._stamped_ms - JUMP_US // 1000 or now_ms > self._stamped_ms:
            self._stamped_ms = now_ms
        return self._stamped_ms

    def seconds_until(self, due_ms: int) -> float:
        """Return the seconds until a moment of the store's clock; negative when it has passed."""
        return (due_ms * 1000 - self.now_us()) / 1e6
