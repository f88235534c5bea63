"""Look once a second for what nothing else would report: overdue messages, a stuck loop, a store in trouble.

The watchdog relies on two facts only: the next due moments, and when the claim loop last made a pass.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.delay.duration import write_age
from bridge.pipeline.claim import Claimer
from bridge.pipeline.ordered import Ordered
from bridge.pipeline.publish import Publisher
from bridge.pipeline.wake import Wake
from bridge.telemetry.health import Health, overdue_for
from bridge.telemetry.subject import OVERDUE, Subject, makes_late

_EVERY_S = 1.0
#: After a look this late the process stood still, and knows nothing newer than that: the next look judges.
_STOOD_S = 5.0
#: Lateness beyond this is trouble and no longer load.
OVERDUE_S = 10.0
#: A published message without an answer counts as overdue after this time, and is trouble after the second one.
LATE_S, UNCONFIRMED_S = 1.0, 3.0
#: A loop without a pass for this time is stuck: it makes one a second even when there is nothing to do.
STUCK_S = 15.0


def oldest_overdue_s(now_ms: float, next_dues_ms: Iterable[int | None]) -> float:
    """Return how long the earliest of these moments has passed, in seconds; 0 when none has. Pure."""
    return max((max(0.0, (now_ms - due_ms) / 1000) for due_ms in next_dues_ms if due_ms), default=0.0)


class Watch:
    """Reports overdue messages and a stuck claim loop."""

    def __init__(
        self,
        clock: StoreClock,
        wake: Wake,
        claimer: Claimer,
        publisher: Publisher,
        health: Health,
        ordered: Ordered,
        broker: str,
    ) -> None:
        """``broker``: as sentences call it."""
        self._clock = clock
        self._wake = wake
        self._claimer = claimer
        self._publisher = publisher
        self._health = health
        self._ordered = ordered
        self._broker = broker
        self._stopping = False
        self._looked_at = -math.inf
        self.overdue_s = 0.0
        #: Published messages that wait for the broker's answer too long, and for how long (s).
        self.unconfirmed = 0, 0.0

    def stop(self) -> None:
        """Report no stuck loop any more: the claim loop ends."""
        self._stopping = True

    async def run(self) -> None:
        while True:
            self.once()
            await asyncio.sleep(_EVERY_S)

    def once(self) -> None:
        """One pass."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if _STOOD_S < self._looked_at - before < math.inf:
            return
        # What a resume let go counts from then on. Its shard may hide an older message of another route meanwhile.
        dues_ms = [max(ms, self._ordered.let_go_ms) for ms in self._wake.known().values() if ms]
        self.overdue_s = oldest_overdue_s(self._clock.now_us() / 1000, dues_ms + self._publisher.late_from_ms())
        count, waited_s, route = self._publisher.unanswered()
        self.unconfirmed = (count, waited_s) if waited_s > LATE_S else (0, 0.0)
        waits = (
            f"{self._broker} has not confirmed published messages: {count}, the oldest for "
            f"{write_age(waited_s * 1000)}, of route {route}"
        )
        # A destination that refuses, such as a deleted topic, has a sentence of its own: the broker is well.
        explained = Subject("route", route) in self._health.troubles()
        self._health.say(
            Subject("confirms"), waits if waited_s > UNCONFIRMED_S and not explained else "", cause="unconfirmed"
        )
        still_s = self._looked_at - self._claimer.passed_at
        stuck = still_s > STUCK_S and not self._stopping
        why = f"the claim loop has not run for {write_age(still_s * 1000)}" if stuck else ""
        self._health.say(Subject("claim"), why, cause="stuck")
        explained = any(makes_late(str(subject)) for subject in self._health.troubles())
        overdue = overdue_for(self.overdue_s * 1000) if self.overdue_s > OVERDUE_S and not explained else ""
        self._health.say(OVERDUE, overdue, cause="overdue")


class StoreWatch:
    """Reports what the store says about itself: emptied, nearly full, full of dead letters."""

    def __init__(self, look: Callable[[], Awaitable[Mapping[Subject, str]]], health: Health) -> None:
        """``look`` returns a sentence for each subject; "" for one without trouble."""
        self._look = look
        self._health = health
        self._answered_at = -math.inf

    def silent_s(self) -> float:
        """Return for how long the store has not answered: about a second while it does."""
        return time.monotonic() - self._answered_at

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
        self._answered_at = time.monotonic()
        for subject, sentence in found.items():
            self._health.say(subject, sentence, cause=subject)  # they count messages and memory
