"""Floods of the HTTP process: health answers in time, and memory stays bounded.

Run it alone, with ``-s`` for the figures.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api import OPERATOR, VIEWER
from tests.bridge_process import ROOT
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import HttpLine, children_of
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.long]

SECONDS = 20.0
MEMORY_MB = 200
#: Far more than the 100 ms that an idle machine keeps: the flood runs on the same cores.
LIVE_P99_S = 1.0


class Probe:
    """Asks a health path every 50 ms, each time over a new connection."""

    def __init__(self, port: int, path: str = "/livez") -> None:
        self.took_s: list[float] = []
        self.failures: list[str] = []
        self._port, self._path = port, path
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            began_s = time.monotonic()
            try:
                with socket.create_connection(("127.0.0.1", self._port), 10) as connection:
                    request = f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                    connection.sendall(request.encode())
                    answer = connection.recv(4096)
                if not answer.startswith(b"HTTP/1.1 200"):
                    self.failures.append(repr(answer[:60]))
            except OSError as error:
                self.failures.append(str(error))
            self.took_s.append(time.monotonic() - began_s)

    def percentile_s(self, share: float) -> float:
        return sorted(self.took_s)[int(len(self.took_s) * share)]


def megabytes(pid: int, what: str) -> int:
    """VmRSS or VmHWM (the most ever) of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{what}:"))


@pytest.fixture
def http() -> HttpLine:
    return HttpLine()


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, http: HttpLine) -> Iterator[Line]:
    auth = {"auth": {"viewer_token": VIEWER, "operator_token": OPERATOR}}
    with Line(rabbitmq.url, redis_server.url, tmp_path, {**http.with_live(), **auth}) as line:
        yield line


@contextmanager
def flooded(name: str, port: int, token: str, seconds: float) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.floods", name, str(port), token, str(seconds)]
    with subprocess.Popen(command, cwd=ROOT) as flood:
        try:
            yield
        finally:
            flood.kill()


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("slow bodies", OPERATOR),
        ("openapi", ""),
        ("huge bulk", OPERATOR),
        ("bulk members", OPERATOR),
        ("header filters", VIEWER),
    ],
)
def test_health_answers_in_time_and_memory_stays_bounded(name: str, token: str, line: Line, http: HttpLine) -> None:
    bridge = line.start()
    http.wait("/readyz", 200)
    if name == "header filters":
        nested = struct.pack(">I", 2 * 63_000) + b"\0V" * 63_000
        for _ in range(60):
            line.publish(Props([delay(3_600_000), (b"nested", "F", nested)]))
        wait_for(lambda: line.waiting() >= 60, "all are parked")
    (child,) = children_of(bridge.pid, "bridge.http.server")
    with Probe(http.port) as quiet:
        time.sleep(5)
    before = megabytes(child, "VmRSS")
    with flooded(name, http.port, token or "none", SECONDS + 5):
        time.sleep(2)
        with Probe(http.port) as probe, Probe(http.live_port) as live, Probe(http.port, "/readyz") as ready:
            time.sleep(SECONDS)
    figures = (
        f"{name}: /livez quiet p50 {quiet.percentile_s(0.5) * 1000:.0f} p99 {quiet.percentile_s(0.99) * 1000:.0f} ms, "
        f"flooded p50 {probe.percentile_s(0.5) * 1000:.0f} p99 {probe.percentile_s(0.99) * 1000:.0f} ms, "
        f"at live_listen p50 {live.percentile_s(0.5) * 1000:.0f} p99 {live.percentile_s(0.99) * 1000:.0f} ms, "
        f"slowest /readyz {max(ready.took_s) * 1000:.0f} ms, "
        f"answers {len(probe.took_s)}, failed {len(probe.failures)} {probe.failures[:1]}, "
        f"memory {before} MB, at most {megabytes(child, 'VmHWM')} MB; bridge {megabytes(bridge.pid, 'VmHWM')} MB"
    )
    print(f"\n{figures}")
    assert not probe.failures + live.failures, figures
    assert probe.percentile_s(0.99) < LIVE_P99_S, figures
    assert megabytes(child, "VmHWM") < MEMORY_MB, figures
