"""Retry routes on RabbitMQ, as a consumer sees them that rejects and otherwise knows nothing of postdate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge_process import Tables
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts
from tests.retry_line import RetryLine, long, others, retry_headers
from tests.unit.raw_properties import Props, every_property

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

#: RabbitMQ checks the user id, and this is the user of the tests.
SENT = every_property([long("tenant", 7), long("x-delay", 60_000)])
SENT.others |= {"user_id": b"\5guest", "expiration": b"\x0560000", "delivery_mode": b"\2", "priority": b"\3"}

Open = Callable[..., RetryLine]


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Open]:
    lines: list[RetryLine] = []

    def opened(schedule: tuple[str, ...] = ("300ms", "600ms"), queue: Tables | None = None, **route: Any) -> RetryLine:
        line = RetryLine(rabbitmq.url, redis_server.url, tmp_path, schedule, queue, **route)
        lines.append(line.__enter__())
        line.start()
        return line

    yield opened
    for line in lines:
        line.__exit__(None, None, None)


def test_a_rejected_message_returns_by_the_schedule_and_then_is_a_dead_letter(open_line: Open, queue_type: str) -> None:
    line = open_line(queue={"x-queue-type": queue_type})
    line.publish(SENT, b"\0body", b"order.new", line.target)
    first = line.next()
    assert retry_headers(first) is None
    line.reject(first)
    returned, failed_ms = first, int(time.time() * 1000)
    for attempt, wait_s in ((1, 0.3), (2, 0.6)):
        rejected_s = time.time()
        returned = line.next()
        assert wait_s - 0.005 <= returned.at - rejected_s < wait_s + 1, "never early, and not much later"
        found = retry_headers(returned)
        assert found is not None
        assert found[:2] == (attempt, "rejected")
        assert abs(found[2] - failed_ms) < 1000
        as_sent(returned, first)
        line.reject(returned)
    (reason,) = line.wait_dead()
    assert reason.startswith(f"exhausted: the consumers of queue '{line.queue}' failed 3 times, first at ")
    assert reason.endswith("the last reason: rejected")
    assert [message.body for message in line.receive_until(2, 0.2, line.other)] == [b"\0body"], "no copy but the first"
    assert line.depth(line.queue) == 0


def as_sent(returned: Message, first: Message) -> None:
    """Everything that the producer wrote is there, byte for byte, but for the user id that RabbitMQ checks."""
    assert (returned.body, returned.routing_key) == (first.body, b"order.new")
    counts = frozenset({b"x-delivery-count", b"x-acquired-count"})
    assert others(returned, counts) == others(first, counts) != set()
    sent, got = parts(first.properties), parts(returned.properties)
    assert got.behind == sent.behind.replace(b"\5guest", b"", 1)
    assert got.before[2:] == sent.before[2:]


def test_a_message_that_succeeds_on_its_second_attempt_is_gone(open_line: Open) -> None:
    line = open_line()
    line.publish(Props([long("tenant", 7)]), b"one", b"order.new", line.target)
    line.reject(line.next())
    line.accept(line.next())
    wait_for(lambda: line.stored() == 0, "an empty store", 5)
    assert not line.receive_until(1, 0.5)


def test_after_the_last_attempt_a_message_goes_to_the_exchange_in_then(open_line: Open) -> None:
    name = f"last{time.time_ns()}"
    line = open_line(("200ms",), then=f"exchange:{name}")
    line.declare_exchange(name, "direct")
    line.declare_queue(f"{name}.queue")
    line.bind(f"{name}.queue", name, "order.new")
    line.publish(Props([long("tenant", 7)], {"expiration": b"\x0560000"}), b"one", b"order.new", line.target)
    line.reject(line.next())
    line.reject(line.next())
    (last,) = line.receive(1, queue=f"{name}.queue")
    assert (last.body, last.routing_key) == (b"one", b"order.new")
    found = retry_headers(last)
    assert found is not None
    assert found[:2] == (2, "rejected")
    assert b"60000" not in last.properties, "it must not expire in the queue that keeps it"
    assert not line.dead()


@pytest.mark.parametrize(
    ("arguments", "expiration", "reason"),
    [({"x-message-ttl": 150}, b"", "expired"), ({}, b"150", "expired"), ({"x-max-length": 1}, b"", "maxlen")],
    ids=["queue TTL", "expiration", "full queue"],
)
def test_what_the_queue_itself_dead_letters_returns_too(
    open_line: Open, queue_type: str, arguments: Tables, expiration: bytes, reason: str
) -> None:
    line = open_line(queue={"x-queue-type": queue_type, **arguments})
    sent = Props([long("tenant", 7)], {"expiration": bytes((len(expiration),)) + expiration} if expiration else {})
    line.publish(sent, b"one", b"order.new", line.target)
    if reason == "maxlen":
        line.publish(sent, b"two", b"order.new", line.target)
    wait_for(lambda: line.stored() >= 1, "a parked message", 5)
    returned = line.next()
    while retry_headers(returned) is None:  # the one that took the place
        line.accept(returned)
        returned = line.next()
    found = retry_headers(returned)
    assert found is not None
    assert found[:2] == (1, reason)
    assert (expiration in returned.properties) if expiration else True, "it has its expiration again"
    line.accept(returned)


def test_a_message_over_the_delivery_limit_returns_and_may_be_delivered_as_often_again(open_line: Open) -> None:
    line = open_line(("200ms", "200ms"), {"x-queue-type": "quorum", "x-delivery-limit": 1})
    line.publish(Props([long("tenant", 7)]), b"one", b"order.new", line.target)
    for attempt in (None, 1, 2):
        for _ in range(2):  # the consumer crashes: the first delivery, and as many more as the limit allows
            message = line.next()
            found = retry_headers(message)
            assert (found and found[:2]) == (attempt and (attempt, "delivery_limit"))
            line.leave()
    (reason,) = line.wait_dead()
    assert reason.startswith("exhausted: ")
    assert reason.endswith("the last reason: delivery_limit")


def test_a_consumer_that_publishes_the_message_once_more_starts_over(open_line: Open) -> None:
    line = open_line(("200ms", "200ms"))
    line.publish(Props([long("tenant", 7)]), b"one", b"order.new", line.target)
    line.reject(line.next())
    returned = line.next()
    line.publish(returned.properties, returned.body, returned.routing_key, line.target)
    line.accept(returned)
    line.reject(line.next())
    found = retry_headers(line.next())
    assert found is not None
    assert found[0] == 1


def test_an_operators_retry_gives_an_exhausted_message_one_more_attempt(open_line: Open) -> None:
    line = open_line(("200ms",))
    line.publish(Props([long("tenant", 7)]), b"one", b"order.new", line.target)
    line.reject(line.next())
    line.reject(line.next())
    line.wait_dead()
    line.order("retry", *line.dead())
    again = line.next()
    found = retry_headers(again)
    assert found is not None
    assert found[0] == 2
    line.reject(again)
    (reason,) = line.wait_dead()
    assert "failed 3 times" in reason


def test_a_message_whose_queue_is_gone_is_kept_as_unroutable(open_line: Open) -> None:
    line = open_line(("300ms",))
    impatient = {"retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 2}}
    line.bridges[0].stop()
    line.start(impatient)
    line.publish(Props([long("tenant", 7)]), b"one", b"order.new", line.target)
    line.reject(line.next())
    wait_for(lambda: line.stored() == 1, "a parked message", 5)
    line.close_connections()
    line.delete_queue(line.queue)
    (reason,) = line.wait_dead()
    assert reason.startswith("unroutable: ")
