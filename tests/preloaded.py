"""Start Python programs by fork from one process that has already imported postdate.

A new interpreter needs about 0.7 s of CPU for its imports, and the tests start hundreds of bridges. The preloaded
process imports once, opens no connection and runs no event loop, so a fork of it is what a new interpreter is after its
imports. `POSTDATE_TEST_PRELOAD=0` starts a new interpreter every time.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

_MESSAGE_BYTES = 1 << 17
_STEP_S = 0.02


class Started(Protocol):
    """The part of ``subprocess.Popen`` that the tests use."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...


def start(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    errors: Path | None = None,
) -> Started:
    """Start ``python -m module arguments`` in ``folder``; its output is appended to ``log``, or to ``errors``."""
    if sys.platform == "linux" and os.environ.get("POSTDATE_TEST_PRELOAD") != "0":
        return _preloaded().start(module, arguments, folder, env, log, errors or log)
    return start_new(module, arguments, folder, env, log, errors)


def run_postdate(
    words: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    waits: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command of postdate as a process of its own. Raises ``TimeoutExpired``, after which it is gone.

    ``waits``: shorter ones, as for `tests.shortened`."""
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "output"), Path(place, "errors")
        module = "tests.shortened" if waits else "bridge.cli"
        started = start(module, [*waits, *words], folder, os.environ if env is None else env, output, errors)
        try:
            code = started.wait(timeout_s)
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(["postdate", *words], code, output.read_text(), errors.read_text())


def start_new(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    errors: Path | None = None,
) -> Started:
    """The same in a new interpreter."""
    with log.open("ab") as output, (errors or log).open("ab") as error_output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=error_output,
            start_new_session=True,
        )


class _Preloaded:
    """The tests' end of the preloaded process."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())]
            root = Path(__file__).parents[1]
            self._process = subprocess.Popen(
                command, cwd=root, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        self._pid: int | None = None

    def start(
        self, module: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, errors: Path
    ) -> Started:
        request = {"module": module, "arguments": list(arguments), "folder": str(folder), "env": dict(env)}
        with self._lock:
            self._line.send(json.dumps({**request, "log": str(log), "errors": str(errors)}).encode())
            self._pid = None
            while self._pid is None:
                self._hear(None)
            return _Fork(self, self._pid)

    def code(self, pid: int, timeout_s: float = 0.0) -> int | None:
        """The exit code of a fork that ends within this time."""
        with self._lock:
            if pid not in self._codes:
                self._hear(timeout_s)
            return self._codes.get(pid)

    def _hear(self, timeout_s: float | None) -> None:
        """Take what the process says within this time: the id of a new fork, or the exit code of one."""
        if not select.select([self._line], [], [], timeout_s)[0]:
            return
        said = self._line.recv(_MESSAGE_BYTES)
        if not said:
            raise RuntimeError("the preloaded process has ended")
        answer: dict[str, int] = json.loads(said)
        if "code" in answer:
            self._codes[answer["pid"]] = answer["code"]
        else:
            self._pid = answer["pid"]

    def running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process; it kills its forks."""
        self._line.close()
        self._process.wait()


class _Fork:
    """One program that was forked."""

    def __init__(self, parent: _Preloaded, pid: int) -> None:
        self._parent = parent
        self.pid = pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._parent.code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code."""
        give_up = None if timeout is None else time.monotonic() + timeout
        while (code := self._parent.code(self.pid, _STEP_S)) is None:
            if give_up is not None and time.monotonic() > give_up:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


_current: _Preloaded | None = None


def _preloaded() -> _Preloaded:
    """The preloaded process of this process; started with the first program."""
    global _current
    if _current is None or not _current.running():
        _current = _Preloaded()
        atexit.register(_current.close)
    return _current


# -- the preloaded process itself -----------------------------------------------------------------------------------


def serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork for each request and report each end, until the tests are gone; then kill the forks that still run.

    A fork returns its request, to run it below this call: it then ends as any interpreter does.
    """
    gc.disable()  # what imports make stays, and looking through it would take half of their time
    _import_all()
    gc.freeze()
    gc.enable()
    wake_in, wake_out = socket.socketpair()
    wake_in.setblocking(False)
    wake_out.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_out.fileno())
    running: set[int] = set()
    while True:
        ready = select.select([line, wake_in], [], [])[0]
        if wake_in in ready:
            wake_in.recv(4096)
        while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            running.discard(ended[0])
            _tell(line, pid=ended[0], code=os.waitstatus_to_exitcode(ended[1]))
        if line in ready:
            asked = line.recv(_MESSAGE_BYTES)
            if not asked:
                break
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (line, wake_in, wake_out):
                    end.close()
                request: dict[str, Any] = json.loads(asked)
                return request
            running.add(pid)
            _tell(line, pid=pid)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return None


def _tell(line: socket.socket, **answer: int) -> None:
    with suppress(OSError):  # the tests are gone, and the next read says so
        line.send(json.dumps(answer).encode())


def _import_all() -> None:
    """Import every module of postdate, and with them what they need."""
    for package in ("bridge", "adapters"):
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def _run(request: Mapping[str, Any]) -> None:
    """Run the module of a request as ``python -m`` would."""
    os.setsid()
    for number, file in ((1, request["log"]), (2, request["errors"])):
        output = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(output, number)
        os.close(output)
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if (request := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run(request)
