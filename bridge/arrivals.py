"""What a source has taken from its broker and the way in has not taken from it: the middle of every ``Source``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bridge.message import Delivery


class Arrivals:
    """Deliveries in the order in which they came. The bounds are the source's, which stops reading when it is full."""

    def __init__(self) -> None:
        self._waiting: list[Delivery] = []
        self._there = asyncio.Event()

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """These came last."""
        self._waiting += deliveries
        if self._waiting:
            self._there.set()

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """See ``bridge.ports.Source.take``."""
        while not self._waiting:
            self._there.clear()
            await self._there.wait()
        return self.more(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """See ``bridge.ports.Source.more``."""
        waiting, size, taken = self._waiting, 0, 0
        for delivery in waiting:
            size += len(delivery.payload)
            if taken == messages_max or (taken and size > bytes_max):
                break
            taken += 1
        batch = waiting[:taken]
        del waiting[:taken]
        return batch

    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._waiting

    def remove(self, is_gone: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out those that nobody would hear accepted any more; returns them."""
        gone = [delivery for delivery in self._waiting if is_gone(delivery)]
        if gone:
            self._waiting = [delivery for delivery in self._waiting if not is_gone(delivery)]
        return gone

    def clear(self) -> list[Delivery]:
        """Take out all; returns them."""
        gone, self._waiting = self._waiting, []
        return gone
