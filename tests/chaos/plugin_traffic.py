"""Traffic over exchanges of the delayed-message plugin, of each underlying type: producers, consumers, their book."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import pika
from pika.exceptions import AMQPError, ChannelClosed

from tests.chaos.verdict import SLACK_S
from tests.delay_line import blocking

PLUGIN = "x-delayed-message"
#: By underlying type: the bindings of the queue, and a matching routing key for the number of a message.
BINDINGS: dict[str, list[tuple[str, dict[str, Any] | None]]] = {
    "direct": [(f"key.{number}", None) for number in range(5)],
    "topic": [("key.*", None)],
    "fanout": [("", None)],
    "headers": [("", {"x-match": "all", "kind": "h", "number": 7})],
}
_MORE_HEADERS = {"kind": "h", "number": 7}


@dataclass
class Book:
    """What is owed and what arrived."""

    owed: dict[bytes, float] = field(default_factory=dict)
    arrived: Counter[bytes] = field(default_factory=Counter)
    early: list[float] = field(default_factory=list)
    late_max_s: float = 0.0
    repeated: set[bytes] = field(default_factory=set)
    closed: Counter[str] = field(default_factory=Counter)

    @property
    def lost(self) -> list[bytes]:
        return [number for number in self.owed if number not in self.arrived]

    @property
    def copies(self) -> int:
        """Arrivals beyond the first, of messages that their producer sent once."""
        return sum(count - 1 for number, count in self.arrived.items() if count > 1 and number not in self.repeated)

    def __str__(self) -> str:
        again = sum(self.arrived[number] - 1 for number in self.repeated if self.arrived[number] > 1)
        return (
            f"owed {len(self.owed)}, arrived {len(self.arrived)}, lost {len(self.lost)}, early {len(self.early)}, "
            f"copies {self.copies}, late at most {self.late_max_s * 1000:.0f} ms; sent again by their producers "
            f"{len(self.repeated)} (arrived twice: {again}), channels closed {dict(self.closed)}"
        )


class PluginTraffic:
    """One producer and one queue for each underlying type."""

    def __init__(self, url: str, types: tuple[str, ...] = tuple(BINDINGS), seed: int = 7) -> None:
        self.url, self.types, self.book = url, types, Book()
        self._random = Random(seed)
        self._stop_producing, self._stop = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._numbers: Counter[str] = Counter()
        #: By type: the message that its producer sent last. It goes again when it was not confirmed.
        self._open: dict[str, tuple[bytes, float]] = {}
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._declare()
        self._spawn(self._consume)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_producing.set()
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    def _declare(self) -> None:
        with blocking(self.url) as connection:
            channel = connection.channel()
            for kind in self.types:
                channel.exchange_declare(kind_name(kind), PLUGIN, durable=True, arguments={"x-delayed-type": kind})
                channel.queue_declare(queue_of(kind), durable=True)
                for key, arguments in BINDINGS[kind]:
                    channel.queue_bind(queue_of(kind), kind_name(kind), key, arguments)

    def fill(self, count: int, delays_s: tuple[float, float]) -> None:
        """Publish ``count`` messages to each exchange and return when all are confirmed."""
        for kind in self.types:
            with blocking(self.url) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                sent = [self._publish(channel, kind, delays_s) for _ in range(count)]
            self.book.owed.update(sent)

    def produce(self, rate: float, delays_s: tuple[float, float]) -> None:
        """Publish ``rate`` messages a second over all exchanges, with confirms, until ``stop_producing``."""
        for kind in self.types:
            self._spawn(partial(self._produce, kind, rate / len(self.types), delays_s))

    def stop_producing(self) -> None:
        self._stop_producing.set()
        for thread in self._threads[1:]:
            thread.join(30)
        if self._failures:
            raise self._failures[0]

    def settle(self, deadline_s: float) -> Book:
        until = time.monotonic() + deadline_s
        while self.book.lost and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(1)
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
        if self._failures:
            raise self._failures[0]
        print(self.book)
        return self.book

    # -- threads ------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as failure:
                self._failures.append(failure)
                raise

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _produce(self, kind: str, rate: float, delays_s: tuple[float, float]) -> None:
        started, sent, open_one = time.monotonic(), 0, None
        while not self._stop_producing.is_set():
            try:
                with blocking(self.url) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while not self._stop_producing.is_set():
                        number, due = self._publish(channel, kind, delays_s, open_one)
                        self.book.owed[number] = due
                        open_one, sent = None, sent + 1
                        time.sleep(max(0.0, started + sent / rate - time.monotonic()))
            except AMQPError as error:
                reason = str(error.args[0]) if isinstance(error, ChannelClosed) else type(error).__name__
                self.book.closed[reason] += 1
                open_one = self._open[kind]
                self.book.repeated.add(open_one[0])
                time.sleep(0.01)

    def _publish(
        self, channel: Any, kind: str, delays_s: tuple[float, float], again: tuple[bytes, float] | None = None
    ) -> tuple[bytes, float]:
        """Publish one message. Return its body and due moment, which is that of its first try."""
        delay_ms = int(self._random.uniform(*delays_s) * 1000)
        if again is None:
            self._numbers[kind] += 1
            again = b"%s.%d" % (kind.encode(), self._numbers[kind]), time.time() + delay_ms / 1000
        self._open[kind] = again
        due = again[1]
        body = b"%s %.6f" % again
        headers = {"x-delay": max(1, round((due - time.time()) * 1000 + 0.5)), **_MORE_HEADERS}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish(kind_name(kind), f"key.{self._numbers[kind] % 5}", body, properties)
        return again

    def _consume(self) -> None:
        with blocking(self.url) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=500)
            for kind in self.types:
                channel.basic_consume(queue_of(kind), self._on_message)
            while not self._stop.is_set():
                connection.process_data_events(0.1)
            with suppress(AMQPError):
                channel.cancel()

    def _on_message(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        now = time.time()
        number, due = body.split()
        late_s = now - float(due)
        if late_s < -SLACK_S:
            self.book.early.append(late_s)
        self.book.late_max_s = max(self.book.late_max_s, late_s)
        self.book.arrived[number] += 1
        channel.basic_ack(method.delivery_tag)


def kind_name(kind: str) -> str:
    return f"moved.{kind}"


def queue_of(kind: str) -> str:
    return f"moved.{kind}.work"
