"""Reports to the service manager and to the HTTP process: ready, alive, stopping, and the health sentence.

Alive means that the loops make progress, not that a timer fires. While a store or a broker is away the loops retry, so
the process is alive. Ready does not wait for them forever: a service manager that took this for a failed start would
restart postdate over and over.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

import structlog

from bridge.process.frames import FrameLine
from bridge.process.notify import ALIVE, READY, RELOADING, STATUS, STOPPING, NotifyLine
from bridge.settings import Settings

log = structlog.get_logger("postdate")

#: After this, ready is reported even if a server is missing.
PATIENCE_S = 10.0
#: The longest pause between two looks; a status is reported at most this often.
LOOK_S = 1.0


class Reported(Protocol):
    """What a report is about: the loops of one process, or its workers."""

    stopping: asyncio.Event

    def up(self) -> bool:
        """Return whether every server it needs is reachable."""

    def sentence(self) -> str:
        """Return its health as text."""

    def marks(self) -> Mapping[str, object]:
        """Return a value for each loop that changes with every pass; None for an idle loop."""

    def follow(self, settings: Settings) -> None:
        """Take over the live settings of a reload."""

    def frame(self) -> Mapping[str, object]:
        """Return what else the HTTP process needs: connections, troubles, metrics."""


class StuckLoops:
    """Remembers since when each loop has made no progress."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._seen: dict[str, tuple[object, float]] = {}

    def stuck(self, marks: Mapping[str, object], now_s: float) -> str:
        """Return the name of a loop that has made no progress for too long though it has work; "" for none."""
        found = ""
        for name, mark in marks.items():
            before = self._seen.get(name)
            if mark is None or before is None or before[0] != mark:
                self._seen[name] = mark, now_s
            elif now_s - before[1] > self._stuck_s:
                found = found or name
        return found


class Report:
    """Reports to one service manager, or from a worker to its parent; and to the HTTP process."""

    def __init__(
        self,
        line: NotifyLine | None,
        watchdog_s: float,
        stuck_s: float,
        patience_s: float = PATIENCE_S,
        frames: FrameLine | None = None,
    ) -> None:
        """``line`` is None without a listener. The listener expects a sign of life every ``watchdog_s`` seconds (0:
        never); it gets none while a loop makes no progress for longer than ``stuck_s``. ``frames`` leads to the HTTP
        process."""
        self._line = line
        self.frames = frames
        self.name = "parent"
        self.broker = ""
        self._watchdog_s = watchdog_s
        self._patience_s = patience_s
        self._still = StuckLoops(stuck_s)
        self._subject: Reported | None = None
        self.started_s = time.monotonic()
        self._alive_at = -math.inf
        self._ready = self._stopping = False
        self._status = self._stuck = ""
        self._waits = "Starting."
        self._reloaded: Settings | None = None

    @property
    def wanted(self) -> bool:
        """Whether there is a listener."""
        return self._line is not None

    def waits(self, sentence: str) -> None:
        """Report what the process waits for before it has loops."""
        self._waits = f"Waiting: {sentence}."

    def of(self, subject: Reported) -> None:
        """Report about ``subject`` from now on."""
        self._subject = subject
        if self._reloaded is not None:
            subject.follow(self._reloaded)

    def follow(self, settings: Settings) -> None:
        """Pass on the settings of a reload, also to a process that has no loops yet."""
        self._reloaded = settings
        if self._subject is not None:
            self._subject.follow(settings)

    def reloading(self, begins: bool) -> None:
        """Report that a reload begins or has ended."""
        if self._line is not None and self._ready and not self._stopping:
            self._line.tell(RELOADING if begins else READY)

    async def telling(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work``, and report meanwhile."""
        heard = self._line is not None or self.frames is not None
        looking = asyncio.ensure_future(self._run()) if heard else None
        try:
            await work
        finally:
            if looking is not None:
                looking.cancel()
                self._stop()

    async def _run(self) -> None:
        every_s = min(LOOK_S, self._watchdog_s / 4) if self._watchdog_s else LOOK_S
        while True:
            self.look(time.monotonic())
            if self._stopping or self._subject is None:
                await asyncio.sleep(every_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._subject.stopping.wait()
                self._stop()

    def look(self, now_s: float) -> None:
        """Look once, and report what changed."""
        subject = self._subject
        marks = subject.marks() if subject is not None and not self._stopping else {}
        stuck = self._still.stuck(marks, now_s)
        if stuck and not self._stuck:
            log.critical("a loop makes no progress; the service manager gets no sign of life", loop=stuck)
        self._stuck = stuck
        if self._line is not None:
            self._tell_supervisor(self._line, subject, now_s)
        self._tell_frame()

    def _tell_supervisor(self, line: NotifyLine, subject: Reported | None, now_s: float) -> None:
        up = subject is not None and subject.up()
        if not self._ready and not self._stopping and (up or now_s - self.started_s >= self._patience_s):
            self._ready = line.tell(READY)
        self._tell_status(line, subject)
        if self._watchdog_s and not self._stuck and now_s - self._alive_at >= self._watchdog_s / 2 and line.tell(ALIVE):
            self._alive_at = now_s

    def _tell_status(self, line: NotifyLine, subject: Reported | None) -> None:
        status = subject.sentence() if subject is not None else self._waits
        if self._stuck:
            status = f"The loop of {self._stuck} makes no progress. {status}"
        if status != self._status and line.tell(STATUS, status):
            self._status = status

    def _tell_frame(self) -> None:
        if self.frames is None:
            return
        subject = self._subject
        state = "stopping" if self._stopping else "starting" if subject is None else "running"
        more = subject.frame() if subject is not None else {}
        sentence = subject.sentence() if subject is not None else self._waits
        head = {"process": self.name, "broker": self.broker, "pid": os.getpid(), "state": state}
        self.frames.tell({**head, "sentence": sentence, "stuck": self._stuck, **more})

    def _stop(self) -> None:
        """Report that the process stops, once."""
        if self._stopping:
            return
        self._stopping = True
        if self._line is not None:
            self._line.tell(STOPPING)
        self._tell_frame()
