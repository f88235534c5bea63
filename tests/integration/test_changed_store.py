"""A route leaves its store while messages wait there: Redis is away, or an old instance still parks beside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_line import merged
from tests.bridge_process import Tables
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.integration.test_levels_commands import Shell
from tests.level_line import LEVELS
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

UNUSED = "of RabbitMQ routes that had mode redis before (orders)"
CANNOT_TELL = "whether Redis still holds messages of previous settings is not known: Redis does not answer"


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path) -> Iterator[Line]:
    """The settings of before: in a store."""
    quick: Tables = {"dispatch": {"lease": "3s", "takeover": "2s"}, "redis": {"durability": "none"}}
    with Line(rabbitmq.url, redis_url, tmp_path, quick) as line:
        yield line


def without_store(line: Line) -> Tables:
    """The same route without one; its front is another, for the old one cannot be changed while it is used."""
    new = {"mode": "levels", "intercept": f"{line.front}.new", "queue": f"{line.intake}.new"}
    return merged(LEVELS, {"routes": {"orders": new}})


def put(line: Line, body: bytes, wait_ms: int) -> None:
    line.publish(Props([delay(wait_ms)], {"delivery_mode": b"\2"}), body)


@pytest.mark.long
def test_what_is_parked_is_delivered_when_a_redis_that_was_away_at_the_start_is_back(
    line: Line, redis_url: str, proxy: StartProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    with line.start() as old:
        sent = time.time()
        put(line, b"parked", 4000)
        wait_for(lambda: line.waiting() == 1, "the message is parked")
        old.kill()
    link = proxy(redis_url)
    changed = merged(without_store(line), {"redis": {"url": link.through(redis_url)}})
    link.cut()
    shell = Shell(line, capsys)
    levels = {row["text"]: row["level"] for row in shell.rows("check", settings=changed) if row["subject"] == "store"}
    ((text, level),) = levels.items()
    assert (level, "no store needed by orders, and whether Redis still holds their messages is not known") == (
        "WARN",
        text.partition(":")[0],
    )
    with line.bridge(changed).start() as bridge:
        bridge.wait_log(CANNOT_TELL)
        link.heal()
        (got,) = line.receive()
        assert (got.body, got.at >= sent + 4) == (b"parked", True)
        assert bridge.log().count(CANNOT_TELL) == 1
        assert f"Redis still holds messages {UNUSED}: 1 parked, 0 dead" in bridge.log()
        assert bridge.terminate() == 0
    assert line.stored() == 0


@pytest.mark.long
def test_what_an_old_instance_parks_beside_the_new_one_arrives_when_the_old_one_is_gone(
    line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, changed = Shell(line, capsys), without_store(line)
    with line.start() as old, line.bridge(changed).start() as new:
        new.wait_log("started")
        found = {row["text"] for row in shell.rows("check", settings=changed) if row["subject"] == "store"}
        assert len(found) == 1
        assert "Redis holds no message of theirs: redis://" in found.pop()
        sent = time.time()
        bodies = [b"soon", b"late", b"later"]
        for place, body in enumerate(bodies):
            put(line, body, 1000 + 4000 * place)
        assert line.receive()[0].body == b"soon"
        wait_for(lambda: (line.stored(), line.waiting()) == (2, 2), "the first is settled and both others are parked")
        old.kill()
        got = line.receive(2, 20)
        assert [message.body for message in got] == bodies[1:]
        assert all(message.at >= sent + wait_s for message, wait_s in zip(got, (5, 9), strict=True))
        assert new.terminate() == 0
    assert line.stored() == 0


def test_who_has_named_no_redis_needs_none_and_is_told_of_none(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever the default leads to on this machine, nothing is parked there under a prefix of the test's own."""
    changed = without_store(line)
    line.settings["redis"] = {"key_prefix": line.name}
    found = Shell(line, capsys).rows("setup", settings=changed)
    assert found
    levels = {row["level"] for row in Shell(line, capsys).rows("check", settings=changed) if row["subject"] == "store"}
    assert levels == {"OK"}
    with line.bridge(changed).start() as bridge:
        bridge.wait_log("started")
        time.sleep(1)  # in which nothing may be said
        assert "left behind" not in bridge.log()
        assert bridge.terminate() == 0


def test_a_dead_letter_of_before_is_found_retried_and_delivered_by_the_new_settings(
    line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    shell, changed = Shell(line, capsys), without_store(line)
    with line.start() as old:
        line.publish(Props([(b"x-delay", "S", b"\0\0\0\4soon")], {"delivery_mode": b"\2"}), b"an unpaid order")
        line.wait_dead()
        old.kill()
    with line.bridge(changed).start() as bridge:
        bridge.wait_log(f"Redis still holds dead letters {UNUSED}: 1")
        (letter,) = shell.rows("list", "--state", "dead", settings=changed)
        assert letter["reason"].startswith("bad_header")
        (retried,) = shell.rows("retry", letter["id"], settings=changed)
        assert retried["state"] in ("parked", "claimed", "gone")
        assert line.receive()[0].body == b"an unpaid order"
        assert bridge.terminate() == 0
    assert line.stored() == 0
    assert "none can be shown" in (shell("list", settings=changed, code=5) or shell.said)


def test_a_start_tells_of_what_is_parked_under_a_name_that_is_gone(line: Line) -> None:
    with line.start() as old:
        put(line, b"parked", 60_000)
        wait_for(lambda: line.waiting() == 1, "the message is parked")
        old.kill()
    line.settings = {**line.settings, "routes": {"bills": line.settings["routes"]["orders"]}}
    with line.start() as renamed:
        assert 'route "orders" is not configured and has parked messages: 1' in renamed.log()
        assert "route=orders" in renamed.log()
        assert renamed.terminate() == 0
