"""What one producer can do to another's messages through a front exchange, and that the settings close it."""

from __future__ import annotations

import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_process import ROOT, Tables, toml
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.level_line import LevelLine
from tests.preloaded import run_postdate
from tests.unit.raw_properties import Entry, Props, short, sized

pytestmark = pytest.mark.rabbitmq


def text(name: str, value: str) -> Entry:
    return (name.encode(), "S", sized(value.encode()))


def put(line: Line, body: bytes, *headers: Entry, key: bytes = b"some.key", **properties: bytes) -> None:
    line.publish(Props(list(headers), {"delivery_mode": b"\2", **properties}), body, key)


def command(line: Line, *words: str) -> subprocess.CompletedProcess[str]:
    """One call of the command line, with the settings as they are now."""
    file = line.folder / f"{line.name}.command.toml"
    file.write_text(toml(line.settings))
    file.chmod(0o600)
    return run_postdate([*words, "--config", str(file)], ROOT)


def to_queues(allow_to: list[str] | None = None, **route: object) -> Tables:
    listed = {} if allow_to is None else {"allow_to": allow_to}
    return {"routes": {"orders": {"deliver_to": "", **listed, **route}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trust")


@pytest.fixture(scope="module")
def closed(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    """A route that trusts its producers with nothing, beside one that is open."""
    line = Line(rabbitmq.url, redis_server.url, folder)
    line.settings["routes"]["orders"] |= {"cancel": False, "on_same_key": "reject"}
    open_front = line.add_route("open", deliver_to=line.target)
    with line:
        line.start()
        yield line
    assert open_front


def test_a_producer_cannot_cancel_what_another_has_parked(closed: Line) -> None:
    before = len(closed.dead())
    put(closed, b"by key", delay(700), text("x-delay-key", "a"))
    put(closed, b"by message_id", delay(700), message_id=short(b"b"))
    put(closed, b"cancels", text("x-delay-cancel", "a"))
    put(closed, b"cancels", text("x-delay-cancel", "b"), delay(100))
    assert {message.body for message in closed.receive(2)} == {b"by key", b"by message_id"}
    reasons = closed.wait_dead(before + 2)
    said = "not_allowed: header x-delay-cancel cancels nothing here, the route's cancel is false"
    assert reasons.count(said) == 2
    assert closed.receive_until(1, 0.3) == []


def test_a_producer_cannot_replace_what_another_has_parked(closed: Line) -> None:
    before, start = len(closed.dead()), time.time()
    put(closed, b"mine", delay(2000), text("x-delay-key", "mine"))
    put(closed, b"forged", delay(1), text("x-delay-key", "mine"))
    (got,) = closed.receive()
    assert got.body == b"mine"
    assert got.at - start >= 2
    assert len(closed.wait_dead(before + 1)) == before + 1


def test_another_route_of_the_same_postdate_is_as_open_as_before(closed: Line) -> None:
    front = f"{closed.name}.open.delay"
    for body, ms in ((b"first", 2000), (b"second", 1000)):
        closed.publish(Props([delay(ms), text("x-delay-key", "k")], {}), body, exchange=front)
    assert [message.body for message in closed.receive()] == [b"second"]
    closed.publish(Props([delay(1500), text("x-delay-key", "k")], {}), b"cancelled", exchange=front)
    closed.publish(Props([text("x-delay-cancel", "k")], {}), exchange=front)
    assert closed.receive_until(1, 2) == []


LEVEL: Entry = (b"x-delay-level", "I", struct.pack(">i", 1))


@pytest.mark.parametrize("headers", [(), (delay(50),), (LEVEL,)], ids=["at once", "delayed", "by level"])
@pytest.mark.parametrize("mode", ["redis", "levels", "ladder"])
def test_a_producer_reaches_the_listed_queues_and_no_other(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path, mode: str, headers: tuple[Entry, ...]
) -> None:
    quick: Tables = {"headers": {"levels": ["300ms", "1s"]}, "levels": {"alone_after": "100ms"}}
    line = (
        Line(rabbitmq.url, redis_server.url, folder, quick)
        if mode == "redis"
        else LevelLine(rabbitmq.url, folder, quick, mode)
    )
    line.settings["routes"]["orders"] |= {"deliver_to": "", "allow_to": [line.queue, f"{line.name}.also"]}
    with line:
        foreign = f"{line.name}.foreign"
        line.declare_queue(foreign)
        bridge = line.run() if isinstance(line, LevelLine) else line.start()
        put(line, b"foreign", *headers, key=foreign.encode())
        put(line, b"own", *headers, key=line.queue.encode())
        assert [message.body for message in line.receive()] == [b"own"]
        said = f"not_allowed: the routing key '{foreign}' is not in the route's allow_to"
        if isinstance(line, LevelLine):
            assert [reason for _, reason in line.dead_letters()] == [said]
        else:
            assert line.wait_dead() == [said]
        assert line.receive_until(1, 0.5, foreign) == [], bridge.log_tail()


def test_check_names_an_open_route_and_send_refuses_a_queue_that_is_not_listed(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, folder, to_queues()) as line:
        warned = command(line, "check")
        assert f"every producer of exchange '{line.front}' can write to any queue" in warned.stdout
        line.settings["routes"]["orders"] |= {"allow_to": [line.queue]}
        assert "can write to any queue" not in command(line, "check").stdout
        refused = command(line, "send", "orders", "body", "--in", "1h", "--routing-key", "foreign")
        assert refused.returncode == 5
        assert "Nothing was sent: the routing key 'foreign' is not in the route's allow_to" in refused.stderr
        assert command(line, "send", "orders", "body", "--in", "1h", "--routing-key", line.queue).returncode == 0


def test_what_is_parked_for_a_queue_that_the_list_no_longer_has_becomes_a_dead_letter(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    line = Line(rabbitmq.url, redis_server.url, folder, to_queues())
    with line:
        bridge = line.start()
        put(line, b"parked while there was no list", delay(3000), key=line.queue.encode())
        wait_for(lambda: line.waiting() == 1, "one message is parked")
        assert bridge.terminate() == 0
        line.bridge(to_queues(["another.queue"])).start()
        (reason,) = line.wait_dead()
        assert reason == f"not_allowed: the routing key '{line.queue}' is not in the route's allow_to"
        assert line.receive_until(1, 0.3) == []
