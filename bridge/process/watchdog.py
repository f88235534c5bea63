"""Look once a second for what nothing else would report: overdue messages, a stuck loop, a store in trouble.

The watchdog relies on two facts only: the next due moments, and when the claim loop last made a pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.delay.duration import write_duration
from bridge.pipeline.claim import Claimer
from bridge.pipeline.wake import Wake
from bridge.telemetry.health import Health

_EVERY_S = 1.0
#: Lateness beyond this is trouble and no longer load.
OVERDUE_S = 10.0
#: A loop without a pass for this time is stuck: it makes one a second even when there is nothing to do.
STUCK_S = 15.0


def oldest_overdue_s(now_ms: float, next_dues_ms: Iterable[int | None]) -> float:
    """Return how long the earliest of these moments has passed, in seconds; 0 when none has. Pure."""
    return max((max(0.0, (now_ms - due_ms) / 1000) for due_ms in next_dues_ms if due_ms), default=0.0)


class Watch:
    """Reports overdue messages, a stuck claim loop, and steps of the store's clock."""

    def __init__(self, clock: StoreClock, wake: Wake, claimer: Claimer, health: Health) -> None:
        self._clock = clock
        self._wake = wake
        self._claimer = claimer
        self._health = health
        self._stopping = False
        self.overdue_s = 0.0

    def stop(self) -> None:
        """Report no stuck loop any more: the claim loop ends."""
        self._stopping = True

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.once()
            await asyncio.sleep(_EVERY_S)

    def once(self) -> None:
        """One pass."""
        self.overdue_s = oldest_overdue_s(self._clock.now_us() / 1000, self._wake.known().values())
        overdue = f"the oldest overdue message was due {write_duration(int(self.overdue_s) * 1000)} ago"
        self._health.say("overdue", overdue if self.overdue_s > OVERDUE_S else "", cause="overdue")
        still_s = time.monotonic() - self._claimer.passed_at
        stuck = still_s > STUCK_S and not self._stopping
        self._health.say("claim", f"the claim loop has not run for {still_s:.0f} s" if stuck else "", cause="stuck")
        if self._clock.jumped_us:
            jump_s, self._clock.jumped_us = self._clock.jumped_us / 1e6, 0.0
            self._health.say("clock", f"the store's clock stepped by {jump_s:+.1f} s", cause="step")
            self._health.say("clock", "")


class StoreWatch:
    """Reports what the store says about itself: emptied, nearly full, full of dead letters."""

    def __init__(self, look: Callable[[], Awaitable[Mapping[str, str]]], health: Health) -> None:
        """``look`` returns a sentence for each subject; "" for one without trouble."""
        self._look = look
        self._health = health

    async def run(self) -> None:
        """Look until cancelled. Raises ``StoreUnfit`` when the store has become one that must not be used."""
        while True:
            await self.once()
            await asyncio.sleep(_EVERY_S)

    async def once(self) -> None:
        """One pass. The loops that use the store report one that cannot be reached."""
        try:
            found = await self._look()
        except StoreUnavailable:
            return
        for subject, sentence in found.items():
            self._health.say(subject, sentence, cause=subject)  # they count messages and memory
