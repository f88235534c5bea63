"""``postdate run`` under a service manager: what a socket in the place of systemd's hears of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.telemetry.health import WELL
from tests.bridge_line import NO_STORE
from tests.bridge_process import ROOT, Tables, toml
from tests.delay_line import Line
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.level_line import LevelLine

pytestmark = pytest.mark.rabbitmq

WATCHDOG_S = 2.0
WITHOUT = {"POSTDATE_HTTP__ENABLED": "false", "POSTDATE_CANARY__ENABLED": "false"}


class Supervised:
    """One ``postdate run`` and what it has told, each with its moment."""

    def __init__(self, bound: socket.socket, process: subprocess.Popen[bytes], log: Path) -> None:
        self._bound = bound
        self.process = process
        self.log = log
        self.told: list[tuple[float, str]] = []

    def heard(self, wanted: Callable[[str], object]) -> bool:
        """Whether such a thing has been told by now."""
        while True:
            try:
                self.told.append((time.monotonic(), self._bound.recv(9000).decode()))
            except BlockingIOError:
                return any(wanted(text) for _, text in self.told)

    def wait(self, text: str, deadline_s: float = 40.0) -> None:
        """Until this has been told."""
        what = f"{text!r} is told: {self.told}; log: {self.log.read_text()[-2000:]}"
        wait_for(lambda: self.heard(lambda word: word.startswith(text)), what, deadline_s)

    def signs(self) -> int:
        """Signs of life until now."""
        self.heard(bool)
        return [text for _, text in self.told].count("WATCHDOG=1")

    def children(self) -> list[int]:
        """The pids of its workers."""
        file = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in file.read_text().split()]


@contextmanager
def supervised(folder: Path, settings: Tables, *options: str) -> Iterator[Supervised]:
    """Started as systemd would, with a watchdog; at the end it is gone."""
    file, log, address = folder / "supervised.toml", folder / "supervised.log", folder / "notify"
    file.write_text(toml(settings))
    file.chmod(0o600)
    watchdog = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}"}
    environment = {"PATH": "/usr/bin:/bin", **watchdog, **WITHOUT}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound, log.open("ab") as out:
        bound.bind(str(address))
        bound.setblocking(False)
        command = [sys.executable, "-m", "bridge.cli", "run", "--config", str(file), *options]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
        try:
            yield Supervised(bound, process, log)
        finally:
            process.kill()
            process.wait()


def stops_well(service: Supervised) -> None:
    """It tells that it stops before it has stopped."""
    service.process.send_signal(signal.SIGTERM)
    service.wait("STOPPING=1")
    assert service.process.wait(20) == 0


def test_ready_signs_of_life_the_sentence_and_the_stop_are_told(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with (
        Line(rabbitmq.url, redis_server.url, tmp_path) as line,
        supervised(tmp_path, line.settings) as service,
    ):
        service.wait("READY=1")
        service.wait(f"STATUS={WELL}")
        before = service.signs()
        wait_for(lambda: service.signs() >= before + 3, "three signs of life", 3 * WATCHDOG_S)
        stops_well(service)
        assert [text for _, text in service.told].count("READY=1") == 1


def test_a_route_without_a_store_tells_the_same(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    with LevelLine(rabbitmq.url, tmp_path) as line, supervised(tmp_path, line.settings) as service:
        service.wait("READY=1")
        before = service.signs()
        wait_for(lambda: service.signs() >= before + 2, "two signs of life", 3 * WATCHDOG_S)
        stops_well(service)


@pytest.mark.long
def test_the_parent_tells_of_all_workers_and_is_silent_when_one_of_them_is(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    """The one that hangs is stopped with SIGSTOP; when it is gone and another has started, the signs go on."""
    with (
        Line(rabbitmq.url, redis_server.url, tmp_path, {"bridge": {"workers": 2}}) as line,
        supervised(tmp_path, line.settings) as service,
    ):
        service.wait("READY=1", 30)
        frozen, other = service.children()
        assert other
        before = service.signs()
        wait_for(lambda: service.signs() > before, "a sign of life", 2 * WATCHDOG_S)
        subprocess.run(["kill", "-STOP", str(frozen)], check=True)
        service.wait("STATUS=The loop of worker ", 60)
        silent = service.signs()
        time.sleep(2 * WATCHDOG_S)
        assert service.signs() == silent
        subprocess.run(["kill", "-KILL", str(frozen)], check=True)
        wait_for(lambda: service.signs() > silent + 1, "signs of life of the next worker", 20)
        stops_well(service)


@pytest.mark.long
def test_ready_does_not_wait_for_a_redis_that_is_away_for_ever(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    with Line(rabbitmq.url, NO_STORE, tmp_path) as line, supervised(tmp_path, line.settings) as service:
        service.wait("STATUS=Waiting for Redis: ")
        assert not service.heard(lambda text: text == "READY=1")
        service.wait("READY=1", 20)
        before = service.signs()
        wait_for(lambda: service.signs() >= before + 2, "signs of life while it waits", 3 * WATCHDOG_S)
        stops_well(service)


def test_a_credential_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    route = {"routes": {"orders": {"intercept": "orders.delay", "deliver_to": "orders"}}}
    file = tmp_path / "postdate.toml"
    file.write_text(toml(route))
    name = f"{tmp_path}/redis-password"
    ended = subprocess.run(
        [sys.executable, "-m", "bridge.cli", "run", "--config", str(file)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "POSTDATE_REDIS__PASSWORD_FILE": name},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    said = f"POSTDATE_REDIS__PASSWORD_FILE names a file {name} that cannot be read: No such file or directory"
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
