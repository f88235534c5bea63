"""Messages with the header by which quorum queues of RabbitMQ 4.4 delay: due when asked, or a dead letter; listed.

On an earlier RabbitMQ postdate is told that it delays by itself. What such a queue would hold must not reach it, and
that is counted while no bridge runs.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from adapters.rabbitmq import native_guard
from bridge.cli import run_command
from bridge.delay.header import DUE_HEADERS, NATIVE
from tests import natively
from tests.bridge_process import Bridge, Tables
from tests.delay_line import Line, blocking, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.level_line import LevelLine
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Entry, Props
from tests.verdicts import answers, has

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

NATIVELY = ("tests.natively",)
YEAR_MS = 365 * 86_400_000


def native(tag: str, value: bytes) -> Entry:
    return (NATIVE.encode(), tag, value)


def long(value: int) -> Entry:
    return native("l", struct.pack(">q", value))


def text(value: str) -> Entry:
    return native("S", struct.pack(">I", len(value)) + value.encode())


def key(value: bytes) -> Entry:
    return (b"x-delay-key", "S", struct.pack(">I", len(value)) + value)


def put(line: Line, body: bytes, *headers: Entry) -> None:
    line.publish(Props(list(headers), {"delivery_mode": b"\2"}), body)


def is_native(rabbitmq: RabbitMQ) -> bool:
    return native_guard.delays_natively(rabbitmq.version)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process declares, it declares as on RabbitMQ 4.4."""
    monkeypatch.setattr(native_guard, "FIRST", natively.ANY)


@pytest.fixture
def line(guarded: None, rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        yield line


def timed(line: Line) -> str:
    return native_guard.timed_queue(line.intake)


def start(line: Line, settings: Tables | None = None) -> Bridge:
    return line.bridge(settings, NATIVELY).start().wait_ready()


# What reaches a quorum queue


@pytest.mark.parametrize("kind", ["redis", "levels", "ladder", "default exchange"])
def test_the_header_reaches_no_quorum_queue(
    guarded: None, rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, kind: str
) -> None:
    route = {"deliver_to": ""} if kind == "default exchange" else {"mode": kind}
    with LevelLine(
        rabbitmq.url, tmp_path, {"routes": {"orders": {**route, "mode": route.get("mode", "redis")}}}
    ) as line:
        later = int(time.time() * 1000) + 600_000
        level: Entry = (b"x-delay-level", "I", struct.pack(">i", 2))
        for more in ([], [delay(600_000)], [level], [delay(600_000), level]):
            put(line, b"timed", long(later), *more)
        put(line, b"delayed", delay(600_000))
        wait_for(lambda: line.depth(timed(line)) == 4, "four messages in the classic queue")
        wait_for(lambda: line.depth(line.intake) == 1, "one message in the quorum queue")
        if kind == "levels":
            assert sum(map(line.depth, line.places().levels.values())) == 0


def test_without_the_guard_it_does(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    """The control: what the tests here would see without the guard. RabbitMQ 4.4 hides the message then."""
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        if is_native(rabbitmq):
            pytest.skip("setup declares the guard")
        put(line, b"both", long(int(time.time() * 1000) + 600_000), delay(600_000))
        wait_for(lambda: line.depth(line.intake) == 1, "the message is in the quorum queue")


# What becomes of it


def moments(at_ms: int) -> dict[str, Entry]:
    """Forms of a moment that are read."""
    return {
        "long": long(at_ms),
        "text": text(str(at_ms)),
        "double": native("d", struct.pack(">d", float(at_ms))),
        "rounded up": native("d", struct.pack(">d", at_ms - 0.5)),
    }


PAST: dict[str, Entry] = {
    "past": long(1_600_000_000_000),
    "zero": long(0),
    "negative": long(-5),
    "nothing": native("V", b""),
}


def bad(now_ms: int) -> dict[str, Entry]:
    """What is no moment, or too far: RabbitMQ 4.4 delivers some of it at once, and the rest stops its queue."""
    return {
        "words": text("soon"),
        "boolean": native("t", b"\1"),
        "timestamp": native("T", struct.pack(">Q", now_ms // 1000 + 60)),
        "seconds": long(now_ms // 1000 + 60),
        "microseconds": long(now_ms * 1000),
        "2**53": long(2**53),
        "500 years": long(now_ms + 500 * YEAR_MS),
        "over max_delay": long(now_ms + 2 * YEAR_MS),
    }


def headers_of(message: Message) -> set[bytes]:
    return {header[1 : 1 + header[0]] for header in parts(message.properties).headers}


def test_every_form_is_due_when_asked_or_a_dead_letter_and_the_queues_live_on(line: Line) -> None:
    bridge = start(line)
    now_ms = int(time.time() * 1000)
    at_ms = now_ms + 4000
    for name, header in {**moments(at_ms), **PAST, **bad(now_ms)}.items():
        put(line, name.encode(), header)
        put(line, f"{name}, x-delay".encode(), header, delay(2500))
    got = line.receive(len(PAST))
    assert line.waiting() >= len(moments(0)), "in the lists while they wait"
    by_delay = {f"{name}, x-delay" for name in {**moments(0), **PAST, **bad(0)}}
    got += line.receive(len(by_delay) + len(moments(0)))
    came_ms = {message.body.decode(): message.at * 1000 for message in got}
    assert len(got) == len(came_ms)
    assert came_ms.keys() == PAST.keys() | by_delay | moments(0).keys()
    assert all(came_ms[name] - now_ms > 2500 for name in by_delay), "x-delay wins, and counts from the publish"
    assert all(0 <= came_ms[name] - at_ms < 5000 for name in moments(0))
    assert all(NATIVE.encode() not in headers_of(message) for message in got if message.body.decode() not in PAST)
    reasons = line.wait_dead(len(bad(0)))
    assert [f"header {NATIVE}" in reason for reason in reasons] == [True] * len(bad(0)), reasons
    put(line, b"after", long(now_ms), delay(1))
    put(line, b"after", delay(1))
    assert len(line.receive(2)) == 2, bridge.log_tail()


def test_it_is_cancelled_and_replaced_by_its_key(line: Line) -> None:
    start(line)
    soon = int(time.time() * 1000) + 3000
    put(line, b"cancelled", long(soon), key(b"a"))
    put(line, b"replaced", long(soon), key(b"b"))
    wait_for(lambda: line.waiting() == 2, "both wait")
    assert run_command(["cancel", "--key", "a", "--route", "orders", "--config", str(line.file())]) == 0
    put(line, b"replacement", long(soon), key(b"b"))
    got = line.receive_until(2, 5)
    assert [message.body for message in got] == [b"replacement"]


def test_a_quorum_queue_of_the_consumers_does_not_hold_it_again(
    guarded: None, rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    """Bad headers are delivered here, so the far moment is still in the message that arrives at postdate."""
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"headers": {"on_bad": "deliver"}}) as line:
        line.declare_queue(f"{line.queue}.quorum", {"x-queue-type": "quorum"})
        line.bind(f"{line.queue}.quorum", line.target)
        start(line)
        put(line, b"far", long(int(time.time() * 1000) + 500 * YEAR_MS))
        put(line, b"later", long(int(time.time() * 1000) + 1000))
        got = line.receive(2, queue=f"{line.queue}.quorum")
        assert [message.body for message in got] == [b"far", b"later"]


def test_without_redis_it_waits_in_a_level(guarded: None, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    with LevelLine(rabbitmq.url, tmp_path) as line:
        line.bridge(command=NATIVELY).start().wait_log("started")
        at_ms = int(time.time() * 1000) + 1500
        level: Entry = (b"x-delay-level", "I", struct.pack(">i", 1))
        put(line, b"timed", long(at_ms))
        put(line, b"by level", long(at_ms), level)
        put(line, b"far", long(2**53))
        got = line.receive(2)
        assert [message.body for message in got] == [b"by level", b"timed"]
        assert got[1].at * 1000 >= at_ms
        dead, reason = line.dead_letters()[0]
        assert (dead.body, NATIVE in reason) == (b"far", True)


# Upgrades


def test_an_existing_intake_is_covered_by_the_next_start_and_nothing_is_lost(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker of earlier is one that postdate takes for one without delays, also where it has them."""
    monkeypatch.setattr(native_guard, "FIRST", (99, 0))
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        put(line, b"in the intake", delay(1))
        monkeypatch.setattr(native_guard, "FIRST", natively.ANY)
        line.setup()
        put(line, b"timed", long(2**53), delay(1))
        wait_for(lambda: (line.depth(line.intake), line.depth(timed(line))) == (1, 1), "one in each queue")
        bridge = start(line)
        assert {message.body for message in line.receive(2)} == {b"in the intake", b"timed"}, bridge.log_tail()


def test_a_running_process_restores_the_guard(line: Line) -> None:
    """As after an upgrade of the broker under it: the queue is missing, and the front leads to the intake."""
    bridge = start(line)
    with blocking(line.broker_url) as connection:
        channel = connection.channel()
        arguments = {"x-match": "any-with-x", **dict.fromkeys(DUE_HEADERS)}
        channel.queue_bind(line.intake, line.front, "", arguments)
        channel.exchange_delete(native_guard.sort_exchange(line.intake))
        channel.queue_delete(timed(line))
    numbers = count()

    def comes_once() -> bool:
        body = b"%d" % next(numbers)
        put(line, body, PAST["past"], delay(1))
        return [message.body for message in line.receive_until(50, 1.5)].count(body) == 1

    bridge.wait_log("native delays queue", 20)
    wait_for(lambda: comes_once() and comes_once() and comes_once(), f"no copies; {bridge.log_tail()}", 40)
    assert bridge.terminate() == 0
    put(line, b"timed", long(2**53), delay(1))
    wait_for(lambda: line.depth(timed(line)) == 1, "it is in the classic queue")
    assert line.depth(line.intake) == 0


# What check says


@pytest.fixture
def judged(guarded: None, managed_rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path) -> Iterator[Line]:
    settings = {"rabbitmq": {"management_url": managed_rabbitmq.management_url}, "http": {"enabled": False}}
    with Line(managed_rabbitmq.url, redis_url, tmp_path, settings) as line:
        yield line


def test_check_names_the_version_and_the_queues_in_which_rabbitmq_delays(
    judged: Line, managed_rabbitmq: RabbitMQ, capsys: pytest.CaptureFixture[str]
) -> None:
    judged.declare_queue(f"{judged.queue}.quorum", {"x-queue-type": "quorum"})
    judged.bind(f"{judged.queue}.quorum", judged.target)
    found = answers("check", judged.file(), capsys)
    assert has(found["OK"], f"RabbitMQ: version {managed_rabbitmq.version}")
    assert has(found["OK"], f"publish past postdate to quorum queues: '{judged.queue}.quorum'")
    assert not has(found["FAIL"], NATIVE)


def test_check_fails_while_the_header_reaches_the_intake(judged: Line, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"messages with {NATIVE} reach queue '{judged.intake}'"
    judged.bind(judged.intake, judged.front, "", {"x-match": "any-with-x", "x-delay": None, "other": None})
    assert has(answers("check", judged.file(), capsys)["FAIL"], words), "by a binding that setup does not know"
    judged.delete_queue(timed(judged))
    assert has(answers("check", judged.file(), capsys)["FAIL"], words), "before setup"
    judged.delete_queue(judged.intake)
    assert not has(answers("check", judged.file(), capsys)["FAIL"], words), "a new route has no queue yet"
