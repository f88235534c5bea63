"""Nothing the tests start outlives them, whatever ends them.

`atexit` covers a normal end and Ctrl-C, but not SIGKILL, SIGTERM or a crash of the interpreter. So a second, tiny
process holds the read end of a pipe: when the tests are gone, for any reason, the pipe ends, and the keeper kills what
they had not yet stopped and deletes their folders. (PR_SET_PDEATHSIG was weighed and left: it fires when the *thread*
that started the server ends, and is lost across the change of user that RabbitMQ 4 needs.)

This file is run as a script and imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil


def create_time(pid: int) -> float | None:
    """With the pid, this names a process for good: pids are reused, start times are not."""
    try:
        process = psutil.Process(pid)
        # A zombie has ended; whether its parent has noticed is no concern of ours.
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def is_same(pid: int, created: float | None) -> bool:
    """Whether `pid` is still the process that was started then. A second of slack: the clock may have been set."""
    now = create_time(pid)
    return created is not None and now is not None and abs(now - created) < 1.5


class Keeper:
    """The tests' end of the pipe. Started with the first process to keep, not before."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def watch(self, pid: int) -> None:
        self._tell(f"watch {pid} {create_time(pid)}")

    def forget(self, pid: int) -> None:
        self._tell(f"forget {pid}")

    def watch_folder(self, folder: Path) -> None:
        self._tell(f"folder {folder}")

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                # communicate() closes the pipe and reaps the keeper; everything is stopped, so it has nothing to do.
                self._process.communicate()
                self._process = None

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
                )
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


_current: Keeper | None = Keeper()


def current() -> Keeper | None:
    """The keeper of this process, or None when what it starts is to outlive it."""
    return _current


def leave_running() -> None:
    """From here on, servers outlive this process (`up` does that; `down` stops them)."""
    global _current
    _current = None


def keep() -> None:
    """The keeper process itself."""
    watched: dict[int, float] = {}
    folders: list[str] = []
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "watch":
            pid, _, born = rest.partition(" ")
            if born != "None":
                watched[int(pid)] = float(born)
        elif word == "forget":
            watched.pop(int(rest), None)
        elif word == "folder":
            folders.append(rest)
    for pid, created in reversed(watched.items()):
        if is_same(pid, created):
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    keep()
