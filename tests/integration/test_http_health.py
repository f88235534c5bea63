"""The health paths of a running bridge: alive by progress, ready by connections, and 503 before it stops."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import HttpLine, children_of
from tests.raw_amqp import Message, RawConnection
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.rabbitmq

MESSAGES = 10_000


@pytest.fixture
def http() -> HttpLine:
    return HttpLine()


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, http: HttpLine) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, http.settings) as line:
        yield line


def test_a_blocked_dispatch_loop_fails_livez(line: Line, http: HttpLine) -> None:
    quick = {"redis": {"timeout": "100ms", "connect_timeout": "100ms"}}
    bridge = line.bridge({**quick, **http.with_live()}, ("tests.chaos.blocked",)).start()
    http.wait("/readyz", 200)
    assert http.get("/livez").status == http.live() == 200
    bridge.signal(signal.SIGUSR1)
    assert http.wait("/livez?verbose", 503).text.startswith("[-]loops the loop of claim makes no progress in ")
    wait_for(lambda: http.live() == 503, "the address for /livez alone says so, too")
    bridge.kill()


@pytest.mark.long
def test_a_worker_that_hangs_fails_livez_also_at_its_own_address(line: Line, http: HttpLine) -> None:
    bridge = line.bridge({"bridge": {"workers": 2}, **http.with_live()}).start()
    http.wait("/readyz", 200)
    assert http.live() == 200
    first, _ = children_of(bridge.pid, "run_worker")
    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: http.live() == 503, "a worker hangs", 60)
    os.kill(first, signal.SIGCONT)
    wait_for(lambda: http.live() == 200, "it goes on")


def test_an_http_process_that_hangs_or_dies_leaves_livez_at_its_own_address(line: Line, http: HttpLine) -> None:
    bridge = line.bridge(http.with_live()).start()
    http.wait("/readyz", 200)
    (child,) = children_of(bridge.pid, "bridge.http.server")
    os.kill(child, signal.SIGSTOP)
    assert http.get("/livez", timeout_s=1).status == 0
    assert http.live() == 200
    os.kill(child, signal.SIGKILL)
    assert http.live() == 200
    http.wait("/livez", 200)
    assert bridge.terminate() == 0


@pytest.mark.long
def test_a_bridge_that_hangs_fails_livez(line: Line, http: HttpLine) -> None:
    bridge = line.start()
    http.wait("/readyz", 200)
    bridge.pause()
    http.wait("/livez", 503, 30)
    bridge.resume()
    http.wait("/livez", 200)


def test_a_store_or_a_broker_that_is_away_fails_readyz_and_not_livez(
    line: Line, http: HttpLine, redis_server: Redis
) -> None:
    bridge = line.bridge({"redis": {"timeout": "500ms"}}).start()
    route = next(iter(line.settings["routes"]))
    http.wait("/readyz", 200)
    redis_server.pause()
    try:
        http.wait("/readyz", 503)
        assert "[-]redis " in http.get(f"/readyz?verbose&route={route}").text
        assert http.get("/livez").status == 200
        assert http.get("/startupz").status == 200
    finally:
        redis_server.resume()
    http.wait("/readyz", 200)
    assert bridge.running()


def test_a_frozen_rabbitmq_fails_readyz_within_seconds_and_keeps_its_connection_and_an_alarm_does_not(
    own_rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, http: HttpLine
) -> None:
    with Line(own_rabbitmq.url, redis_server.url, tmp_path, http.settings) as line:
        bridge = line.bridge({"rabbitmq": {"heartbeat": "1h"}}).start()
        http.wait("/readyz", 200)
        own_rabbitmq.pause()
        try:
            text = http.wait("/readyz?verbose", 503).text
            assert "[-]rabbitmq nothing is taken from RabbitMQ: it has not answered for " in text
        finally:
            own_rabbitmq.resume()
        http.wait("/readyz", 200)
        line.publish(Props([delay(3000)]), b"waits")
        own_rabbitmq.alarm(True)
        wait_for(lambda: "RabbitMQ blocks publishers" in http.get("/readyz").text, "it blocks", 30)
        blocked_s = time.monotonic()
        while time.monotonic() - blocked_s < 5:  # longer than RabbitMQ may be silent
            assert http.get("/readyz").status == 200
        assert "no heartbeat" not in bridge.log()
        assert bridge.log().count("it has not answered for ") == 1


def test_a_stop_amid_ten_thousand_deliveries_fails_readyz_first_and_loses_nothing(line: Line, http: HttpLine) -> None:
    bridge = line.start()
    http.wait("/readyz", 200)
    due_ms = int(time.time() * 1000) + 4000
    publish_all(line, due_ms)
    seen: list[int] = []
    watching = threading.Thread(target=watch, args=(http, seen))
    time.sleep(max(0.0, due_ms / 1000 - time.time()))
    got = line.receive(200)  # in the middle of the deliveries
    watching.start()
    began_s = time.monotonic()
    assert bridge.terminate() == 0
    assert time.monotonic() - began_s < 25
    watching.join(20)
    assert 503 in seen, seen
    assert 200 not in seen[seen.index(503) :], "it was ready again while it stopped"
    assert len(got) < MESSAGES
    bodies = {message.body for message in got}
    line.start()
    while len(bodies) < MESSAGES:
        bodies |= {message.body for message in line.receive(1, 20)}
    assert len(bodies) == MESSAGES


def publish_all(line: Line, due_ms: int) -> None:
    """Publish the messages, all due at one moment, and wait for the confirms."""
    connection = RawConnection(line.broker_url)
    connection.confirm()
    raw = Props([(b"x-deliver-at", "l", struct.pack(">q", due_ms))], {"delivery_mode": b"\2"}).encode()
    for number in range(MESSAGES):
        connection.publish(line.front, b"key.%d" % (number % 50), raw, b"%d" % number)
    reached = 0
    while reached < MESSAGES:
        reached = max(reached, *(answer.tag for answer in connection.events(10) if not isinstance(answer, Message)))
    connection.close()


def watch(http: HttpLine, seen: list[int]) -> None:
    """Ask /readyz until nothing answers any more."""
    while not seen or seen[-1]:
        seen.append(http.get("/readyz", timeout_s=2).status)
