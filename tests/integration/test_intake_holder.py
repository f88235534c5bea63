"""Two instances on one intake queue, of which RabbitMQ gives all messages to one: what is said and done when that one
stands still; and what is said, once, when the connection goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_process import Bridge
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

PERSISTENT = {"delivery_mode": b"\2"}
#: RabbitMQ gives a consumer up after two to three heartbeats of 5 s, and the other has to be told.
HANDED_OVER_S = 16.0
#: What RabbitMQ has sent to a consumer does not wait in the queue: AMQP counts the rest alone.
PREFETCH = 5


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"rabbitmq": {"prefetch": PREFETCH}}) as line:
        yield line


def publish(line: Line, number: int, count: int) -> None:
    for body in range(number, number + count):
        line.publish(Props([delay(1)], PERSISTENT), b"%d" % body)


def holder_and_other(line: Line) -> tuple[Bridge, Bridge]:
    """Which of two instances RabbitMQ gives the messages to."""
    both = (line.start(), line.start())
    publish(line, 0, 5)
    wait_for(lambda: any(bridge.report().get("received") == 5 for bridge in both), "one has received all five")
    first, second = both
    return both if first.report().get("received") == 5 else (second, first)


@pytest.mark.long
def test_an_instance_without_messages_reports_it_until_rabbitmq_hands_the_queue_over(line: Line) -> None:
    holder, other = holder_and_other(line)
    line.receive(5)
    holder.pause()
    began = time.monotonic()
    publish(line, 5, 20)
    try:
        other.wait_log("this instance receives nothing from queue", HANDED_OVER_S)
        assert "Another consumer holds the queue" in other.log()
        line.receive(20)
        assert time.monotonic() - began < HANDED_OVER_S
        other.wait_health("All well.")
    finally:
        holder.resume()


def test_a_lost_connection_is_reported_once_for_all_queues_without_claiming_early_delivery(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, proxy: StartProxy
) -> None:
    link = proxy(rabbitmq.url)
    line = Line(rabbitmq.url, redis_server.url, tmp_path, {"rabbitmq": {"url": link.through(rabbitmq.url)}})
    line.add_route("second", deliver_to=line.target)
    with line:
        bridge = line.start()
        link.cut()
        bridge.wait_log("nothing is taken from RabbitMQ")
        link.heal()
        bridge.wait_health("All well.")
        assert "delivered at once" not in bridge.log()
        assert "nothing is taken from the queue" not in bridge.log()
