"""What a demo or a bench puts on the broker for its run and takes away afterwards. Blocking, plain pika."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker

from adapters.rabbitmq import connection
from adapters.rabbitmq.refusals import ACCESS_REFUSED, no_right
from adapters.rabbitmq.topology.setup import planned_names
from adapters.rabbitmq.trouble import sentence
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.lab.trial.config import Names
from bridge.settings import RabbitMQ, Settings

_TIMEOUT_S = 5


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turns errors of pika and of the network into ``BrokerUnavailable``, and a lack of rights into ``Refused``."""
    try:
        yield
    except (AMQPError, OSError) as error:
        if isinstance(error, ChannelClosedByBroker) and error.reply_code == ACCESS_REFUSED:
            raise Refused(no_right(error.reply_text)) from error
        raise BrokerUnavailable(sentence(error)) from error


def connect(settings: RabbitMQ, name: str) -> pika.BlockingConnection:
    """A plain connection, as any program has one. Without heartbeats: nobody turns its loop while it is idle."""
    return connection.connect(settings, name, _TIMEOUT_S, heartbeats=False)


class Stage:
    """The consumers' side, that a route delivers to, and the removal of everything, also of what the bridge of these
    settings declares. Raises ``BrokerUnavailable`` and ``Refused``."""

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
        """Delete all of it, whether it is there or not; what may not be deleted matters only where it is there.

        On a new connection: the first may be gone, and not know it yet.
        """
        self.close()
        self._connection = connect(self._settings, "postdate trial")
        with broker_errors():
            for exchange in self._exchanges:
                self._delete("exchange", exchange)
            for queue in self._queues:
                self._delete("queue", queue)

    def _delete(self, kind: str, name: str) -> None:
        try:
            self._on_a_channel(lambda channel: getattr(channel, f"{kind}_delete")(name))
        except ChannelClosedByBroker:
            # To ask takes no right.
            if self._answer(lambda channel: getattr(channel, f"{kind}_declare")(name, passive=True)) is not None:
                raise

    def _state(self, queue: str) -> Any:
        with broker_errors():
            found = self._answer(lambda channel: channel.queue_declare(queue, passive=True))
        return None if found is None else found.method

    def _answer(self, ask: Callable[[Any], Any]) -> Any:
        """What RabbitMQ answers; None where it closes the channel over it."""
        try:
            return self._on_a_channel(ask)
        except ChannelClosedByBroker:
            return None

    def _on_a_channel(self, act: Callable[[Any], Any]) -> Any:
        channel = self._connection.channel()
        try:
            return act(channel)
        finally:
            if channel.is_open:
                channel.close()
