"""The last step of the way out: claimed messages wait here for their moment, then they are published.

The store is asked a few milliseconds ahead (``pipeline.claim``), so that a call to it is not part of anyone's lateness
and one call brings more. What is claimed early is no longer cancelled or rescheduled, which is why it is only a few.
Nothing leaves before its moment: the clock that decides is the store's, at its slowest that our observations allow.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable

from bridge.core.clock import StoreClock
from bridge.core.message import Claim
from bridge.core.ports import Sink
from bridge.pipeline.alarm import Alarm

#: A sleep that nothing ends goes on for so long at most.
_IDLE_S = 1.0


class Departures:
    """Who waits, and the loop that lets them go."""

    def __init__(self, sink: Sink, clock: StoreClock) -> None:
        self._sink = sink
        self._clock = clock
        self._waiting: list[tuple[int, int, Claim]] = []
        self._count = 0
        self._event = asyncio.Event()
        self._left_at = 0.0
        #: Seconds between two departures at least, so that what is due close together leaves together.
        self.pace_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, claims: Iterable[Claim]) -> None:
        """These wait from now on; among equal moments the order of adding is kept."""
        for claim in claims:
            self._count += 1
            heapq.heappush(self._waiting, (claim.due_ms, self._count, claim))
        self._event.set()

    def answered(self) -> None:
        """The sink may have room again."""
        if self._waiting:
            self._event.set()

    def go(self) -> list[Claim]:
        """Publish what is due and has room. Returns the claims that were not, for their lease has ended meanwhile."""
        waiting = self._waiting
        if not waiting:
            return []
        room, room_bytes = self._sink.room()
        now_ms = self._clock.surely_us() / 1000
        now_s = self._left_at = time.monotonic()
        ready: list[Claim] = []
        late: list[Claim] = []
        while waiting and waiting[0][0] <= now_ms and len(ready) < room and room_bytes > 0:
            claim = heapq.heappop(waiting)[2]
            if now_s < claim.lease_ends:
                ready.append(claim)
                room_bytes -= len(claim.payload)
            else:
                late.append(claim)
        if ready:
            self._sink.publish(ready)
        return late

    def clear(self) -> None:
        """Nobody leaves any more."""
        self._waiting.clear()

    async def sleep(self, alarm: Alarm) -> None:
        """Until there is something to publish. ``alarm`` calls ``wake``."""
        while (seconds := self._until_next_s()) > 0:
            self._event.clear()
            alarm.set(seconds)
            await self._event.wait()

    def wake(self) -> None:
        """Look whether there is something to publish."""
        self._event.set()

    def _until_next_s(self) -> float:
        if not self._waiting or min(self._sink.room()) <= 0:
            return _IDLE_S
        until_due_s = (self._waiting[0][0] * 1000 - self._clock.surely_us()) / 1e6
        return max(until_due_s, self._left_at + self.pace_s - time.monotonic())
