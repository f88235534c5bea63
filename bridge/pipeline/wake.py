"""When to ask the store next: at the next due moment, at a hint, and once a second in any case.

No single signal is trusted. Every claim returns the next due moment. This instance reports a nearer one when it parks,
other instances by the store's hints, which may be lost. The look once a second finds what both missed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from bridge.core.clock import StoreClock

#: The longest sleep, and so the most that a lost hint can cost.
IDLE_S = 1.0
#: Sleep this much beyond the due moment, so that an imprecise clock estimate does not cost an empty look.
_MARGIN_S = 0.0001


def sleep_s(until_due: Iterable[float], since_look_s: float, pace_s: float, lead_s: float = 0.0) -> float:
    """Return the seconds to sleep, given those until each shard's next due moment and those since the last look. Pure.

    The look comes ``lead_s`` before the due moment.
    """
    until = min(until_due, default=IDLE_S) + _MARGIN_S - lead_s
    return max(min(until, IDLE_S), pace_s - since_look_s, 0.0)


def departure_s(messages_per_s: float, longest_s: float) -> float:
    """Return the seconds between two publishes at this load: none up to 1,000 messages a second. Pure.

    A publish costs the same for one message and for fifty, and each millisecond of waiting is half a millisecond of
    lateness. So they gather for a moment only, even at 10,000 messages a second.
    """
    return min(longest_s, max(0.0, (messages_per_s - 1000) / 3000 * 0.001))


def pace_s(messages_per_s: float, shortest_s: float) -> float:
    """Return the seconds between two looks at this load, from ``shortest_s`` to five times that. Pure.

    A look costs the same whether it finds one message or fifty. At 2,000 messages a second a look each millisecond
    pays. At 7,400 it would take a fifth of a core and make messages later (measured: p99 36 ms with a look every 3 ms,
    21 to 26 ms with one every 4.6 ms).
    """
    return min(5 * shortest_s, max(shortest_s, (messages_per_s - 500) / 1500 * 0.001))


def gather_ms(messages_per_s: float) -> int:
    """Return for how long a read of a log gathers at this load: 0 up to 500 messages a second, at most 10 ms. Pure.

    A read costs the same for one message and for fifty, and messages gather for longer than this before they are
    parked.
    """
    return min(10, max(0, int((messages_per_s - 500) / 200)))


class Throughput:
    """Messages a second, averaged over about a fifth of a second."""

    _OVER_S = 0.2

    def __init__(self) -> None:
        self.per_s = 0.0
        self._at_s = time.monotonic()

    def add(self, messages: int) -> float:
        """Count messages since the last call. Return the rate."""
        now_s = time.monotonic()
        took_s, self._at_s = now_s - self._at_s, now_s
        self.per_s += (messages / (took_s + 0.0001) - self.per_s) * min(1.0, took_s / self._OVER_S)
        return self.per_s


class Wake:
    """Sleeps until there is reason to ask the store, and keeps the next due moment of each shard of this instance.

    A look takes everything due within ``ahead_ms``. It comes when the first message is due in half of that, so that
    one look serves the other half, too.
    """

    def __init__(self, clock: StoreClock, ahead_ms: int = 0) -> None:
        self._clock = clock
        self.ahead_ms = ahead_ms
        self._lead_ms = ahead_ms / 2
        self._event = asyncio.Event()
        self._nudged = False
        self._room = asyncio.Event()
        self._next_due_ms: dict[int, int | None] = {}
        self._heard_since: dict[int, int] = {}
        self._sleeping_until_ms = 0.0
        self._resting_until_s: dict[int, float] = {}

    def watch(self, shards: Iterable[int]) -> None:
        """Watch these shards from now on. New ones are asked at once."""
        known = self._next_due_ms
        self._next_due_ms = {shard: known.get(shard, 0) for shard in shards}
        self.nudge()

    def nudge(self) -> None:
        self._sleeping_until_ms = 0
        self._nudged = True
        self._event.set()

    def heard(self, shard: int, due_ms: int) -> None:
        """Take a hint that a shard has something due at this moment, perhaps earlier than what was known."""
        known = self._next_due_ms.get(shard, -1)
        if known == -1:
            return
        self._heard_since[shard] = min(due_ms, self._heard_since.get(shard, due_ms))
        if known is not None and known <= due_ms:
            return
        self._next_due_ms[shard] = due_ms
        if due_ms - self._lead_ms < self._sleeping_until_ms:
            self._event.set()

    def asking(self, shards: Iterable[int]) -> None:
        """A claim of these shards is about to be sent. It will see everything that was hinted at until now."""
        for shard in shards:
            self._heard_since.pop(shard, None)

    def learnt(self, shard: int, due_ms: int | None) -> None:
        """Take the next due moment that a claim returned.

        The claim may have missed what was hinted at since it was sent: its reply and the hint come by different
        connections, in any order.
        """
        if shard in self._next_due_ms:
            known = [moment for moment in (due_ms, self._heard_since.pop(shard, None)) if moment is not None]
            self._next_due_ms[shard] = min(known, default=None)

    def rest(self, shards: Iterable[int], seconds: float) -> None:
        """Do not ask these shards for a while."""
        self._resting_until_s |= dict.fromkeys(shards, time.monotonic() + seconds)

    def awake(self, shards: Iterable[int]) -> list[int]:
        """Return those of the shards that do not rest."""
        if not self._resting_until_s:
            return list(shards)
        now_s = time.monotonic()
        self._resting_until_s = {shard: until for shard, until in self._resting_until_s.items() if until > now_s}
        return [shard for shard in shards if shard not in self._resting_until_s]

    def due(self) -> list[int]:
        """Return the shards that are known to have something due, the most overdue first."""
        now_ms = self._clock.now_us() / 1000 + self.ahead_ms
        known = [(due_ms, shard) for shard, due_ms in self._next_due_ms.items() if due_ms is not None]
        return self.awake(shard for due_ms, shard in sorted(known) if due_ms <= now_ms)

    def known(self) -> Mapping[int, int | None]:
        return self._next_due_ms

    def room_again(self) -> None:
        """There may be room for more claims: the broker answered, or claims were settled."""
        self._room.set()

    async def wait_for_room(self) -> bool:
        """Wait for ``room_again``, for a second at most. Return whether it came."""
        self._room.clear()
        try:
            async with asyncio.timeout(IDLE_S):  # wait_for of Python 3.11 swallows a cancellation now and then
                await self._room.wait()
        except TimeoutError:
            return False
        return True

    async def sleep(self, since_look_s: float, pace_s: float) -> None:
        """Sleep until there is reason to ask the store."""
        awake = [due_ms for shard in self.awake(self._next_due_ms) if (due_ms := self._next_due_ms[shard]) is not None]
        until_due = [self._clock.seconds_until(due_ms) for due_ms in awake]
        if self._nudged:  # it may have come during the last look, which is younger than the pace
            until_due.append(0.0)
            self._nudged = False
        seconds = sleep_s(until_due, since_look_s, pace_s, self._lead_ms / 1000)
        if self._event.is_set() and since_look_s >= pace_s:
            self._event.clear()
            return
        self._event.clear()
        self._sleeping_until_ms = self._clock.now_us() / 1000 + seconds * 1000
        timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()
        self._nudged = False
