"""RabbitMQ with the objects of one run of demo, bench or compare. Blocking, plain pika."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from adapters.rabbitmq import connection
from adapters.rabbitmq.native_guard import delays_natively
from adapters.rabbitmq.refusals import ACCESS_REFUSED, no_right
from adapters.rabbitmq.topology.declaring import declare, planned_names
from adapters.rabbitmq.trouble import sentence
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.lab.ports import RunNames
from bridge.settings import RabbitMQ, Settings

_TIMEOUT_S = 5
_PLUGIN_TYPE = "x-delayed-message"
#: RabbitMQ's answer without the plugin: 3.10 closes the connection with 503, 4.3 the channel with 406.
_UNKNOWN_TYPE = "unknown exchange type"


@contextmanager
def broker_errors() -> Iterator[None]:
    """Turn errors of pika and of the network into ``BrokerUnavailable``, missing rights into ``Refused``."""
    try:
        yield
    except (AMQPError, OSError) as error:
        if isinstance(error, ChannelClosedByBroker) and error.reply_code == ACCESS_REFUSED:
            raise Refused(no_right(error.reply_text)) from error
        raise BrokerUnavailable(sentence(error)) from error


def connect(settings: RabbitMQ, name: str) -> pika.BlockingConnection:
    """A plain connection, as any program has one. Without heartbeats, because its loop rests while idle."""
    return connection.connect(settings, name, _TIMEOUT_S, heartbeats=False)


class RabbitTrialBroker(AbstractContextManager["RabbitTrialBroker"]):
    """``bridge.lab.ports.ComparableBroker``: deletes the bridge's objects too."""

    def __init__(self, settings: Settings, names: RunNames) -> None:
        self._all_settings = settings
        self._settings = settings.rabbitmq
        exchanges, queues = planned_names(settings)
        self._objects = [("exchange", name) for name in (names.target, *exchanges)]
        self._objects += [("queue", name) for name in (names.queue, *queues)]
        self._names = names
        self._connection = connect(self._settings, "postdate trial")

    def __exit__(self, *_: object) -> None:
        with suppress(AMQPError):
            self._connection.close()

    @property
    def versions(self) -> dict[str, str]:
        """The broker's version, as it reports it to every client."""
        properties: dict[str, Any] = self._connection._impl.server_properties
        return {"rabbitmq": str(properties.get("version", "unknown"))}

    def create(self) -> None:
        """Create the destination exchange and its queue: classic, durable, any routing key."""
        with broker_errors():
            channel = self._connection.channel()
            channel.exchange_declare(self._names.target, "topic", durable=True)
            channel.queue_declare(self._names.queue, durable=True, arguments={"x-queue-type": "classic"})
            channel.queue_bind(self._names.queue, self._names.target, "#")
            channel.close()

    def consumed(self) -> bool:
        return self._counts(self._names.intake)[1] > 0

    def waiting(self, queue: str) -> int:
        return self._counts(queue)[0]

    def addresses(self) -> list[tuple[str, int]]:
        return [(address.host, address.port) for address in connection.addresses(self._settings)]

    def declare(self) -> None:
        declare(self._all_settings)

    def create_front(self, mode: str) -> None:
        with broker_errors():
            self._on_a_channel(lambda channel: _FRONTS[mode](channel, self._names))

    def why_not(self, mode: str) -> str:
        version = self.versions["rabbitmq"]
        if mode in ("native", "unaided") and not delays_natively(version):
            return f"RabbitMQ {version} delays nothing by itself: that begins with 4.4"
        return self._why_no_plugin() if mode == "plugin" else ""

    def _why_no_plugin(self) -> str:
        name = f"postdate.compare.probe.{secrets.token_hex(3)}"
        with broker_errors():
            try:
                channel = self._connection.channel()
                channel.exchange_declare(name, _PLUGIN_TYPE, arguments={"x-delayed-type": "topic"}, auto_delete=True)
                channel.exchange_delete(name)
            except (ConnectionClosedByBroker, ChannelClosedByBroker) as closed:
                if _UNKNOWN_TYPE in closed.reply_text:
                    return "this broker does not have the plugin"
                return f"RabbitMQ refuses to create its exchange ({closed.reply_text})"
        return ""

    def delete(self) -> None:
        """Delete everything of this run that exists. Missing rights matter only for what exists.

        Uses a new connection, because the first one may be dead without knowing it.
        """
        self.__exit__()
        self._connection = connect(self._settings, "postdate trial")
        with broker_errors():
            for kind, name in self._objects:
                self._delete(kind, name)

    def _delete(self, kind: str, name: str) -> None:
        try:
            self._on_a_channel(lambda channel: getattr(channel, f"{kind}_delete")(name))
        except ChannelClosedByBroker:
            # A passive declaration needs no rights.
            if self._answer(lambda channel: getattr(channel, f"{kind}_declare")(name, passive=True)) is not None:
                raise

    def _counts(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers of a queue; 0 and 0 if it does not exist."""
        with broker_errors():
            found = self._answer(lambda channel: channel.queue_declare(queue, passive=True))
        return (0, 0) if found is None else (found.method.message_count, found.method.consumer_count)

    def _answer(self, ask: Callable[[Any], Any]) -> Any:
        """RabbitMQ's answer; None if it closes the channel."""
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


# -- modes of a comparison without postdate ----------------------------------------------------------------------------


def _plain(channel: Any, names: RunNames) -> None:
    """Publish to the destination itself."""


def _ttl(channel: Any, names: RunNames) -> None:
    """One queue without a consumer. Expired messages go to the destination with their own routing key."""
    arguments = {"x-queue-type": "classic", "x-dead-letter-exchange": names.target}
    channel.exchange_declare(names.front, "fanout", durable=True)
    channel.queue_declare(names.intake, durable=True, arguments=arguments)
    channel.queue_bind(names.intake, names.front)


def _unaided(channel: Any, names: RunNames) -> None:
    """The consumers' queue becomes a quorum queue."""
    channel.exchange_declare(names.front, "fanout", durable=True)
    channel.queue_delete(names.queue)
    channel.queue_declare(names.queue, durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind(names.queue, names.front)


def _plugin(channel: Any, names: RunNames) -> None:
    """The plugin's exchange, with the destination bound to it."""
    channel.exchange_declare(names.front, _PLUGIN_TYPE, durable=True, arguments={"x-delayed-type": "topic"})
    channel.exchange_bind(names.target, names.front, "#")


_FRONTS: Mapping[str, Callable[[Any, RunNames], None]] = {
    "plain": _plain,
    "unaided": _unaided,
    "ttl": _ttl,
    "plugin": _plugin,
}
