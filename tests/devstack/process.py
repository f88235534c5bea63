"""An owned server as a process of this machine."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.devstack import keeper
from tests.devstack.keeper import create_time, is_same
from tests.devstack.service import StartFailed, wait_for

TOOL_TIMEOUT_S = 60.0
LOG_TAIL_BYTES = 4_000

_live: list[ProcessRunner] = []


@dataclass(frozen=True)
class Launch:
    """How to start one server. `beside` is a second process it cannot do without (RabbitMQ: epmd), started first,
    waited for at `beside_port`, and stopped last. Both run in `env` alone, so that a developer's own RABBITMQ_*
    variables never leak in."""

    command: tuple[str, ...]
    folder: Path
    env: Mapping[str, str]
    beside: tuple[str, ...] = ()
    beside_port: int = 0
    tool_prefix: tuple[str, ...] = ()


class ProcessRunner:
    """Starts, signals and reaps by pid; never by name."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._server: subprocess.Popen[bytes] | None = None
        self._beside: subprocess.Popen[bytes] | None = None
        self._log = launch.folder / "server.log"
        if kept := keeper.current():
            kept.watch_folder(launch.folder)
            _live.append(self)

    def start(self) -> None:
        if self._launch.beside and not _alive(self._beside):
            self._beside = self._spawn(self._launch.beside)
            wait_for(self._beside_answers, f"{self._launch.beside[0]} listens")
        self._server = self._spawn(self._launch.command)

    def stop(self, deadline_s: float) -> None:
        if self._server is not None:
            # A stopped (SIGSTOP) process would keep its SIGTERM for later.
            self.resume()
            self._end(self._server, signal.SIGTERM, deadline_s)
            self._server = None
        if self._beside is not None:
            self._end(self._beside, signal.SIGTERM, deadline_s)
            self._beside = None

    def kill(self) -> None:
        if self._server is not None:
            self._end(self._server, signal.SIGKILL, TOOL_TIMEOUT_S)
            self._server = None

    def pause(self) -> None:
        self._signal_family(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_family(signal.SIGCONT)

    def remove(self) -> None:
        shutil.rmtree(self._launch.folder, ignore_errors=True)
        if self in _live:
            _live.remove(self)

    def running(self) -> bool:
        return _alive(self._server)

    def run(self, *command: str) -> str:
        """Runs a tool of the server (rabbitmqctl) where the server lives."""
        done = subprocess.run(
            [*self._launch.tool_prefix, *command],
            env=dict(self._launch.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def log_tail(self) -> str:
        try:
            return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return "(no log)"

    def record(self) -> dict[str, Any]:
        processes = [process for process in (self._server, self._beside) if process is not None]
        return {
            "processes": [[process.pid, create_time(process.pid)] for process in processes],
            "folder": str(self._launch.folder),
        }

    def _spawn(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal reaches the tests, which stop the server in order.
        with self._log.open("ab") as log:
            try:
                process = subprocess.Popen(
                    command,
                    env=dict(self._launch.env),
                    cwd=self._launch.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise StartFailed(f"cannot run {command[0]}: {error}") from error
        if kept := keeper.current():
            kept.watch(process.pid)
        return process

    def _beside_answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self._launch.beside_port), timeout=1):
            return True

    def _signal_family(self, sign: signal.Signals) -> None:
        if self._server is None or self._server.poll() is not None:
            return
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self._server.pid)
            for process in [server, *server.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(sign)

    def _end(self, process: subprocess.Popen[bytes], sign: signal.Signals, deadline_s: float) -> None:
        process.send_signal(sign)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if kept := keeper.current():
            kept.forget(process.pid)


def _alive(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is None


def end_recorded(record: Mapping[str, Any], deadline_s: float) -> list[int]:
    """Stops the processes another run recorded; one with another start time is a stranger's and is left alone."""
    ended: list[int] = []
    for pid, created in record.get("processes", []):
        if is_same(pid, created):
            _end_other(pid, created, deadline_s)
            ended.append(pid)
    if folder := record.get("folder"):
        shutil.rmtree(folder, ignore_errors=True)
    return ended


def _end_other(pid: int, created: float, deadline_s: float) -> None:
    """Ends a process that is not our child, so that only its disappearance can be waited for."""
    for signs in ((signal.SIGCONT, signal.SIGTERM), (signal.SIGKILL,)):
        with contextlib.suppress(ProcessLookupError):
            for sign in signs:
                os.kill(pid, sign)
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: not is_same(pid, created), f"process {pid} has ended", deadline_s)
            return


@atexit.register
def _stop_what_is_left() -> None:
    give_up = time.monotonic() + 20.0
    for runner in reversed(list(_live)):
        with contextlib.suppress(Exception):
            runner.stop(max(0.1, give_up - time.monotonic()))
        runner.remove()
    if kept := keeper.current():
        kept.close()
