"""The HTTP process beside a running bridge: it never harms the bridge, and tells the truth about it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bridge_process import ROOT, Bridge
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import HttpLine, children_of
from tests.preloaded import run_postdate
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.rabbitmq


@pytest.fixture
def http() -> HttpLine:
    return HttpLine()


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, http: HttpLine) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, http.settings) as line:
        yield line


def http_process(bridge: Bridge) -> int:
    (pid,) = children_of(bridge.pid, "bridge.http.server")
    return pid


def delivers(line: Line) -> None:
    line.publish(Props([delay(50)]), b"one")
    assert [message.body for message in line.receive(1)] == [b"one"]


def test_a_killed_http_process_is_restarted_and_the_bridge_goes_on_delivering(line: Line, http: HttpLine) -> None:
    bridge = line.start()
    lines = http.wait("/readyz?verbose", 200).text.splitlines()
    assert lines[:3] == ["[+]rabbitmq ok", "[+]redis ok", "ok"]
    assert lines[3].startswith(("All well: ", "Trouble: "))  # the report in the store may be a beat behind
    before = http_process(bridge)
    os.kill(before, signal.SIGKILL)
    delivers(line)
    assert http.wait("/readyz", 200).text.startswith("ok\n")
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
    http.wait("/readyz", 200, 60)
    first, _ = children_of(bridge.pid, "run_worker")
    os.kill(first, signal.SIGKILL)
    delivers(line)
    http.wait("/readyz", 200, 60)
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
    before = http_process(bridge)
    file.write_text(file.read_text() + "\n[retry]\nattempts = 7\n")
    assert http.get("/-/reload", "POST").status == 200
    known = {setting["name"]: setting["value"] for setting in json.loads(http.get("/api/v1/config").text)["settings"]}
    assert known["retry.attempts"] == "7"
    assert http_process(bridge) == before, "the same one knows it, whatever operations it runs"
    file.write_text(good + "\n[limits]\nmax_delai = '1m'\n")
    bridge.signal(signal.SIGHUP)
    bridge.wait_log("reload failed, and nothing was changed")
    http.wait("/readyz", 200)
    wait_for(lambda: "postdate_config_last_reload_successful 0" in http.get("/metrics").text, "the metric says so")
    delivers(line)


class Asking:
    """Asks a path every 20 ms, each time over a new connection."""

    def __init__(self, http: HttpLine, path: str) -> None:
        self.path = path
        self.answers: Counter[tuple[int, str]] = Counter()
        self.ended = threading.Event()
        self._http = http
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.ended.wait(0.02):
            answer = self._http.get(self.path, timeout_s=30)
            self.answers[answer.status, "" if answer.status == 200 else answer.text[:80]] += 1


@contextmanager
def asked(http: HttpLine, *paths: str) -> Iterator[None]:
    """Ask all paths meanwhile: each answer is a 200."""
    asking = [Asking(http, path) for path in paths]
    try:
        yield
    finally:
        for each in asking:
            each.ended.set()
        for each in asking:
            each.thread.join(60)
    assert [(each.path, each.answers) for each in asking if [status for status, _ in each.answers] != [200]] == []


def wait_replaced(bridge: Bridge, before: int) -> None:
    wait_for(lambda: before not in children_of(bridge.pid, "bridge.http.server"), "another one has taken over", 60)


def test_page_probes_and_metrics_answer_through_reloads_and_broken_files(line: Line, http: HttpLine) -> None:
    bridge = line.bridge({"canary": {"every": "30s"}}).start()
    http.wait("/readyz", 200)
    file = bridge.settings_file
    good = file.read_text()
    with asked(http, "/livez", "/readyz", "/startupz", "/metrics", "/"):
        for number in range(2):
            before = http_process(bridge)
            file.write_text(good.replace("30s", f"{31 + number}s"))
            bridge.signal(signal.SIGHUP)
            wait_for(lambda: len(children_of(bridge.pid, "bridge.http.server")) == 2, "another HTTP process starts", 60)
            file.write_text("[limits]\nmax_delai = '1m'\n")
            bridge.signal(signal.SIGHUP)
            wait_replaced(bridge, before)
    bridge.wait_log("reload failed, and nothing was changed")
    assert "never retrieved" not in bridge.log()
    assert "Traceback" not in bridge.log()
    delivers(line)
    assert bridge.terminate() == 0


def test_a_reload_whose_http_process_does_not_start_leaves_the_one_before(
    line: Line, http: HttpLine, tmp_path: Path
) -> None:
    bridge = line.start()
    http.wait("/readyz", 200)
    before = http_process(bridge)
    good = bridge.settings_file.read_text()
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no certificate")
    files = f'cert_file = "{tmp_path}/cert.pem"\nkey_file = "{tmp_path}/key.pem"\n'
    with asked(http, "/livez", "/readyz"):
        bridge.settings_file.write_text(good.replace("[http]\n", f"[http]\n{files}"))
        bridge.signal(signal.SIGHUP)
        bridge.wait_log("the HTTP process with the new settings does not start", 60)
        bridge.settings_file.write_text(good)
        bridge.signal(signal.SIGHUP)
        wait_replaced(bridge, before)
    assert bridge.terminate() == 0


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
    return run_postdate(["healthcheck", "--config", str(line.file()), *options], ROOT)
