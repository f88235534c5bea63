"""Where is my message: what the history says after deliveries, cancellations, deaths and crashes on RabbitMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.parking.history import PastState
from tests.bridge_line import QUICK
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.past import history, judge_moments, keys_of_the_past, slots, wait_history
from tests.unit.raw_properties import Entry, Props, sized

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

IMPATIENT = {"retry": {"first": "50ms", "factor": 1, "max": "50ms", "attempts": 2}}


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, IMPATIENT) as line:
        yield line


def text(name: str, value: str) -> Entry:
    return (name.encode(), "S", sized(value.encode()))


def put(line: Line, body: bytes, *headers: Entry) -> None:
    line.publish(Props(list(headers), {"delivery_mode": b"\2"}), body)


def test_a_delivered_a_cancelled_and_a_replaced_message_are_found(line: Line) -> None:
    bridge = line.start()
    put(line, b"kept", delay(300), text("x-delay-key", "a"))
    put(line, b"replaced", delay(60_000), text("x-delay-key", "b"))
    put(line, b"heir", delay(60_000), text("x-delay-key", "b"))
    put(line, b"", text("x-delay-cancel", "b"))
    assert line.receive()[0].body == b"kept"
    (delivered,) = wait_history(line, key=b"a")
    judge_moments(delivered)
    assert (delivered.state, delivered.route, delivered.tries) == (PastState.DELIVERED, "orders", 0)
    assert history(line, id=delivered.id) == [delivered]
    cancelled, replaced = wait_history(line, 2, key=b"b")
    assert (replaced.state, cancelled.state) == (PastState.REPLACED, PastState.CANCELLED)
    assert cancelled.reason == "by its producer"
    assert bridge.terminate() == 0
    assert sum(sum(slot.late) for slot in slots(line)) == 1


def test_a_dead_letter_is_found_with_its_tries_and_reason(line: Line) -> None:
    line.start()
    line.delete_queue(line.queue)
    put(line, b"nobody", delay(100))
    (row,) = wait_history(line, state=PastState.DEAD)
    assert (row.tries, row.reason.split(":")[0]) == (2, "unroutable")


def test_a_stop_writes_the_last_second(line: Line) -> None:
    bridge = line.start()
    for n in range(20):
        put(line, b"%d" % n, delay(200))
    line.receive(20)
    assert bridge.terminate() == 0
    assert len(history(line, state=PastState.DELIVERED)) == 20


def test_a_crash_loses_no_message_and_at_most_the_last_second_of_the_history(line: Line) -> None:
    line.start(QUICK)
    for n in range(100):
        put(line, b"%d" % n, delay(200 + 20 * n))
    before = [message.body for message in line.receive(50)]
    wait_history(line, 1)
    line.bridges[0].kill()
    written = len(history(line))
    bridge = line.start(QUICK)
    bodies = set(before)
    give_up = time.monotonic() + 40  # what was claimed at the kill comes when its lease has ended
    while len(bodies) < 100 and time.monotonic() < give_up:
        bodies |= {message.body for message in line.receive_until(1, 1.0)}
    assert bodies == {b"%d" % n for n in range(100)}
    assert bridge.terminate() == 0
    rows = history(line)
    # A second before the crash 50 messages were due. What was written then is still there, and all that came later.
    assert len(rows) >= max(written, 100 - 60)


def test_the_history_is_bounded_by_number(line: Line) -> None:
    bridge = line.start({"history": {"max": 40}, "redis": {"shards": 1}})
    for n in range(150):
        put(line, b"%d" % n, delay(100))
    line.receive(150)
    assert bridge.terminate() == 0
    line.settings["redis"]["shards"] = 1
    kept = history(line)
    assert 0 < len(kept) <= 40
    assert sum(sum(slot.late) for slot in slots(line)) == 150


def test_a_history_that_is_off_writes_no_keys(line: Line) -> None:
    bridge = line.start({"history": {"max": 0}})
    put(line, b"kept", delay(100))
    put(line, b"gone", delay(60_000), text("x-delay-key", "b"))
    put(line, b"", text("x-delay-cancel", "b"))
    line.receive()
    wait_for(lambda: line.stored() == 0, "everything is settled")
    assert bridge.terminate() == 0
    assert keys_of_the_past(line) == []
