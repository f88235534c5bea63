"""The canary's way through RabbitMQ: declare its exchange, send one message, wait for it. Blocking, plain pika."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq.connection import connected
from adapters.rabbitmq.declarations import Arguments, Binding, Exchange, Queue
from adapters.rabbitmq.refusals import NOT_FOUND
from adapters.rabbitmq.topology import declaring
from bridge.core.errors import Refused
from bridge.settings import Route, Settings

_TIMEOUT_S = 5.0
#: The longest wait for network events before the deadline is checked.
_TURN_S = 0.2
_LOST_MS = 60_000


def declare_canary(settings: Settings) -> None:
    """Declare the exchange that the canary's messages are delivered to, then the route. Raises as ``declare``.

    A canary that comes so late that its sender no longer waits goes to a queue for lost ones, which keeps the last. As
    an unroutable message it would be retried, and become a dead letter that calls someone.
    """
    (route,) = settings.routes.values()
    lost = f"{route.target}.lost"
    kept: Arguments = {"x-queue-type": "classic", "x-max-length": 1, "x-message-ttl": _LOST_MS}
    with declaring.open_session(settings) as session:
        session.make(Exchange(lost, type="fanout"))
        session.make(Queue(lost, kept))
        session.make(Binding(lost, lost, {}))
        session.make(Exchange(route.target, type="direct", arguments={"alternate-exchange": lost}))
    declaring.declare(settings)


def round_trip(settings: Settings, delay_ms: int, wait_s: float, sent: Callable[[], None]) -> float | None:
    """Publish a delayed message and wait for it. Return how late (s) it came; None if it did not come in ``wait_s``.

    Raises ``BrokerUnavailable``, and ``Refused`` where the canary's exchanges are missing or may not be used.
    """
    name = f"{settings.bridge.name} canary"
    (route,) = settings.routes.values()
    with connected(settings.rabbitmq, name, _TIMEOUT_S, heartbeats=False) as connection:
        try:
            return _trip(connection, route, delay_ms, wait_s, sent)
        except ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            text = f"the canary's exchanges are missing ({error.reply_text}). `postdate run` declares them"
            raise Refused(text) from error


def _trip(
    connection: pika.BlockingConnection, route: Route, delay_ms: int, wait_s: float, sent: Callable[[], None]
) -> float | None:
    channel: Any = connection.channel()
    came_at: list[float] = []
    token = secrets.token_hex(8)
    queue = f"{route.target}.{token}"  # a name that RabbitMQ chooses (amq.gen-...) would need a right of its own
    channel.queue_declare(queue, exclusive=True, arguments={"x-queue-type": "classic"})
    channel.queue_bind(queue, route.target, token)
    channel.basic_consume(queue, lambda *_: came_at.append(time.monotonic()), auto_ack=True)
    sent_s = time.monotonic()
    # Transient: if a restart of the broker loses a canary, the next one follows. Without confirms: an intake without a
    # leader never confirms, and pika would wait for ever. The next call raises the error of a refused publish.
    channel.basic_publish(route.intercept, token, b"canary", pika.BasicProperties(headers={"x-delay": delay_ms}))
    channel.queue_declare(queue, passive=True)
    sent()
    ends_s = time.monotonic() + delay_ms / 1000 + wait_s
    while not came_at and (left_s := ends_s - time.monotonic()) > 0:
        connection.process_data_events(time_limit=min(_TURN_S, left_s))
    return came_at[0] - sent_s - delay_ms / 1000 if came_at else None
