"""A delayed path on RabbitMQ for one test whose route has no store: its settings name a Redis that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.rabbitmq.levels.packing import REASON_HEADER
from adapters.rabbitmq.levels.waits import Waits, plan_waits
from adapters.rabbitmq.native_guard import delays_natively
from tests.bridge_line import NO_STORE, merged
from tests.bridge_process import Bridge, Tables
from tests.delay_line import Line, blocking
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts


def require_native(broker: RabbitMQ) -> None:
    """Skip a test of what RabbitMQ does by itself from 4.4 on."""
    if not delays_natively(broker.version):
        pytest.skip(f"RabbitMQ {broker.version} delays nothing by itself: that begins with 4.4")


#: Quick levels, and a last hop that is the bridge's however slow the machine is.
LEVELS: Tables = {"headers": {"levels": ["300ms", "1s", "2s"]}, "levels": {"alone_after": "60s"}}
#: For tests without a bridge.
ALONE: Tables = {"levels": {"alone_after": "200ms"}}


class LevelLine(Line):
    """One route ``orders`` in mode levels or ladder."""

    def __init__(self, broker_url: str, folder: Path, settings: Tables | None = None, mode: str = "levels") -> None:
        wanted = merged(merged(LEVELS, {"routes": {"orders": {"mode": mode}}}), settings or {})
        super().__init__(broker_url, NO_STORE, folder, wanted)

    def places(self, settings: Tables | None = None) -> Waits:
        """The queues in which its messages wait."""
        return plan_waits(self.loaded(settings), "orders")

    def run(self, settings: Tables | None = None) -> Bridge:
        """A started bridge that consumes both of its queues."""
        bridge = self.bridge(settings).start()
        self.wait_consumed(bridge, settings)
        return bridge

    def wait_consumed(self, bridge: Bridge, settings: Tables | None = None) -> None:
        """Wait until the bridge consumes the intake queue and the due queue."""
        queues = [queue for queue in (self.intake, self.places(settings).due) if queue]

        def consumed() -> bool:
            with blocking(self.broker_url) as connection:
                channel = connection.channel()
                return all(channel.queue_declare(queue, passive=True).method.consumer_count for queue in queues)

        wait_for(consumed, f"the bridge consumes {queues}; it says: {bridge.log_tail()}", 20)

    def dead_letters(self, count: int = 1, deadline_s: float = 30.0) -> list[tuple[Message, str]]:
        """The next ``count`` dead letters, each with its reason."""
        return [(message, reason_of(message)) for message in self.receive(count, deadline_s, self.places().dead)]


def reason_of(message: Message) -> str:
    """The reason of a dead letter."""
    mark = bytes((len(REASON_HEADER),)) + REASON_HEADER + b"S"
    return next(
        (header[len(mark) + 4 :].decode() for header in parts(message.properties).headers if header.startswith(mark)),
        "",
    )
