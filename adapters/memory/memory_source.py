"""A source in memory: a broker's queue with one consumer, or logs that can be read again from any offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from bridge.core.clock import StoreClock
from bridge.core.message import Delivery, HeaderValue, Origin
from bridge.pipeline.intake import Arrivals


class _Tag(NamedTuple):
    connection: int
    number: int


class MemorySource:
    """A ``Source`` in memory. ``prefetch`` bounds what is handed out and not accepted.

    It is stricter than a broker: accepting or dropping a delivery twice raises ``ValueError``.
    """

    def __init__(self, clock: StoreClock, prefetch: int = 2000) -> None:
        self._clock = clock
        self._prefetch = prefetch
        self._waiting: deque[Delivery] = deque()
        self._logs: dict[bytes, list[tuple[int, Delivery]]] = {}
        self._out: dict[_Tag, Delivery] = {}
        self._arrivals = Arrivals()
        self._finished: set[_Tag] = set()
        self._connection = 1
        self._number = 0
        self._stopped = False
        self._closed_routes: frozenset[str] = frozenset()
        self.accepted: list[Delivery] = []
        #: Whether acknowledgements reach the broker. If not, a lost connection delivers what was accepted again.
        self.hears = True

    # -- the broker's side ------------------------------------------------------------------------------------------

    def feed(
        self,
        payload: bytes,
        headers: Mapping[str, HeaderValue],
        route: str = "orders",
        order_key: bytes = b"",
        message_id: bytes | None = None,
        fault: str = "",
        origin: Origin | None = None,
        tombstone: bool = False,
        record_key: bytes | None = None,
    ) -> None:
        """Publish a message. With an origin it is a record of that log, with the highest offset so far."""
        digest = blake2b(order_key + b"\0" + payload, digest_size=8).digest()
        delivery = Delivery(_Tag(0, 0), route, payload, order_key, dict(headers), 0)
        delivery = replace(delivery, message_id=message_id, fault=fault, digest=digest, origin=origin)
        delivery.tombstone, delivery.record_key = tombstone, record_key
        if origin is not None:
            self._logs.setdefault(origin[0], []).append((origin[1], delivery))
        self._waiting.append(delivery)
        self._deliver()

    def lose_connection(self) -> None:
        """Break the connection and reconnect. What was not accepted is delivered again, marked if it has no origin."""
        self._take_back()
        self._deliver()

    def reopen(self) -> None:
        """End the source and start it again on the same broker. A stop is over."""
        self._stopped = False
        self.lose_connection()

    def replay(self, log: bytes, offset: int) -> None:
        """Reconnect, and read a log again from ``offset`` on, accepted or not."""
        self._take_back()
        others = [record for record in self._waiting if record.origin is None or record.origin[0] != log]
        self._waiting = deque([*(record for at, record in self._logs[log] if at >= offset), *others])
        self._deliver()

    def _take_back(self) -> None:
        again = [replace(delivery, redelivered=delivery.origin is None) for delivery in self._out.values()]
        self._waiting.extendleft(reversed(again))
        self._out.clear()
        self._arrivals.clear()
        self._connection += 1
        self._number = 0

    def left(self) -> int:
        """Return how many messages the broker still has: waiting, or handed out and not accepted."""
        return len(self._waiting) + len(self._out)

    def _deliver(self) -> None:
        kept: deque[Delivery] = deque()
        while self._waiting and len(self._out) < self._prefetch and not self._stopped:
            delivery = self._waiting.popleft()
            if delivery.route in self._closed_routes:
                kept.append(delivery)
                continue
            self._number += 1
            tag = _Tag(self._connection, self._number)
            delivery = replace(delivery, tag=tag, arrived_ms=self._clock.now_ms())
            self._out[tag] = delivery
            self._arrivals.add((delivery,))
        self._waiting.extendleft(reversed(kept))

    # -- the port ---------------------------------------------------------------------------------------------------

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        return await self._arrivals.take(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        return self._arrivals.more(messages_max, bytes_max, without)

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._finish(delivery.tag)
            if self.hears and self._out.pop(delivery.tag, None) is not None:
                self.accepted.append(delivery)
        self._deliver()

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._finish(delivery.tag)

    def _finish(self, tag: _Tag) -> None:
        if tag in self._finished:
            raise ValueError(f"delivery {tag.number} of connection {tag.connection} was accepted or dropped already")
        self._finished.add(tag)

    def alive(self, delivery: Delivery) -> bool:
        return bool(delivery.tag.connection == self._connection)

    def place(self, delivery: Delivery) -> dict[str, object]:
        if delivery.origin is None:
            return {}
        log, offset = delivery.origin
        return {"log": log.decode(), "offset": offset}

    def close_intakes(self, routes: Collection[str]) -> None:
        self._closed_routes = frozenset(routes)
        self._deliver()

    def stop(self) -> None:
        self._stopped = True

    def emptied(self) -> bool:
        return self._arrivals.empty()
