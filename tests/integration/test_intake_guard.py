"""Someone may delete the intake or its binding. postdate restores them: else messages are early."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.rabbitmq.topology.declaring import open_session
from adapters.rabbitmq.topology.route_topology import kept
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        yield line


def is_parked(line: Line) -> bool:
    """Publish a message that is due in an hour, and see whether it is parked or came at once."""
    before = line.waiting()
    line.publish(Props([delay(3_600_000)], {"delivery_mode": b"\2"}), b"%f" % time.time())
    wait_for(lambda: line.waiting() > before or line.receive_until(1, 0.05), "it is parked or delivered")
    return line.waiting() > before


def unbind(line: Line) -> None:
    settings = line.loaded()
    with open_session(settings) as session:
        for binding in kept(settings, "orders", session.native).bound:
            session.unbind(binding)


def test_a_removed_binding_is_declared_again(line: Line) -> None:
    line.start()
    assert is_parked(line)

    def comes_at_once() -> bool:
        unbind(line)
        return not is_parked(line)

    wait_for(comes_at_once, "the binding is gone")
    wait_for(lambda: is_parked(line), "delayed messages are parked again", 15)


def test_a_deleted_intake_queue_is_recreated_and_the_loss_stays_in_health(line: Line) -> None:
    bridge = line.start()
    line.delete_queue(line.intake)
    wait_for(lambda: is_parked(line), "delayed messages are parked again", 20)
    bridge.wait_log("delayed messages are delivered at once")
    bridge.wait_health(f"the intake queue {line.intake} of route orders was deleted at ")
