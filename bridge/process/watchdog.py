"""The watchdog: sees an overdue message that nobody delivers, and a loop that has stopped turning, and says so.

It trusts nothing that the loops say of themselves but the next due moments and when they last made a pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from bridge.core.clock import StoreClock
from bridge.delay.duration import write_duration
from bridge.pipeline.claim import Dispatcher
from bridge.pipeline.wake import Wake
from bridge.telemetry.health import Health

#: Lateness beyond this is no longer load but trouble.
OVERDUE_S = 10.0
#: A loop that made no pass for so long is stuck: it passes once a second even when there is nothing to do.
STUCK_S = 15.0


def oldest_overdue_s(now_ms: float, next_dues_ms: Iterable[int | None]) -> float:
    """Pure: how long the most overdue of these moments has passed, in seconds; 0 when none has."""
    return max((max(0.0, (now_ms - due_ms) / 1000) for due_ms in next_dues_ms if due_ms), default=0.0)


class Watch:
    """Looks once a second."""

    def __init__(self, clock: StoreClock, wake: Wake, dispatcher: Dispatcher, health: Health) -> None:
        self._clock = clock
        self._wake = wake
        self._dispatcher = dispatcher
        self._health = health
        self.overdue_s = 0.0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(1)

    def look(self) -> None:
        """One look."""
        self.overdue_s = oldest_overdue_s(self._clock.now_us() / 1000, self._wake.known().values())
        late = write_duration(int(self.overdue_s) * 1000)
        self._health.say("overdue", f"messages wait that were due {late} ago" if self.overdue_s > OVERDUE_S else "")
        still_s = time.monotonic() - self._dispatcher.passed_at
        stuck = still_s > STUCK_S and not self._dispatcher.stopping
        self._health.say("dispatch", f"the delivery loop has made no pass for {still_s:.0f} s" if stuck else "")
        if self._clock.jumped_us:
            jump_s, self._clock.jumped_us = self._clock.jumped_us / 1e6, 0.0
            self._health.say("clock", f"the store's clock stepped by {jump_s:+.1f} s")
            self._health.say("clock", "")
