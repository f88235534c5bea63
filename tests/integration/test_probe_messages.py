"""Only postdate's own probes are dropped from an intake queue, whatever a message says and however it came there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from adapters.rabbitmq.probes import publish_probes
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.raw_amqp import RawConnection
from tests.unit.raw_properties import Props, short, sized

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

MARK = b"x-postdate-probe"
PERSISTENT = {"delivery_mode": b"\2"}


def publish(line: Line, queue: str, props: Props, body: bytes) -> None:
    """Publish to a queue by the default exchange."""
    line.publish(props, body, queue.encode(), exchange="")


def test_messages_that_mention_a_probe_are_delivered(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        back = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": line.intake}
        line.declare_queue(f"{line.name}.ttl", back)
        line.start()
        note = (b"note", "S", sized(b"about " + MARK))
        publish(line, line.intake, Props([note], PERSISTENT), b"note")
        publish(line, line.intake, Props(None, {**PERSISTENT, "message_id": short(MARK)}), b"message id")
        publish(line, line.intake, Props([(MARK, "t", b"\1"), delay(50)], PERSISTENT), b"header")
        publish(line, line.intake, Props([(MARK, "t", b"\1")], {"delivery_mode": b"\1"}), b"probe")
        publish(line, f"{line.name}.ttl", Props([note, (MARK, "t", b"\1")], PERSISTENT), b"dead-lettered")
        bodies = {message.body for message in line.receive(5)}
        assert bodies == {b"note", b"message id", b"header", b"probe", b"dead-lettered"}


def test_probes_are_dropped_also_those_that_come_again(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        settings = line.loaded().rabbitmq
        assert asyncio.run(publish_probes(settings, [line.intake])) == {}
        with RawConnection(line.broker_url) as other:
            other.consume(line.intake)
            other.reject(other.events(10)[0].tag, requeue=True)
            assert other.events(10), "it comes again, and RabbitMQ counts that in its headers"
        assert asyncio.run(publish_probes(settings, [line.intake])) == {}
        line.start()
        publish(line, line.intake, Props([delay(50)], PERSISTENT), b"after them")
        assert [message.body for message in line.receive_until(3, 5)] == [b"after them"]
        wait_for(lambda: line.depth(line.intake) == line.stored() == 0, "no probe stays")
        assert "cancel" not in line.log()
