"""The HTTP process beside a running bridge: it never harms the bridge, and tells the truth about it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_process import Bridge
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import HttpLine, children_of
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def http() -> HttpLine:
    return HttpLine()


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, http: HttpLine) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, http.settings) as one:
        yield one


def http_process(bridge: Bridge) -> int:
    (pid,) = children_of(bridge.pid, "bridge.http.server")
    return pid


def delivers(line: Line) -> None:
    line.publish(Props([delay(50)]), b"one")
    assert [one.body for one in line.receive(1)] == [b"one"]


def test_a_killed_http_process_is_restarted_and_the_bridge_goes_on_delivering(line: Line, http: HttpLine) -> None:
    bridge = line.start()
    assert http.wait("/readyz?verbose", 200).text.splitlines() == ["[+]rabbitmq ok", "[+]redis ok", "ok"]
    before = http_process(bridge)
    os.kill(before, signal.SIGKILL)
    delivers(line)
    assert http.wait("/readyz", 200).text == "ok\n"
    assert http_process(bridge) != before
    assert bridge.terminate() == 0
    assert http.get("/livez").status == 0


def test_a_taken_port_is_a_trouble_and_a_retry(line: Line, http: HttpLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", http.port))
        taken.listen()
        bridge = line.bridge().start()
        bridge.wait_health(f"cannot listen on 127.0.0.1:{http.port}")
        delivers(line)
    http.wait("/readyz", 200)
    wait_for(lambda: "listen" not in bridge.health(), "the trouble is over")


def test_the_http_process_ends_with_a_bridge_that_was_killed(line: Line, http: HttpLine) -> None:
    bridge = line.start()
    http.wait("/readyz", 200)
    child = http_process(bridge)
    bridge.kill()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the HTTP process has ended")


def test_one_address_serves_for_a_parent_and_its_workers(line: Line, http: HttpLine) -> None:
    bridge = line.bridge({"bridge": {"workers": 2}}).start()
    http.wait("/readyz", 200)
    first, _ = children_of(bridge.pid, "run_worker")
    os.kill(first, signal.SIGKILL)
    delivers(line)
    http.wait("/readyz", 200)
    assert bridge.terminate() == 0
