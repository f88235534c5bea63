"""RabbitMQ with the objects of one run of demo, bench or compare. Blocking, plain pika."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, suppress

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from adapters.rabbitmq import connection
from adapters.rabbitmq.declarations import Binding, Declaration, Exchange, Queue
from adapters.rabbitmq.topology.declaring import Session, declare, planned
from adapters.rabbitmq.trouble import broker_errors
from bridge.core.errors import Refused
from bridge.lab.ports import RunNames
from bridge.settings import RabbitMQ, Settings

_TIMEOUT_S = 5
_PLUGIN_TYPE = "x-delayed-message"
#: RabbitMQ's answer without the plugin: 3.10 closes the connection with 503, 4.3 the channel with 406.
_UNKNOWN_TYPE = "unknown exchange type"


def connect(settings: RabbitMQ, name: str) -> pika.BlockingConnection:
    """A plain connection, as any program has one. Without heartbeats, because its loop rests while idle."""
    return connection.connect(settings, name, _TIMEOUT_S, heartbeats=False)


class RabbitTrialBroker(AbstractContextManager["RabbitTrialBroker"]):
    """``bridge.lab.ports.ComparableBroker``: deletes the bridge's objects too."""

    def __init__(self, settings: Settings, names: RunNames) -> None:
        self._settings = settings
        self._names = names
        self._connect()

    def __exit__(self, *_: object) -> None:
        with suppress(AMQPError):
            self._connection.close()

    def _connect(self) -> None:
        self._connection = connect(self._settings.rabbitmq, "postdate trial")
        self._session = Session(self._connection)

    @property
    def versions(self) -> dict[str, str]:
        """The broker's version, as it reports it to every client."""
        return {"rabbitmq": self._session.version or "unknown"}

    def create(self) -> None:
        """Create the destination exchange and its queue: classic, durable, any routing key."""
        target, queue = self._names.target, self._names.queue
        self._make(
            Exchange(target, "topic"), Queue(queue, {"x-queue-type": "classic"}), Binding(target, queue, key="#")
        )

    def consumed(self) -> bool:
        with broker_errors():
            return self._session.consumers(self._names.intake) > 0

    def waiting(self, queue: str) -> int:
        with broker_errors():
            return self._session.waiting(queue) or 0

    def addresses(self) -> list[tuple[str, int]]:
        return [(address.host, address.port) for address in connection.addresses(self._settings.rabbitmq)]

    def declare(self) -> None:
        declare(self._settings)

    def create_front(self, mode: str) -> None:
        if mode == "unaided":  # there the consumers' queue is a quorum queue
            with broker_errors():
                self._session.delete(Queue(self._names.queue))
        self._make(*_front(mode, self._names))

    def _make(self, *declarations: Declaration) -> None:
        with broker_errors():
            for declaration in declarations:
                self._session.make(declaration)

    def why_not(self, mode: str) -> str:
        if mode in ("native", "unaided") and not self._session.native:
            return f"RabbitMQ {self._session.version} delays nothing by itself: that begins with 4.4"
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
        self._connect()
        with broker_errors():
            for part in (Exchange(self._names.target), Queue(self._names.queue), *planned(self._settings)):
                try:
                    self._session.delete(part)
                except Refused:
                    if not self._session.lacks(part):  # a passive declaration needs no rights
                        raise


def _front(mode: str, names: RunNames) -> tuple[Declaration, ...]:
    """Return what a mode of a comparison without postdate needs in front of the destination."""
    front = Exchange(names.front, "fanout")
    match mode:
        case "ttl":  # a queue without a consumer: expired messages go to the destination with their own routing key
            arguments = {"x-queue-type": "classic", "x-dead-letter-exchange": names.target}
            return front, Queue(names.intake, arguments), Binding(names.front, names.intake)
        case "unaided":
            return front, Queue(names.queue, {"x-queue-type": "quorum"}), Binding(names.front, names.queue)
        case "plugin":
            plugin = Exchange(names.front, _PLUGIN_TYPE, {"x-delayed-type": "topic"})
            return plugin, Binding(names.front, names.target, to_exchange=True, key="#")
    return ()
