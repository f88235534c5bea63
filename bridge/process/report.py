"""Tells the service manager how this process is: ready, alive, stopping, and the health sentence.

Alive means that the loops turn, not that a timer does. A store or a broker that is away is not being stuck: the loops
turn all the same, and try again. Ready does not wait for them for ever either: postdate waits for its servers by
itself, and a service manager that took that for a failed start would start it over and over.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Protocol

import structlog

from bridge.process.notify import ALIVE, READY, STATUS, STOPPING, Line

log = structlog.get_logger("postdate")

#: Ready is told after so long even if something outside is missing.
PATIENCE_S = 10.0
#: Between two looks, at most; a status is told no more often.
LOOK_S = 1.0


class Reported(Protocol):
    """What is told of: the loops of one process, or its workers."""

    stopping: asyncio.Event

    def up(self) -> bool:
        """Whether everything that it needs is there."""

    def sentence(self) -> str:
        """How it is, for a person."""

    def marks(self) -> Mapping[str, object]:
        """What changes with every turn of each loop; None for one that has nothing to do."""


class Still:
    """Since when each loop has stood still."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._seen: dict[str, tuple[object, float]] = {}

    def stuck(self, marks: Mapping[str, object], now_s: float) -> str:
        """The name of a loop that has stood still for too long, though it had something to do; "" for none."""
        found = ""
        for name, mark in marks.items():
            before = self._seen.get(name)
            if mark is None or before is None or before[0] != mark:
                self._seen[name] = mark, now_s
            elif now_s - before[1] > self._stuck_s:
                found = found or name
        return found


class Report:
    """What is told to one service manager, or by a worker to its parent."""

    def __init__(self, line: Line | None, watchdog_s: float, stuck_s: float, patience_s: float = PATIENCE_S) -> None:
        """``line`` is None where nobody listens. Within each ``watchdog_s`` (0: never) a sign of life is expected;
        there is none while a loop stands still for longer than ``stuck_s``."""
        self._line = line
        self._watchdog_s = watchdog_s
        self._patience_s = patience_s
        self._still = Still(stuck_s)
        self._subject: Reported | None = None
        self.started_s = time.monotonic()
        self._alive_at = -math.inf
        self._ready = self._stopping = False
        self._status = self._stuck = ""
        self._waits = "Starting."

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self._line is not None

    def waits(self, sentence: str) -> None:
        """What is waited for before there is anything to tell of."""
        self._waits = f"Waiting: {sentence}."

    def of(self, subject: Reported) -> None:
        """From now on tell of this."""
        self._subject = subject

    async def telling(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work``, and meanwhile tell how it is."""
        looking = asyncio.ensure_future(self._run()) if self._line is not None else None
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
        """One look; tell what there is to tell."""
        line, subject = self._line, self._subject
        if line is None:
            return
        marks = subject.marks() if subject is not None and not self._stopping else {}
        stuck = self._still.stuck(marks, now_s)
        if stuck and not self._stuck:
            log.critical("a loop stands still, and the service manager is not told that all is well", loop=stuck)
        self._stuck = stuck
        up = subject is not None and subject.up()
        if not self._ready and not self._stopping and (up or now_s - self.started_s >= self._patience_s):
            self._ready = line.tell(READY)
        self._tell_status(line, subject)
        if self._watchdog_s and not stuck and now_s - self._alive_at >= self._watchdog_s / 2 and line.tell(ALIVE):
            self._alive_at = now_s

    def _tell_status(self, line: Line, subject: Reported | None) -> None:
        status = subject.sentence() if subject is not None else self._waits
        if self._stuck:
            status = f"The loop of {self._stuck} stands still. {status}"
        if status != self._status and line.tell(STATUS, status):
            self._status = status

    def _stop(self) -> None:
        """Once."""
        if self._line is not None and not self._stopping:
            self._line.tell(STOPPING)
        self._stopping = True
