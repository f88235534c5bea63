"""What a demo or a bench puts on the broker for its run and takes away afterwards. Blocking, plain pika."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from adapters.rabbitmq.connection import parameters, sentence
from adapters.rabbitmq.setup import planned_names
from bridge.errors import BrokerUnavailable
from bridge.settings import RabbitMQ, Settings
from bridge.trial.config import Names

_TIMEOUT_S = 5


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turns every error of pika and of the network into ``BrokerUnavailable``."""
    try:
        yield
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(sentence(error)) from error


def connect(settings: RabbitMQ, name: str) -> pika.BlockingConnection:
    """A plain connection, as any program has one. Without heartbeats: nobody turns its loop while it is idle."""
    wanted = parameters(settings, name)
    wanted.heartbeat = 0
    wanted.socket_timeout = wanted.stack_timeout = _TIMEOUT_S
    with broker_errors():
        return pika.BlockingConnection(wanted)


class Stage:
    """The consumers' side, that a route delivers to, and the removal of everything, also of what the bridge of these
    settings declares. Raises ``BrokerUnavailable``."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings = settings.rabbitmq
        exchanges, queues = planned_names(settings)
        self._exchanges, self._queues = (names.target, *exchanges), (names.queue, *queues)
        self._names = names
        self._connection = connect(self._settings, "postdate trial")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with suppress(AMQPError):
            self._connection.close()

    @property
    def versions(self) -> dict[str, str]:
        """The broker's version, as it tells every client."""
        properties: dict[str, Any] = self._connection._impl.server_properties
        return {"rabbitmq": str(properties.get("version", "unknown"))}

    def put_up(self) -> None:
        """The exchange that consumers know, and their queue behind it: classic, durable, any routing key."""
        with broker_errors():
            channel = self._connection.channel()
            channel.exchange_declare(self._names.target, "topic", durable=True)
            channel.queue_declare(self._names.queue, durable=True, arguments={"x-queue-type": "classic"})
            channel.queue_bind(self._names.queue, self._names.target, "#")
            channel.close()

    def consumed(self) -> bool:
        """Whether somebody consumes the intake queue: the bridge is ready."""
        state = self._state(self._names.intake)
        return state is not None and state.consumer_count > 0

    def waiting(self, queue: str) -> int:
        """How many messages are ready in a queue; 0 where there is none."""
        state = self._state(queue)
        return state.message_count if state is not None else 0

    def take_down(self) -> None:
        """Delete all of it, whether it is there or not, with a new connection if the first is gone."""
        if not self._connection.is_open:
            self._connection = connect(self._settings, "postdate trial")
        with broker_errors():
            channel = self._connection.channel()
            for exchange in self._exchanges:
                channel.exchange_delete(exchange)
            for queue in self._queues:
                channel.queue_delete(queue)

    def _state(self, queue: str) -> Any:
        with broker_errors():
            channel = self._connection.channel()
            try:
                return channel.queue_declare(queue, passive=True).method
            except ChannelClosedByBroker:
                return None
            finally:
                if channel.is_open:
                    channel.close()
