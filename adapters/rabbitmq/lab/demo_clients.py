"""The demo's producer and consumer (``bridge.lab.ports``): plain pika, as in any program."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

from adapters.rabbitmq.lab.trial_objects import connect
from adapters.rabbitmq.trouble import broker_errors
from bridge.lab.ports import Received
from bridge.settings import Settings

_JOIN_S = 5


class RabbitProducer:
    """Publishes, persistent and confirmed. Raises ``BrokerUnavailable``."""

    def __init__(self, settings: Settings, exchange: str) -> None:
        self._exchange = exchange
        self._connection = connect(settings.rabbitmq, "postdate demo, producer")
        with broker_errors():
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()

    def publish(self, body: bytes, headers: Mapping[str, str | int]) -> None:
        properties = pika.BasicProperties(headers=dict(headers), delivery_mode=2)
        with broker_errors():
            self._channel.basic_publish(self._exchange, "new", body, properties, mandatory=True)

    def close(self) -> None:
        with suppress(AMQPError):
            self._connection.close()


class RabbitConsumer:
    """Consumes a queue in a thread, and acknowledges."""

    def __init__(self, settings: Settings, queue: str, received: Received) -> None:
        self._received = received
        self._connection = connect(settings.rabbitmq, "postdate demo, consumer")
        with broker_errors():
            self._channel = self._connection.channel()
            self._channel.basic_consume(queue, self._on_message)
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(AMQPError):
            self._connection.add_callback_threadsafe(self._channel.stop_consuming)
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with suppress(AMQPError):
            self._channel.start_consuming()
            self._connection.close()

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._received(body, properties.headers or {})
        channel.basic_ack(method.delivery_tag)
