"""A retry route on RabbitMQ for one test: consumers that reject, and the queue beside theirs that must get no copy."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Self

from tests.bridge_line import merged
from tests.bridge_process import Tables
from tests.delay_line import Line
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Entry

RETRY = "postdate.retry"
RETRY_NAMES = (b"x-retry-attempt", b"x-retry-reason", b"x-retry-first-failed")


class RetryLine(Line):
    """One retry route. Producers publish to the topic exchange ``target``. It leads to ``queue``, whose consumers fail,
    and to ``other``."""

    def __init__(
        self,
        broker_url: str,
        store_url: str,
        folder: Path,
        schedule: tuple[str, ...] = ("300ms", "600ms"),
        queue: Tables | None = None,
        settings: Tables | None = None,
        **route: Any,
    ) -> None:
        """``queue``: more arguments of the consumers' queue. ``route``: more settings of the route."""
        super().__init__(broker_url, store_url, folder, settings)
        self.route = f"{self.name}_retry"
        self.other = f"{self.name}.other"
        self.intake = f"postdate.{self.route}"
        own = {"kind": "retry", "queue": self.queue, "schedule": list(schedule)}
        self.settings["routes"] = {self.route: merged(own, route)}
        self._arguments = merged(
            {"x-dead-letter-exchange": RETRY, "x-dead-letter-routing-key": self.route}, queue or {}
        )

    def __enter__(self) -> Self:
        self.setup()  # first: what is dead-lettered before is lost
        self.declare_target(self._arguments)
        self.declare_queue(self.other)
        self.bind(self.other, self.target)
        self.setup()
        return self

    def setup(self, settings: Tables | None = None) -> None:
        """Declare what ``postdate setup`` declares. The exchange that all retry routes share stays afterwards."""
        super().setup(settings)
        self._delete = [one for one in self._delete if one != ("exchange", RETRY)]

    def next(self, deadline_s: float = 10.0) -> Message:
        """The next message of the consumers' queue, neither acknowledged nor rejected."""
        consumer = self._consumer(self.queue)
        for _ in range(int(deadline_s / 0.1)):
            if not consumer.messages:
                consumer.messages += consumer.events(0.1)
            if consumer.messages:
                message = consumer.messages.pop(0)
                assert isinstance(message, Message)
                return message
        raise AssertionError(f"no message came within {deadline_s:g} s: {self.log_tails()}")

    def reject(self, message: Message, requeue: bool = False) -> None:
        """As a consumer that fails."""
        self._consumer(self.queue).reject(message.tag, requeue)

    def accept(self, message: Message) -> None:
        """As a consumer that succeeds."""
        self._consumer(self.queue).acknowledge(message.tag)

    def leave(self) -> None:
        """The consumer goes away."""
        self._consumers.pop(self.queue).close()


def retry_headers(message: Message) -> tuple[int, str, int] | None:
    """Attempt, reason and first failure, or None where postdate added none. Fails for other types than documented."""
    own = {entry[1 : 1 + entry[0]]: entry[1 + entry[0] :] for entry in parts(message.properties).headers}
    if not own.keys() & set(RETRY_NAMES):
        return None
    attempt, reason, first = (own[name] for name in RETRY_NAMES)
    assert (attempt[:1], reason[:1], first[:1]) == (b"l", b"S", b"l")
    return struct.unpack(">q", attempt[1:])[0], reason[5:].decode(), struct.unpack(">q", first[1:])[0]


def others(message: Message, without: frozenset[bytes] = frozenset()) -> set[bytes]:
    """The encoded headers that postdate has not added."""
    gone = {*RETRY_NAMES, b"x-delay-id", b"x-delay-due", *without}
    return {entry for entry in parts(message.properties).headers if entry[1 : 1 + entry[0]] not in gone}


def long(name: str, value: int) -> Entry:
    """A header with an int64."""
    return (name.encode(), "l", struct.pack(">q", value))
