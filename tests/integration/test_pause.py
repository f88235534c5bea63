"""Pause, resume and drain on RabbitMQ: nothing comes, nothing is lost, and the order stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.desk.severity import Severity
from bridge.operate.check import check_all
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.integration.test_delivery_order import numbers_by_key, publish_burst
from tests.raw_amqp import Message
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

DURABLE = {"delivery_mode": b"\2"}


def in_order(messages: list[Message], count: int) -> None:
    """Assert that each message came once, and each key in its order."""
    by_key = numbers_by_key(messages)
    assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(count))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), key


@pytest.mark.parametrize("count", [pytest.param(20_000, marks=pytest.mark.long), 2000])
def test_a_pause_outlives_a_restart_and_a_resume_delivers_everything_in_its_order(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, count: int
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        first, _ = line.bridge().start(), line.bridge().start()
        first.wait_ready()
        at_ms = int((time.time() + 4 + count / 2000) * 1000)
        publish_burst(line, count, at_ms)
        line.order("pause", "orders", "--note", "the bank is down")
        line.follow("orders", "paused")
        assert time.time() * 1000 < at_ms, "the test machine is too slow: they were due before the pause"
        wait_for(lambda: line.held() == count, "everything is held", 40)
        assert first.terminate() == 0
        line.start()
        publish_burst(line, 100, at_ms, count)  # due already, and of the same keys
        assert line.receive_until(1, 1.5) == []
        assert line.held() == count + 100
        line.order("resume", "orders")
        in_order(line.receive(count + 100, 60), count + 100)
        assert line.receive_until(1, 0.5) == [], "no copies"
        wait_for(lambda: line.stored() == 0, "the store is empty", 15)


def test_a_pause_in_the_middle_of_a_burst_and_a_resume_after_it_keep_the_order(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.start()
        at_ms = int((time.time() + 1.5) * 1000)
        publish_burst(line, 3000, at_ms)
        line.order("pause", "orders")
        messages = []
        for verb in ("resume", "pause", "resume"):
            messages += line.receive_until(10_000, 0.7)
            line.order(verb, "orders")
        messages += line.receive(3000 - len(messages), 30)
        in_order(messages, 3000)
        assert line.receive_until(1, 0.5) == [], "no copies"


def test_a_drained_route_takes_nothing_in_and_delivers_what_is_parked(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        bridge = line.start()
        line.publish(Props([delay(2500)], DURABLE), b"parked")
        wait_for(lambda: line.waiting() == 1, "it is parked")
        line.order("drain", "orders")
        line.follow("orders", "draining")
        for number in range(5):
            line.publish(Props([delay(1)], DURABLE), b"%d" % number)
        assert [message.body for message in line.receive()] == [b"parked"]
        assert bridge.terminate() == 0
        line.start()
        assert line.receive_until(1, 1) == []
        assert (line.stored(), line.depth(line.intake)) == (0, 5)
        texts = [result.text for result in check_all(line.loaded()) if result.level is not Severity.OK]
        assert any(text.endswith("it takes nothing in; messages that wait in the broker: 5") for text in texts)
        assert not any("does not drain" in text for text in texts)
        line.order("resume", "orders")
        assert [message.body for message in line.receive(5)] == [b"%d" % number for number in range(5)]
        assert line.depth(line.intake) == 0


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.9, 1.2])
def test_an_instance_that_is_killed_while_it_lets_messages_go_loses_none(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, after_s: float
) -> None:
    count = 20_000
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"dispatch": {"lease": "3s", "takeover": "2s"}}) as line:
        first, _ = line.bridge().start(), line.bridge().start()
        first.wait_ready()
        line.order("pause", "orders")
        line.follow("orders", "paused")
        publish_burst(line, count, int(time.time() * 1000))
        wait_for(lambda: line.held() == count, "everything is held", 60)
        line.order("resume", "orders")
        time.sleep(after_s)
        first.kill()
        seen: set[bytes] = set()
        copies = 0
        while len(seen) < count:
            messages = line.receive_until(1000, 10)
            assert messages, f"only {len(seen)} of {count} came, {line.held()} are held, {line.log_tails()}"
            copies += len(messages) - len({message.body for message in messages} - seen)
            seen.update(message.body for message in messages)
        wait_for(lambda: line.stored() == 0, "the store is empty")
        print(f"copies: {copies}")
        assert copies <= 4000
