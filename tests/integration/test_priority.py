"""Routes with priority: of what is due together the highest leaves first, and each one keeps its order."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from tests.delay_line import Line
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.raw_amqp import RawConnection
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

COUNT = 900


def test_a_burst_leaves_by_priority_and_each_priority_in_its_order(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.settings["routes"]["orders"]["priority"] = True
        line.start()
        at = (b"x-deliver-at", "l", struct.pack(">q", int((time.time() + 5) * 1000)))
        with RawConnection(line.broker_url) as producer:
            producer.confirm()
            for number in range(COUNT):
                properties = {"delivery_mode": b"\2", **({"priority": bytes([number % 10])} if number % 10 else {})}
                producer.publish(line.front, b"some.key", Props([at], properties).encode(), b"%d" % number)
            wait_for(lambda: line.waiting() == COUNT, "all are parked before they are due")
        numbers = [int(message.body) for message in line.receive(COUNT)]
        assert numbers == sorted(range(COUNT), key=lambda number: (-(number % 10), number))
