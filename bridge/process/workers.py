"""The worker processes of one daemon: starts them, restarts those that die, and stops all.

Each worker has a process group of its own, so Ctrl-C in a terminal reaches only the parent. The parent passes it on
once: a second signal makes a worker stop at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import NamedTuple

import structlog

from bridge.process.notify import ALIVE, READY, STATUS, heard
from bridge.process.report import ProcessReport
from bridge.settings import Settings
from bridge.telemetry.health import WELL, Health
from bridge.telemetry.reconnect import reconnect_wait_s

log = structlog.get_logger("postdate")

#: A worker that lived this long did start; after its death the wait is the shortest again.
_LIVED_S = 30.0
_PR_SET_PDEATHSIG = 1
#: What a worker gets when its parent died. Not SIGTERM, the operator's. `getppid` cannot tell them apart: the kernel
#: sends this when the parent's first thread has ended, and shows that parent until its last one has.
PARENT_DIED = signal.SIGUSR2
#: The folder that holds `bridge` and `adapters`. A wheel has it below its one package, where Python does not look.
_HOME = str(Path(__file__).parents[2])


def python_command(module: str, function: str, *arguments: str, first: str = "pass") -> tuple[str, ...]:
    """Return the command of a Python process that calls ``function`` of this same copy of postdate, after ``first``."""
    # -P and the first place: otherwise a folder or another package named "bridge" would be imported instead of ours.
    # What imports make stays. Looking through it for garbage takes a sixth of the start.
    code = (
        f"import gc, sys; gc.disable(); sys.path.insert(0, {_HOME!r}); {first}; "
        f"from {module} import {function}; gc.freeze(); gc.enable(); {function}()"
    )
    return (sys.executable, "-P", "-c", code, *arguments)


class Handed(NamedTuple):
    """The ends of a worker's line: the parent's socket, and the file descriptor that the worker writes to."""

    hearing: socket
    telling: int


class _WorkerReport:
    """What one worker has reported (``bridge.process.report``)."""

    def __init__(self) -> None:
        self.ready = False
        self.signs = 0
        self.status = "Starting."

    def take(self, name: str, value: str) -> None:
        if name == READY:
            self.ready = True
        elif name == ALIVE:
            self.signs += 1
        elif name == STATUS:
            self.status = value


class Workers:
    """Keeps worker processes of one command running until a signal, and reports for all of them."""

    def __init__(
        self,
        command: Sequence[str],
        handed: Sequence[bytes],
        patience_s: float,
        lines: Sequence[Handed] = (),
        inherited: Sequence[int] = (),
        health: Health | None = None,
        before: Callable[[int], Awaitable[bytes]] | None = None,
    ) -> None:
        """Run one worker for each of ``handed``, which goes to its standard input. A worker that still runs
        ``patience_s`` after a stop is killed. ``lines``: one for each worker, or none without a service manager.
        ``inherited``: a file descriptor for each worker, or none. ``health`` is that of the parent itself.
        ``before(number)`` is awaited before that worker's first start, and returns what it is handed."""
        self._command = command
        self._handed = list(handed)
        self._inherited = inherited
        self._health = health or Health()
        self._before = before
        self.on_reload: Callable[[Settings], None] = lambda settings: None
        self._patience_s = patience_s
        self.stopping = asyncio.Event()
        self._running: dict[int, Process] = {}
        self._lines = lines
        self._reports = [_WorkerReport() for _ in lines]

    async def run(self) -> None:
        """Run until ``stop``, SIGTERM or SIGINT, and until every worker has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        keepers = [asyncio.ensure_future(self._keep(number)) for number in range(1, len(self._handed) + 1)]
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((stopping, *keepers), return_when=asyncio.FIRST_COMPLETED)
            if not self.stopping.is_set():  # a keeper failed: gather raises it below
                self.stop()
            _, slow = await asyncio.wait(keepers, timeout=self._patience_s)
            if slow:
                log.warning("killing workers that did not stop", workers=len(slow))
        finally:
            stopping.cancel()
            self._signal_all(signal.SIGKILL)
            await asyncio.gather(*keepers)
        log.info("all workers have stopped")

    def stop(self) -> None:
        """Stop all in good order; a second call stops them now."""
        log.info("stopping workers", workers=len(self._running), now=self.stopping.is_set())
        self.stopping.set()
        self._signal_all(signal.SIGTERM)

    def hand(self, handed: Sequence[bytes], later: bytes) -> None:
        """Give each running worker ``later``, and workers that start from now on theirs of ``handed``."""
        self._handed = list(handed)
        for process in self._running.values():
            if process.stdin is not None:
                process.stdin.write(later)

    def report(self) -> ProcessReport:
        """Return the parent's troubles, and the health of the workers that are not well. Each worker sends the HTTP
        process a report of its own. The marks are signs of life; None for a worker that is being restarted."""
        self._hear()
        workers, troubles = list(enumerate(self._reports, 1)), self._health.troubles()
        sentences = [f"{text}." for text in troubles.values()]
        sentences += [f"Worker {n}: {worker.status}" for n, worker in workers if worker.status != WELL]
        marks = {f"worker {n}": worker.signs if n in self._running else None for n, worker in workers}
        return ProcessReport(all(worker.ready for _, worker in workers), " ".join(sentences) or WELL, marks, troubles)

    def follow(self, settings: Settings) -> None:
        """Pass the settings of a reload on to the workers."""
        self.on_reload(settings)

    def _hear(self) -> None:
        for line, worker in zip(self._lines, self._reports, strict=True):
            for name, value in heard(line.hearing):
                worker.take(name, value)

    def _signal_all(self, number: int) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Keep one worker running until the stop."""
        failures = 0
        if self._before is not None:
            self._handed[number - 1] = await self._before(number)
        while not self.stopping.is_set():
            started = time.monotonic()
            code = await self._run_one(number)
            if self.stopping.is_set():
                return
            failures = 0 if time.monotonic() - started > _LIVED_S else failures + 1
            wait_s = reconnect_wait_s(failures, random.random())  # noqa: S311 (jitter, not a secret)
            log.error("a worker died", worker=number, how=how_it_ended(code), next_in_s=round(wait_s, 2))
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), wait_s)

    async def _run_one(self, number: int) -> int:
        inherited = [self._lines[number - 1].telling] if self._lines else []
        inherited += self._inherited[number - 1 : number]
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, process_group=0, pass_fds=inherited
        )
        self._running[number] = process
        log.info("worker started", worker=number, pid=process.pid)
        if self.stopping.is_set():  # the stop came while the process was starting
            process.terminate()
        try:
            assert process.stdin is not None
            process.stdin.write(self._handed[number - 1])  # and stays open: see ``hand``
            return await process.wait()
        finally:
            del self._running[number]
            self._hear()
            if self._lines and not self.stopping.is_set():  # what it said last is no longer true
                self._reports[number - 1].status = "It died, and is started again."


def how_it_ended(code: int) -> str:
    """Return an exit code in words; a negative one is a signal's number. Pure."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """In a process that ``parent`` started: get a signal when it ends, however it ends. Works on Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), number)
