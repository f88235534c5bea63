"""A delayed path on RabbitMQ for one test: its exchanges, queues and keys, on a broker that many tests share."""

from __future__ import annotations

import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pika
from pika.exceptions import AMQPError

from adapters.rabbitmq.declarations import Binding
from adapters.rabbitmq.topology.declaring import declare
from adapters.rabbitmq.topology.route_topology import plan
from tests.bridge_line import BridgeLine, merged
from tests.bridge_process import Tables
from tests.raw_amqp import Closed, Message, RawConnection
from tests.unit.raw_properties import Entry, Props


def blocking(url: str) -> Any:
    """A plain connection; the caller closes it."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 10
    return pika.BlockingConnection(parameters)


class Line(BridgeLine):
    """One route ``orders``: publish to ``front``; consumers are on ``queue``, behind the topic exchange ``target``."""

    def __init__(self, broker_url: str, store_url: str, folder: Path, settings: Tables | None = None) -> None:
        name = f"t{secrets.token_hex(4)}"
        self.front, self.target, self.queue = f"{name}.delay", name, f"{name}.consumers"
        self.intake = f"{name}.intake"
        self.broker_url = broker_url
        own = {
            "rabbitmq": {"url": broker_url},
            "log": {"format": "text"},
            "routes": {"orders": {"intercept": self.front, "deliver_to": self.target, "queue": self.intake}},
        }
        super().__init__(name, name, folder, store_url, merged(own, settings or {}))
        self._delete: list[tuple[str, str]] = []
        self._publisher: RawConnection | None = None
        self._published = 0
        self._consumers: dict[str, RawConnection] = {}

    def __enter__(self) -> Self:
        self.declare_target()
        self.setup()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self.close_connections()
        with suppress(AMQPError), blocking(self.broker_url) as connection:
            for what, name in self._delete:
                channel = connection.channel()
                (channel.queue_delete if what == "queue" else channel.exchange_delete)(name)

    def add_route(self, route: str, **settings: object) -> str:
        """Add a route before the line is entered; returns its front exchange. Its target is not declared."""
        front, target, intake = (f"{self.name}.{route}.{what}" for what in ("delay", "target", "intake"))
        names = {"intercept": front, "deliver_to": target, "queue": intake}
        self.settings["routes"][route] = {**names, **settings}
        return front

    # -- the broker's side ------------------------------------------------------------------------------------------

    def declare_target(self, arguments: Tables | None = None) -> None:
        """Declare the consumers' exchange and queue."""
        self.declare_exchange(self.target)
        self.declare_queue(self.queue, arguments)
        self.bind(self.queue, self.target, "#")

    def declare_exchange(self, name: str, kind: str = "topic") -> None:
        with blocking(self.broker_url) as connection:
            connection.channel().exchange_declare(name, kind, durable=True)
        self._delete.append(("exchange", name))

    def declare_queue(self, name: str, arguments: Tables | None = None) -> None:
        with blocking(self.broker_url) as connection:
            connection.channel().queue_declare(name, durable=True, arguments=arguments or {})
        self._delete.append(("queue", name))

    def bind(self, queue: str, exchange: str, key: str = "#", arguments: Tables | None = None) -> None:
        with blocking(self.broker_url) as connection:
            connection.channel().queue_bind(queue, exchange, key, arguments=arguments)

    def unbind(self, queue: str, exchange: str, key: str = "#") -> None:
        with blocking(self.broker_url) as connection:
            connection.channel().queue_unbind(queue, exchange, key)

    def delete_queue(self, name: str) -> None:
        with blocking(self.broker_url) as connection:
            connection.channel().queue_delete(name)

    def delete_exchange(self, name: str) -> None:
        with blocking(self.broker_url) as connection:
            connection.channel().exchange_delete(name)

    def depth(self, queue: str) -> int:
        """The number of ready messages in a queue."""
        with blocking(self.broker_url) as connection:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)

    def setup(self, settings: Tables | None = None) -> None:
        """Declare what ``postdate setup`` declares."""
        loaded = self.loaded(settings)
        declare(loaded)
        for topology in plan(loaded, native=True):
            for part in topology.declarations():
                if not isinstance(part, Binding):
                    self._delete.append((type(part).__name__.lower(), part.name))

    # -- messages ---------------------------------------------------------------------------------------------------

    def close_connections(self) -> None:
        for connection in (self._publisher, *self._consumers.values()):
            if connection is not None:
                connection.close()
        self._publisher = None
        self._consumers.clear()

    def publish(
        self, props: Props | bytes, body: bytes = b"", key: bytes = b"some.key", exchange: str | None = None
    ) -> None:
        """Publish to the front exchange and wait for the confirm."""
        publisher = self._publisher
        if publisher is None:
            publisher = self._publisher = RawConnection(self.broker_url)
            publisher.confirm()
            self._published = 0
        raw = props if isinstance(props, bytes) else props.encode()
        publisher.publish(self.front if exchange is None else exchange, key, raw, body)
        self._published += 1
        reached = 0
        while reached < self._published:
            answers = publisher.events(10)
            if not answers:
                raise Closed("no confirm within 10 s")
            reached = max(reached, *(answer.tag for answer in answers))

    def receive(self, count: int = 1, deadline_s: float = 30.0, queue: str | None = None) -> list[Message]:
        """The next ``count`` messages of the consumers' queue; fails when the time is up."""
        got = self.receive_until(count, deadline_s, queue)
        assert len(got) == count, f"{len(got)} of {count} messages came within {deadline_s:g} s: {got!r:.2000}"
        return got

    def receive_until(self, count: int, deadline_s: float, queue: str | None = None) -> list[Message]:
        """Up to ``count`` messages that arrive within the deadline."""
        consumer = self._consumer(queue or self.queue)
        got: list[Message] = []
        give_up = time.monotonic() + deadline_s
        while len(got) < count and time.monotonic() < give_up:
            if not consumer.messages:
                consumer.messages += consumer.events(min(0.2, max(0.0, give_up - time.monotonic())))
            while consumer.messages and len(got) < count:
                message = consumer.messages.pop(0)
                assert isinstance(message, Message)
                consumer.acknowledge(message.tag)
                got.append(message)
        return got

    def _consumer(self, queue: str) -> RawConnection:
        if queue not in self._consumers:
            consumer = self._consumers[queue] = RawConnection(self.broker_url)
            consumer.consume(queue)
        return self._consumers[queue]


def delay(milliseconds: int) -> Entry:
    """The header x-delay, as an int32."""
    return (b"x-delay", "I", struct.pack(">i", milliseconds))
