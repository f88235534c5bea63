"""The HTTP process beside a running bridge: it never harms the bridge, and tells the truth about it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_process import ROOT, Bridge
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


def test_a_reload_takes_over_what_it_can_and_a_broken_file_changes_nothing(line: Line, http: HttpLine) -> None:
    bridge = line.start()
    http.wait("/readyz", 200)
    before = http_process(bridge)
    file = bridge.settings_file
    good = file.read_text()
    file.write_text(good + "\n[limits]\nmax_delay = '1m'\n[kafka]\ngroup = 'other'\n")
    told = http.get("/-/reload", "POST")
    assert (told.status, json.loads(told.text)["text"]) == (
        200,
        "Changed: limits.max_delay. Needs a restart: kafka.group.",
    )
    wait_for(lambda: http_process(bridge) != before, "another HTTP process, with the new limit")
    http.wait("/readyz", 200)
    line.publish(Props([delay(120_000)]), b"too long")
    assert "limits.max_delay" in line.wait_dead()[0]
    file.write_text(good + "\n[limits]\nmax_delai = '1m'\n")
    bridge.signal(signal.SIGHUP)
    bridge.wait_log("reload failed, and nothing was changed")
    http.wait("/readyz", 200)
    wait_for(lambda: "postdate_config_last_reload_successful 0" in http.get("/metrics").text, "the metric says so")
    delivers(line)


def test_workers_follow_a_reload_of_their_parent(line: Line, http: HttpLine) -> None:
    bridge = line.bridge({"bridge": {"workers": 2}}).start()
    http.wait("/readyz", 200)
    bridge.settings_file.write_text(bridge.settings_file.read_text() + "\n[limits]\nmax_delay = '1m'\n")
    assert http.get("/-/reload", "POST").status == 200
    line.publish(Props([delay(120_000)]), b"too long")
    assert "limits.max_delay" in line.wait_dead()[0]
    assert bridge.terminate() == 0


def test_healthcheck_asks_the_running_bridge(line: Line, http: HttpLine) -> None:
    assert healthcheck(line).returncode == 1
    bridge = line.start()
    http.wait("/readyz", 200)
    assert healthcheck(line).returncode == healthcheck(line, "--live").returncode == 0
    bridge.terminate()


def healthcheck(line: Line, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bridge.cli", "healthcheck", "--config", str(line.file()), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
