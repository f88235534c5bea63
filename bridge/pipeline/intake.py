"""The buffer in every ``Source``: deliveries that came from the broker and were not taken for parking yet.

Routes take turns, so that a flood on one delays no other. A route's deliveries keep the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from heapq import heappop, heappush
from operator import itemgetter

from bridge.core.clock import StoreClock
from bridge.core.message import Delivery

#: The longest timer, because the store's clock may step meanwhile.
_LONGEST_S = 1.0
#: asyncio's timers expire up to a millisecond too early.
_SHORTEST_S = 0.001


class Arrivals:
    """Deliveries by route, in the order of arrival. The source bounds them: it stops reading when it is full."""

    def __init__(self) -> None:
        #: No list here is empty. The first route is the next to be first in a batch.
        self._waiting: dict[str, list[Delivery]] = {}
        self._was_first = ""
        self._there = asyncio.Event()

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Add deliveries at the end."""
        waiting = self._waiting
        for delivery in deliveries:
            if delivery.route in waiting:
                waiting[delivery.route].append(delivery)
            else:
                waiting[delivery.route] = [delivery]
        if waiting:
            self._there.set()

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """Wait for deliveries, and return at least one (``Source.take``)."""
        while not self._waiting:
            self._there.clear()
            await self._there.wait()
        return self.more(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """Return the deliveries that are there, except of the routes ``without`` (``Source.more``).

        Each route gets an equal share. What one does not use goes to the others. A delivery larger than ``bytes_max``
        is taken alone, when its route is the first in the batch.
        """
        routes = self._in_turn(without)
        batch: list[Delivery] = []
        size = 0
        while routes and len(batch) < messages_max:
            share = max(1, (messages_max - len(batch)) // len(routes))
            bytes_share = (bytes_max - size) // len(routes)
            more: list[str] = []
            for route in routes:
                count, taken_bytes = self._fitting(route, share, bytes_share, bytes_max - size, not batch)
                batch += self._cut(route, count)
                size += taken_bytes
                if count == share and route in self._waiting:
                    more.append(route)
                if len(batch) >= messages_max:
                    break
            routes = more
        return batch

    def _in_turn(self, without: Collection[str]) -> list[str]:
        """Return the routes in their turn. The one that was first the last time is the last now."""
        routes = [route for route in self._waiting if route not in without]
        if len(routes) > 1 and routes[0] == self._was_first:
            self._waiting[routes[0]] = self._waiting.pop(routes[0])
            routes.append(routes.pop(0))
        if routes:
            self._was_first = routes[0]
        return routes

    def _fitting(self, route: str, share: int, bytes_share: int, room: int, first: bool) -> tuple[int, int]:
        """Return how many of a route may be taken, and their bytes: at least one if it has room."""
        count = size = 0
        for delivery in self._waiting[route]:
            bytes_then = size + len(delivery.payload)
            if count == share or (bytes_then > (min(bytes_share, room) if count else room) and (count or not first)):
                break
            count, size = count + 1, bytes_then
        return count, size

    def _cut(self, route: str, count: int) -> list[Delivery]:
        waiting = self._waiting[route]
        if count == len(waiting):
            return self._waiting.pop(route)
        taken = waiting[:count]
        del waiting[:count]
        return taken

    def empty(self) -> bool:
        return not self._waiting

    def remove(self, is_gone: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return deliveries that can no longer be acknowledged."""
        gone: list[Delivery] = []
        for route, waiting in tuple(self._waiting.items()):
            kept = [delivery for delivery in waiting if not is_gone(delivery)]
            if len(kept) == len(waiting):
                continue
            gone += (delivery for delivery in waiting if is_gone(delivery))
            if kept:
                self._waiting[route] = kept
            else:
                del self._waiting[route]
        return gone

    def clear(self) -> list[Delivery]:
        """Remove and return all."""
        gone = [delivery for waiting in self._waiting.values() for delivery in waiting]
        self._waiting = {}
        return gone


class HeldBack(Arrivals):
    """Arrivals for a source that reads what has to wait: each delivery arrives at its moment.

    Such a source reads a little ahead, so that the moment does not wait for the network. ``due_ms`` says when a
    delivery may arrive (Unix ms). Those of one ``order_key`` keep their order: one behind a later moment waits for it.
    """

    def __init__(self, clock: StoreClock, due_ms: Callable[[Delivery], int]) -> None:
        super().__init__()
        self._clock = clock
        self._due_ms = due_ms
        self._held: list[tuple[int, int, Delivery]] = []
        self._last: dict[bytes, int] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Hold deliveries back until their moment."""
        last, held = self._last, self._held
        for delivery in deliveries:
            due_ms = self._due_ms(delivery)
            before_ms = last.get(delivery.order_key, due_ms)
            last[delivery.order_key] = due_ms = max(before_ms, due_ms)
            self._number += 1
            heappush(held, (due_ms, self._number, delivery))
        self._release()

    def remove(self, is_gone: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return deliveries that can no longer be acknowledged."""
        waiting = [delivery for _, _, delivery in sorted(self._held, key=itemgetter(1))]
        gone = [delivery for delivery in waiting if is_gone(delivery)]
        if gone:  # the others do not wait for these any more
            self._held, self._last = [], {}
            self.add(delivery for delivery in waiting if not is_gone(delivery))
        return gone + super().remove(is_gone)

    def clear(self) -> list[Delivery]:
        """Remove and return all."""
        return self.remove(lambda _: True)

    def _release(self) -> None:
        """Let deliveries arrive whose moment has come, and set a timer for the next."""
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
