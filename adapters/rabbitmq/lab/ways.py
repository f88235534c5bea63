"""Ways to wait that RabbitMQ has without postdate, put up for a comparison. Blocking, plain pika.

Each has its front exchange and what stands behind it under the run's names, so that the ``Stage`` takes it down.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from adapters.rabbitmq.lab.stage import broker_errors, connect
from bridge.lab.trial.config import Names
from bridge.settings import RabbitMQ

_PLUGIN_TYPE = "x-delayed-message"
#: What RabbitMQ says of it without the plugin: 3.10 closes the connection with 503, 4.3 the channel with 406.
_UNKNOWN_TYPE = "unknown exchange type"


def put_up(settings: RabbitMQ, mode: str, names: Names) -> None:
    """Make what a mode needs beside the target. Raises ``BrokerUnavailable``."""
    with broker_errors():
        connection = connect(settings, "postdate compare")
        try:
            _FRONTS[mode](connection.channel(), names)
        finally:
            with suppress(AMQPError):
                connection.close()


def why_no_plugin(settings: RabbitMQ) -> str:
    """Why the delayed-message plugin cannot be used here; "" where it can. Raises ``BrokerUnavailable``."""
    name = f"postdate.compare.probe.{secrets.token_hex(3)}"
    with broker_errors():
        connection = connect(settings, "postdate compare")
        try:
            channel = connection.channel()
            channel.exchange_declare(name, _PLUGIN_TYPE, arguments={"x-delayed-type": "topic"}, auto_delete=True)
            channel.exchange_delete(name)
        except (ConnectionClosedByBroker, ChannelClosedByBroker) as closed:
            if _UNKNOWN_TYPE in closed.reply_text:
                return "this broker does not have the plugin"
            return f"RabbitMQ refuses to make its exchange ({closed.reply_text})"
        finally:
            with suppress(AMQPError):
                connection.close()
    return ""


def _plain(channel: Any, names: Names) -> None:
    """Published to the target itself."""


def _ttl(channel: Any, names: Names) -> None:
    """One queue without a consumer; what expires at its head goes to the target with its own routing key."""
    arguments = {"x-queue-type": "classic", "x-dead-letter-exchange": names.target}
    channel.exchange_declare(names.front, "fanout", durable=True)
    channel.queue_declare(names.intake, durable=True, arguments=arguments)
    channel.queue_bind(names.intake, names.front)


def _plugin(channel: Any, names: Names) -> None:
    """The plugin's exchange, and the target bound to it."""
    channel.exchange_declare(names.front, _PLUGIN_TYPE, durable=True, arguments={"x-delayed-type": "topic"})
    channel.exchange_bind(names.target, names.front, "#")


_FRONTS: Mapping[str, Callable[[Any, Names], None]] = {"plain": _plain, "ttl": _ttl, "plugin": _plugin}
