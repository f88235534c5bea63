"""What a source has taken from its broker and the way in has not taken from it: the middle of every ``Source``.

Routes take turns, so that a flood on one delays no other. Within a route the order is that of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from bridge.core.message import Delivery


class Arrivals:
    """Deliveries by route, each route's in the order in which they came. The bounds are the source's, which stops
    reading when it is full."""

    def __init__(self) -> None:
        #: No list here is empty. The first route is the next to be first in a batch.
        self._waiting: dict[str, list[Delivery]] = {}
        self._was_first = ""
        self._there = asyncio.Event()

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """These came last."""
        waiting = self._waiting
        for delivery in deliveries:
            if delivery.route in waiting:
                waiting[delivery.route].append(delivery)
            else:
                waiting[delivery.route] = [delivery]
        if waiting:
            self._there.set()

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """See ``bridge.core.ports.Source.take``."""
        while not self._waiting:
            self._there.clear()
            await self._there.wait()
        return self.more(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """See ``bridge.core.ports.Source.more``.

        Each route gets an equal share; what one leaves of its messages, the others get. A delivery larger than
        ``bytes_max`` is taken alone, when its route is the first in the batch.
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
        """The routes in the order in which they may take; one that was first the last time is the last."""
        routes = [route for route in self._waiting if route not in without]
        if len(routes) > 1 and routes[0] == self._was_first:
            self._waiting[routes[0]] = self._waiting.pop(routes[0])
            routes.append(routes.pop(0))
        if routes:
            self._was_first = routes[0]
        return routes

    def _fitting(self, route: str, share: int, bytes_share: int, room: int, first: bool) -> tuple[int, int]:
        """How many of a route may be taken, and their bytes: one at least where there is room for it."""
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
        """Whether nothing waits to be taken."""
        return not self._waiting

    def remove(self, is_gone: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out those that nobody would hear accepted any more; returns them."""
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
        """Take out all; returns them."""
        gone = [delivery for waiting in self._waiting.values() for delivery in waiting]
        self._waiting = {}
        return gone
