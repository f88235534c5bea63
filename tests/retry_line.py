"""Retry routes on RabbitMQ for tests: consumers that reject, and a queue beside theirs that must get no copy."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Self

from tests.bridge_line import merged
from tests.bridge_process import Tables
from tests.delay_line import Line
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Entry

RETRY = "postdate.retry"
RETRY_NAMES = (b"x-retry-attempt", b"x-retry-reason", b"x-retry-first-failed", b"x-retry-signature")
RETRY_ID = b"x-retry-id"


class RetryLine(Line):
    """Retry routes in one bridge. Producers publish to the topic exchange ``target``, with the name of a queue's first
    word as the routing key's. ``queue`` gets a copy of everything."""

    def __init__(self, broker_url: str, store_url: str, folder: Path, settings: Tables | None = None) -> None:
        super().__init__(broker_url, store_url, folder, settings)
        self.settings["routes"] = {}
        self.failing: list[FailingConsumers] = []

    def __enter__(self) -> Self:
        self.declare_target()
        for consumers in self.failing:
            self.declare_queue(consumers.queue, consumers.arguments)
            self.bind(consumers.queue, self.target, f"{consumers.label}.#")
        self.setup()
        return self

    def add(self, label: str, arguments: Tables | None = None, **route: Any) -> FailingConsumers:
        """Add consumers and their route, before the line is entered. ``arguments``: of their queue."""
        consumers = FailingConsumers(self, label, arguments or {})
        own = {"kind": "retry", "queue": consumers.queue, "schedule": ["200ms", "400ms"]}
        self.settings["routes"][consumers.route] = merged(own, route)
        self.failing.append(consumers)
        return consumers

    def setup(self, settings: Tables | None = None) -> None:
        """Declare what ``postdate setup`` declares. The exchange that all retry routes share stays afterwards."""
        super().setup(settings)
        self._delete = [place for place in self._delete if place != ("exchange", RETRY)]

    def copies(self, body: bytes) -> int:
        """How often the queue beside got this body."""
        return [message.body for message in self.receive_until(1000, 0.2)].count(body)


class FailingConsumers:
    """The consumers of one queue."""

    def __init__(self, line: RetryLine, label: str, arguments: Tables) -> None:
        self._line = line
        self.label = label
        self.queue = f"{line.name}.{label}"
        self.route = f"{line.name}_{label}"
        self.arguments = merged({"x-dead-letter-exchange": RETRY, "x-dead-letter-routing-key": self.route}, arguments)

    def publish(self, props: bytes, body: bytes) -> bytes:
        """Send a message to the producers' exchange; return its routing key."""
        key = f"{self.label}.new".encode()
        self._line.publish(props, body, key, self._line.target)
        return key

    def next(self, deadline_s: float = 30.0) -> Message:
        """The next message of the queue, neither acknowledged nor rejected."""
        consumer = self._line._consumer(self.queue)
        for _ in range(int(deadline_s / 0.1)):
            if not consumer.messages:
                consumer.messages += consumer.events(0.1)
            if consumer.messages:
                message = consumer.messages.pop(0)
                assert isinstance(message, Message)
                return message
        raise AssertionError(f"no message came within {deadline_s:g} s: {self._line.log_tails()}")

    def reject(self, message: Message) -> None:
        """As a consumer that fails."""
        self._line._consumer(self.queue).reject(message.tag)

    def accept(self, message: Message) -> None:
        """As a consumer that succeeds."""
        self._line._consumer(self.queue).acknowledge(message.tag)

    def crash(self) -> None:
        """As a consumer that dies with its unacknowledged messages."""
        self._line._consumers.pop(self.queue).close()

    def leave(self) -> None:
        """No consumer is there, if any was."""
        if self.queue in self._line._consumers:
            self.crash()

    def wait_dead(self) -> str:
        """The reason of the first dead letter of this route."""

        def reasons() -> list[str]:
            return [why for why in self._line.dead().values() if f"queue '{self.queue}'" in why]

        wait_for(lambda: bool(reasons()), f"a dead letter of {self.queue}")
        return reasons()[0]


def retry_headers(message: Message) -> tuple[int, str, int] | None:
    """Attempt, reason and first failure, or None where postdate added none. Fails for other types than documented."""
    own = {entry[1 : 1 + entry[0]]: entry[1 + entry[0] :] for entry in parts(message.properties).headers}
    if not own.keys() & set(RETRY_NAMES):
        return None
    attempt, reason, first, signature = (own[name] for name in RETRY_NAMES)
    assert (attempt[:1], reason[:1], first[:1], signature[:5]) == (b"l", b"S", b"l", b"S\0\0\0\x20")
    return struct.unpack(">q", attempt[1:])[0], reason[5:].decode(), struct.unpack(">q", first[1:])[0]


def returned_as(message: Message) -> tuple[int, str]:
    """Attempt and reason of a message that postdate returned."""
    found = retry_headers(message)
    assert found is not None, f"postdate did not return it: {message!r}"
    return found[:2]


def retry_id(message: Message) -> str:
    """The id that is the same on every return of a message."""
    (entry,) = (header for header in parts(message.properties).headers if header[1 : 1 + header[0]] == RETRY_ID)
    assert entry[1 + entry[0] : 2 + entry[0]] == b"S"
    return entry[6 + entry[0] :].decode()


def others(message: Message) -> set[bytes]:
    """The encoded headers that neither postdate nor the queue has added."""
    gone = {*RETRY_NAMES, RETRY_ID, b"x-delay-id", b"x-delay-due", b"x-delivery-count", b"x-acquired-count"}
    return {entry for entry in parts(message.properties).headers if entry[1 : 1 + entry[0]] not in gone}


def long(name: str, value: int) -> Entry:
    """A header with an int64."""
    return (name.encode(), "l", struct.pack(">q", value))
