"""Routes with max_parked: what does not fit waits in RabbitMQ, or becomes a dead letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


def put(line: Line, number: int, ms: int) -> None:
    line.publish(Props([delay(ms)], {"delivery_mode": b"\2"}), b"%d" % number)


def test_a_full_route_leaves_messages_in_the_broker_and_goes_on_when_it_has_room(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.settings["routes"]["orders"] |= {"max_parked": 20}
        bridge = line.start()
        for number in range(20):
            put(line, number, 7000)
        wait_for(lambda: "is full" in bridge.log(), "the route is full")
        for number in range(20, 30):
            put(line, number, 100)
        assert line.receive_until(1, 1) == []
        assert line.stored() == 20
        assert sorted(int(message.body) for message in line.receive(30, 30)) == list(range(30))


def test_with_on_full_dead_further_messages_become_dead_letters_and_undelayed_ones_pass(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.settings["routes"]["orders"] |= {"max_parked": 5, "on_full": "dead"}
        bridge = line.start()
        for number in range(5):
            put(line, number, 60_000)
        wait_for(lambda: "is full" in bridge.log(), "the route is full")
        put(line, 5, 60_000)
        assert line.wait_dead() == ["full: its route has reached max_parked or max_parked_bytes"]
        put(line, 6, 0)
        assert [message.body for message in line.receive(1)] == [b"6"]
