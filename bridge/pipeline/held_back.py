"""Deliveries that a source has and nobody may have yet: each arrives at its moment, and none overtakes another.

For a source that reads what has to wait. It reads a little ahead, so that the moment does not wait for the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import itemgetter

from bridge.core.clock import StoreClock
from bridge.core.message import Delivery
from bridge.pipeline.intake import Arrivals

#: A timer is set for so long at most, because the clock that counts may be set meanwhile.
_LONGEST_S = 1.0
#: asyncio's timers come up to a millisecond too soon.
_SHORTEST_S = 0.001


class HeldBack(Arrivals):
    """``due_ms`` says when a delivery may arrive (Unix ms). Those of one ``order_key`` arrive in the order in which
    they were added: who comes behind a later one waits for it."""

    def __init__(self, clock: StoreClock, due_ms: Callable[[Delivery], int]) -> None:
        super().__init__()
        self._clock = clock
        self._due_ms = due_ms
        self._held: list[tuple[int, int, Delivery]] = []
        self._last: dict[bytes, int] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """These came last."""
        last, held = self._last, self._held
        for delivery in deliveries:
            due_ms = self._due_ms(delivery)
            before_ms = last.get(delivery.order_key, due_ms)
            last[delivery.order_key] = due_ms = max(before_ms, due_ms)
            self._number += 1
            heappush(held, (due_ms, self._number, delivery))
        self._release()

    def remove(self, is_gone: Callable[[Delivery], bool]) -> list[Delivery]:
        """See ``Arrivals.remove``."""
        waiting = [delivery for _, _, delivery in sorted(self._held, key=itemgetter(1))]
        gone = [delivery for delivery in waiting if is_gone(delivery)]
        if gone:  # the others wait for them no longer
            self._held, self._last = [], {}
            self.add(delivery for delivery in waiting if not is_gone(delivery))
        return gone + super().remove(is_gone)

    def clear(self) -> list[Delivery]:
        """See ``Arrivals.clear``."""
        return self.remove(lambda _: True)

    def _release(self) -> None:
        """Let those arrive whose moment has come, and wait for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, now_us = self._held, self._clock.surely_us()
        ready = []
        while held and held[0][0] * 1000 <= now_us:
            ready.append(heappop(held)[2])
        if ready:
            super().add(ready)
        if held:
            wait_s = min(_LONGEST_S, max(_SHORTEST_S, self._clock.seconds_until(held[0][0])))
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._release)
        else:
            self._last.clear()
