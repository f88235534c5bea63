"""One route to several exchanges: each gets every message once, and one that refuses harms no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    line = Line(rabbitmq.url, redis_server.url, tmp_path)
    audit = f"{line.name}.audit"
    line.settings["routes"]["orders"]["deliver_to"] = [line.target, audit]
    line.settings["retry"] = {"first": "300ms", "factor": 1, "max": "300ms", "attempts": 4}
    with line:
        line.declare_exchange(audit)
        line.declare_queue(audit)
        line.bind(audit, audit)
        line.start()
        yield line


def put(line: Line, body: bytes, *headers: tuple[bytes, str, bytes]) -> None:
    line.publish(Props(list(headers), {"delivery_mode": b"\2"}), body)


def bodies(line: Line, count: int, queue: str | None = None) -> list[bytes]:
    return [message.body for message in line.receive(count, queue=queue)]


def test_each_destination_gets_a_delayed_and_an_undelayed_message_once(line: Line) -> None:
    put(line, b"late", delay(300))
    put(line, b"at once")
    for queue in (line.queue, f"{line.name}.audit"):
        assert sorted(bodies(line, 2, queue)) == [b"at once", b"late"]
        assert line.receive_until(1, 0.5, queue) == []
    wait_for(lambda: line.stored() == 0, "the store is empty")


def test_a_destination_that_refuses_sends_no_copy_to_the_other_until_it_is_a_dead_letter(line: Line) -> None:
    line.delete_queue(f"{line.name}.audit")
    put(line, b"half", delay(100))
    assert bodies(line, 1) == [b"half"]
    (reason,) = line.wait_dead()
    assert reason.startswith("unroutable:")
    assert line.receive_until(1, 0.5) == []
    line.declare_queue(f"{line.name}.audit")
    line.bind(f"{line.name}.audit", f"{line.name}.audit")
    line.order("retry", "--all", "--yes")
    assert bodies(line, 1, f"{line.name}.audit") == [b"half"]
    assert line.receive_until(1, 0.5) == []
