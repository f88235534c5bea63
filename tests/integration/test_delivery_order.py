"""Messages of one order key due at one moment arrive in the order they were published, whoever delivers them."""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.delay_line import Line
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.raw_amqp import Answer, Message, RawConnection
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

KEYS = 100


def publish_burst(line: Line, count: int, at_ms: int, first: int = 0) -> None:
    """So many numbered messages on random keys, all due at one moment, as fast as confirms come."""
    props = Props([(b"x-deliver-at", "l", struct.pack(">q", at_ms))], {"delivery_mode": b"\2"}).encode()
    seeded = random.Random(5)
    with RawConnection(line.broker_url) as producer:
        producer.confirm()
        confirmed = sent = 0
        while confirmed < count:
            if sent < count and sent - confirmed < 2000:
                numbers = range(sent, min(sent + 250, count))
                keys = [b"key.%d" % seeded.randrange(KEYS) for _ in numbers]
                frames = (
                    producer.encode(line.front, key, props, b"%s %d" % (key, first + n))
                    for key, n in zip(keys, numbers, strict=True)
                )
                producer.send(b"".join(frames))
                sent = numbers.stop
            wait_s = 10.0 if sent - confirmed >= 2000 or sent == count else 0.0
            for answer in producer.events(wait_s):
                assert isinstance(answer, Answer)
                confirmed = max(confirmed, answer.tag)


def numbers_by_key(messages: list[Message]) -> dict[bytes, list[int]]:
    numbers = defaultdict(list)
    for message in messages:
        key, number = message.body.split()
        assert message.routing_key == key
        numbers[key].append(int(number))
    return numbers


@pytest.mark.parametrize(
    ("order", "count"), [pytest.param("key", 20_000, marks=pytest.mark.long), ("key", 3_000), ("route", 3_000)]
)
def test_each_key_keeps_its_order_with_two_instances(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, order: str, count: int
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"routes": {"orders": {"order": order}}}) as line:
        first, second = line.bridge().start(), line.bridge().start()
        first.wait_ready()
        at_ms = int((time.time() + 3 + count / 3000) * 1000)
        publish_burst(line, count, at_ms)
        messages = line.receive(count, 60)
        assert line.receive_until(1, 0.5) == [], "no copies"
        assert min(message.at for message in messages) * 1000 >= at_ms - 1
        for key, numbers in numbers_by_key(messages).items():
            assert numbers == sorted(numbers), key
        if order == "route":
            everything = [int(message.body.split()[1]) for message in messages]
            assert everything == sorted(everything)
        print(f"late: {max(message.at for message in messages) - at_ms / 1000:.2f} s")
        assert {bridge.terminate() for bridge in (first, second)} == {0}


def test_without_an_order_everything_arrives_once_with_two_instances(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"routes": {"orders": {"order": "none"}}}) as line:
        bridges = [line.bridge().start(), line.bridge().start()]
        bridges[0].wait_ready()
        publish_burst(line, 3000, int(time.time() * 1000) + 2000)
        messages = line.receive(3000, 30)
        assert len({message.body for message in messages}) == 3000
        assert line.receive_until(1, 0.5) == [], "no copies"
