"""Publish claimed messages at their due moment, and pass the answers on.

The store is asked a few milliseconds ahead (``pipeline.claim``). So the call to the store adds no lateness, and one
call brings more messages. A message that is claimed early can no longer be cancelled or rescheduled, so it is only a
few milliseconds. Nothing is published early: the lower bound of the store's clock decides.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import Result, Sink
from bridge.pipeline.leases import Leases
from bridge.pipeline.settle import Settler
from bridge.pipeline.wake import Wake
from bridge.telemetry.metrics import Metrics

#: The longest sleep of the loop.
_IDLE_S = 1.0
#: A measured message without an answer is forgotten after this time.
_MEASURED_S = 60.0
#: A claim with a moment this far ahead of the store's clock dates from before a step back.
_STEP_MS = 1000.0
_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ITIMERSPEC = struct.Struct("@4l")


class Publisher:
    """Claims wait here for their moment; then one loop publishes them."""

    def __init__(
        self, sink: Sink[Claim], settler: Settler, leases: Leases, wake: Wake, clock: StoreClock, metrics: Metrics
    ) -> None:
        self._sink = sink
        self._settler = settler
        self._leases = leases
        self._wake = wake
        self._clock = clock
        self._metrics = metrics
        #: One message at a time is measured: the last of a batch, and when it was published.
        self._measured: tuple[Claim, float] | None = None
        #: Due moment, the id's first byte, which has the rank of a priority, and the order of adding.
        self._waiting: list[tuple[int, int, int, Claim]] = []
        self._count = 0
        self._event = asyncio.Event()
        self._published_at = 0.0
        self._stopped = False
        #: The sink had no room when it was looked at last.
        self._full = False
        #: Published and not answered yet.
        self._unanswered = 0
        self._gap_s = self._busy_gap_s = 0.0

    def unanswered(self) -> tuple[int, float, str]:
        """Return how many published messages the broker has not answered, for how long (s) the oldest has waited, and
        the route of that one."""
        sent = [claim for claim in self._leases.held() if claim.sent_s]
        if not sent:
            return 0, 0.0, ""
        oldest = min(sent, key=attrgetter("sent_s"))
        return len(sent), time.monotonic() - oldest.sent_s, oldest.route

    def late_from_ms(self) -> list[int]:
        """Return from when claims are late (Unix ms): the oldest that is not published, and those without an answer."""
        unsent = [self._waiting[0][3].late_from_ms] if self._waiting else []
        return unsent + [claim.late_from_ms for claim in self._leases.held() if claim.sent_s]

    def pace(self, gap_s: float, busy_gap_s: float) -> None:
        """Set the least number of seconds between two publishes, so that messages due close together leave together.

        ``busy_gap_s`` counts while the sink has not answered everything: a busy broker gets fewer, larger batches.
        """
        self._gap_s, self._busy_gap_s = gap_s, max(gap_s, busy_gap_s)

    def add(self, claims: Iterable[Claim]) -> None:
        """Add claims. Among equal due moments the order of adding is kept."""
        if self._stopped:  # a claim that was answered after the stop: its leases expire
            return
        for claim in claims:
            self._count += 1
            heapq.heappush(self._waiting, (claim.due_ms, claim.id[0], self._count, claim))
        self._event.set()

    def room(self) -> tuple[int, int]:
        """Return how many more messages, and bytes, may be claimed."""
        messages, size = self._sink.room()
        return messages - len(self._waiting), size

    def answered(self, results: Sequence[Result[Claim]]) -> None:
        """Take the sink's answers. An empty batch means that the sink has room again."""
        for result in results:
            result.letter.sent_s = 0.0
        self._settler.answered(results)
        if self._measured is not None:
            self._measure(self._measured, results)
        self._wake.room_again()
        self._unanswered -= len(results)
        if self._waiting and (self._full or self._unanswered <= 0):
            self._event.set()

    async def run(self) -> None:
        alarm = Alarm(self._event.set)
        try:
            while True:
                while (seconds := self._until_next_s()) > 0:
                    self._event.clear()
                    alarm.set(seconds)
                    await self._event.wait()
                with suppress(StoreUnavailable):  # the leases of what was not released expire
                    await self.once()
        finally:
            alarm.close()

    async def once(self) -> None:
        """One pass: publish what is due and has room. Claims whose lease expired go back to the store."""
        waiting = self._waiting
        if not waiting:
            return
        if not self._sink.open():
            self._settler.release([row[3] for row in waiting])  # with those that were under way, so that order stays
            waiting.clear()
            return
        room, room_bytes = self._sink.room()
        if self._stepped_back():
            await self._give_back_undue()
        now_ms = self._clock.surely_us() / 1000
        now_s = self._published_at = time.monotonic()
        published_ms = int(self._clock.now_us() // 1000)
        ready: list[Claim] = []
        late: list[Claim] = []
        while waiting and waiting[0][0] <= now_ms and len(ready) < room and room_bytes > 0:
            claim = heapq.heappop(waiting)[3]
            if now_s < claim.lease_ends:
                claim.published_ms, claim.sent_s = published_ms, now_s
                ready.append(claim)
                room_bytes -= len(claim.payload)
            else:
                late.append(claim)
        if ready:
            if self._measured is None or now_s - self._measured[1] > _MEASURED_S:
                self._measured = ready[-1], now_s
            self._unanswered += len(ready)
            self._sink.publish(ready)
        if late:
            # This process was suspended for longer than the lease, so another instance may have these already.
            await self._leases.give_back(late, "leases expired before publishing")

    def _stepped_back(self) -> bool:
        """Return whether the next message was claimed before the store's clock stepped back."""
        return bool(self._waiting) and self._waiting[0][3].claimed_ms > self._clock.now_us() / 1000 + _STEP_MS

    async def _give_back_undue(self) -> None:
        """Release claims that a step of the store's clock made due much later. They would take the room of others."""
        soon_ms = self._clock.now_us() / 1000 + _STEP_MS
        undue = [row[3] for row in self._waiting if row[0] > soon_ms]
        self._waiting[:] = [row for row in self._waiting if row[0] <= soon_ms]
        heapq.heapify(self._waiting)
        if undue:
            await self._leases.give_back(undue, "the store's clock stepped back before publishing")

    def _measure(self, measured: tuple[Claim, float], results: Sequence[Result[Claim]]) -> None:
        claim, published_s = measured
        if any(result.letter is claim for result in results):
            self._metrics.publish_s.add(time.monotonic() - published_s)
            self._measured = None

    def stop(self) -> None:
        """Publish nothing more. The claims that wait are still held, so ``Leases.leave`` gives them back."""
        self._stopped = True
        self._waiting.clear()

    def _until_next_s(self) -> float:
        self._full = min(self._sink.room()) <= 0
        if self._waiting and not self._sink.open():
            return 0.0
        if not self._waiting or self._full:
            return _IDLE_S
        if self._stepped_back() and self._waiting[0][0] > self._clock.now_us() / 1000 + _STEP_MS:
            return 0.0
        until_due_s = (self._waiting[0][0] * 1000 - self._clock.surely_us()) / 1e6
        gap_s = self._busy_gap_s if self._unanswered > 0 else self._gap_s
        return max(until_due_s, self._published_at + gap_s - time.monotonic())


class Alarm:
    """A timer that is exact to a tenth of a millisecond. It calls ``ring`` once after each ``set``.

    asyncio and uvloop count in whole milliseconds. A sleep of 1.3 ms ends after 1.1 or 2.1 ms (measured, uvloop 0.22
    and asyncio of Python 3.11). That would add half a millisecond to every message. Linux's timerfd ends it after
    1.36 ms. Python has it as ``os.timerfd_create`` from 3.13 on.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._spec = ctypes.create_string_buffer(_ITIMERSPEC.size)
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._expired)

    def set(self, seconds: float) -> None:
        """Ring after ``seconds`` (more than 0), and not at the moment set before."""
        if self._file >= 0:
            whole, rest = divmod(max(1, int(seconds * 1e9)), 1_000_000_000)
            _ITIMERSPEC.pack_into(self._spec, 0, 0, 0, whole, rest)
            self._libc.timerfd_settime(self._file, 0, self._spec, None)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._ring)

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _expired(self) -> None:
        with suppress(BlockingIOError):  # it was set again between ringing and now
            os.read(self._file, 8)
        self._ring()
