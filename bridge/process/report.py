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
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from bridge.core.process_mark import mark_of
from bridge.process.frames import FrameLine, trouble_rows
from bridge.process.notify import ALIVE, READY, RELOADING, STATUS, STOPPING, NotifyLine
from bridge.settings import Settings
from bridge.telemetry.subject import STORE, Subject, rendered

log = structlog.get_logger("postdate")

#: After this, ready is reported even if a server is missing.
PATIENCE_S = 10.0
#: The longest pause between two looks; a status is reported at most this often.
LOOK_S = 1.0
#: Without a look for this time the process is not alive.
_SILENT_S = 15.0


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """How a process is: for the service manager, for the HTTP process (``frame``) and for the store (``in_store``).

    ``up``: every server it needs is reachable. ``marks`` has a value for each loop that changes with every pass, None
    for an idle loop. ``peers``: whether each server is connected. ``numbers`` returns those of a frame, and ``work``
    what `postdate stats` shows of an instance: only who needs them pays for them.
    """

    up: bool
    sentence: str
    marks: Mapping[str, object] = field(default_factory=dict)
    troubles: Mapping[Subject, str] = field(default_factory=dict)
    peers: Mapping[str, bool] = field(default_factory=dict)
    numbers: Callable[[], Mapping[str, object]] = dict
    work: Callable[[], Mapping[str, object]] = dict

    def frame(self) -> dict[str, object]:
        """Return what the HTTP process needs."""
        return {"peers": self.peers, "troubles": trouble_rows(self.troubles), **self.numbers()}

    def in_store(self) -> dict[str, object]:
        """Return what the other instances and `postdate stats` get to know."""
        known = {"health": self.sentence, "troubles": rendered(self.troubles), "process": mark_of(os.getpid())}
        return {**known, **self.work()}


_STARTING = ProcessReport(False, "Starting.")
_SERVERS = {"redis": "Redis", "journal": "the journal"}


class Reported(Protocol):
    """What is reported about: the loops of one process, or its workers."""

    stopping: asyncio.Event

    def report(self) -> ProcessReport:
        """Return how it is now."""

    def follow(self, settings: Settings) -> None:
        """Take over the live settings of a reload."""


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
        self._still = StuckLoops(stuck_s)
        self._reported: Reported | None = None
        self.started_s = time.monotonic()
        self._alive_at = -math.inf
        self._ready = self._stopping = False
        self._status = self._stuck = ""
        self._before = _STARTING
        self._reloaded: Settings | None = None
        self._looked_s = self.started_s

    @property
    def wanted(self) -> bool:
        """Whether there is a listener."""
        return self._line is not None

    def waits(self, server: str, reason: str) -> None:
        """Report which of ``_SERVERS`` the process waits for before it has loops, and why; "" if it answers."""
        if not reason:
            self._before = _STARTING
            return
        text, subject = f"waiting for {_SERVERS[server]}: {reason}", STORE if server == "redis" else Subject(server)
        self._before = ProcessReport(False, f"W{text[1:]}.", troubles={subject: text}, peers={server: False})

    @property
    def starting(self) -> bool:
        """Whether the process has no loops yet."""
        return self._reported is None

    def of(self, reported: Reported) -> None:
        """Report about these loops or workers from now on."""
        self._reported = reported
        if self._reloaded is not None:
            reported.follow(self._reloaded)

    def follow(self, settings: Settings) -> None:
        """Pass on the settings of a reload, also to a process that has no loops yet."""
        self._reloaded = settings
        if self._reported is not None:
            self._reported.follow(settings)

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
            if self._stopping or self._reported is None:
                await asyncio.sleep(every_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._reported.stopping.wait()
                self._stop()

    def look(self, now_s: float) -> None:
        """Look once, and report what changed."""
        self._looked_s = now_s
        report = self.now()
        stuck = self._still.stuck({} if self._stopping else report.marks, now_s)
        if stuck and not self._stuck:
            log.critical("a loop makes no progress; the service manager gets no sign of life", loop=stuck)
        self._stuck = stuck
        if self._line is not None:
            self._tell_supervisor(self._line, report, now_s)
        self._tell_frame(report)

    def not_alive(self) -> str:
        """Return why the process is not alive; "" if its loops make progress."""
        if self._stuck:
            return f"the loop of {self._stuck} makes no progress"
        still_s = time.monotonic() - self._looked_s
        return f"nothing has looked at the loops for {still_s:.0f} s" if still_s > _SILENT_S else ""

    def now(self) -> ProcessReport:
        """Return how the process is now."""
        return self._before if self._reported is None else self._reported.report()

    def _tell_supervisor(self, line: NotifyLine, report: ProcessReport, now_s: float) -> None:
        if not self._ready and not self._stopping and (report.up or now_s - self.started_s >= PATIENCE_S):
            self._ready = line.tell(READY)
        self._tell_status(line, report.sentence)
        if self._watchdog_s and not self._stuck and now_s - self._alive_at >= self._watchdog_s / 2 and line.tell(ALIVE):
            self._alive_at = now_s

    def _tell_status(self, line: NotifyLine, status: str) -> None:
        if self._stuck:
            status = f"The loop of {self._stuck} makes no progress. {status}"
        if status != self._status and line.tell(STATUS, status):
            self._status = status

    def _tell_frame(self, report: ProcessReport) -> None:
        if self.frames is None:
            return
        state = "stopping" if self._stopping else "starting" if self.starting else "running"
        head = {"process": self.name, "broker": self.broker, "state": state}
        self.frames.tell({**head, "stuck": self._stuck, **report.frame()})

    def _stop(self) -> None:
        """Report that the process stops, once."""
        if self._stopping:
            return
        self._stopping = True
        if self._line is not None:
            self._line.tell(STOPPING)
        self._tell_frame(self.now())
