"""Deliveries of a source that are not accepted or dropped yet: their bounds, and each route's share of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bridge.core.message import Delivery


class Held:
    """Counts deliveries. ``routes`` is how many the source serves."""

    def __init__(self, messages_max: int, bytes_max: int, routes: int) -> None:
        self.messages = 0
        self._bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._alone = routes == 1
        self._of_route: Counter[str] = Counter()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """These were handed over."""
        self.messages += len(deliveries)
        self._bytes += sum(len(delivery.payload) for delivery in deliveries)
        if not self._alone:
            self._of_route.update(delivery.route for delivery in deliveries)

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        """These were accepted or dropped."""
        self.messages -= len(deliveries)
        self._bytes -= sum(len(delivery.payload) for delivery in deliveries)
        if not self._alone:
            self._of_route.subtract(delivery.route for delivery in deliveries)

    def full(self) -> bool:
        """Nothing more may be handed over."""
        return self.messages >= self._messages_max or self._bytes >= self._bytes_max

    def half_empty(self) -> bool:
        """There is so much room again that it is worth going on."""
        return self.messages <= self._messages_max // 2 and self._bytes <= self._bytes_max // 2

    def room(self) -> int:
        """How many messages may still be handed over."""
        return self._messages_max - self.messages

    def crowded(self) -> set[str]:
        """The routes that hold their share of the messages. There is always a share left for one more route, so that a
        flood on one delays no other."""
        held = {route: count for route, count in self._of_route.items() if count > 0}
        return {route for route, count in held.items() if count >= self._messages_max // (len(held) + 1)}
