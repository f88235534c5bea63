"""What the HTTP process knows of the bridge processes on this machine: the last frame of each, and how old it is."""

from __future__ import annotations

import asyncio
import json
import math
import time
from asyncio import StreamReader
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from socket import socket
from typing import Any, cast

from bridge.operate.verdict import STALE_S, STARTING, STOPPING
from bridge.process.frames import troubles_in
from bridge.process.http_child import Reloading
from bridge.settings import Settings
from bridge.telemetry.metrics import added
from bridge.telemetry.subject import Subject

#: A process sends a frame every second. One that is silent for this time is not alive: it hangs, or was not started
#: again. It is not ready earlier, when the verdict calls it stale.
SILENT_S = 15.0
#: The store answers a process about once a second, and its frame is as old. Without an answer for this time it is away.
_ANSWERED_S = 3.0
#: Far more than a frame with a thousand routes.
_FRAME_MAX = 8 * 1024 * 1024


@dataclass(frozen=True)
class Frame:
    """One report. ``process`` is the instance's name. ``state``: starting, running or stopping. ``peers``: whether each
    server is connected. ``stuck`` names a loop without progress, "" for none. ``store_silent_s``: how long the store
    has not answered it for."""

    process: str
    broker: str
    state: str
    stuck: str = ""
    peers: Mapping[str, bool] = field(default_factory=dict)
    troubles: Mapping[Subject, str] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    clock_offset_s: float = 0.0
    store_silent_s: float = math.inf
    heard_s: float = 0.0


def read_frame(line: bytes, now_s: float) -> Frame | None:
    """Return the frame of a line; None for one that a restart cut. Pure."""
    try:
        members = json.loads(line)
        known = {name: members[name] for name in Frame.__dataclass_fields__ if name in members}
        return Frame(**{**known, "troubles": troubles_in(known.get("troubles", ())), "heard_s": now_s})
    except (ValueError, TypeError):
        return None


class Processes:
    """The bridge processes of this `postdate run`; none in `postdate serve`."""

    def __init__(self, lines: int = 0, now_s: Callable[[], float] = time.monotonic) -> None:
        """``lines``: how many processes report, the parent of workers included."""
        self._now_s = now_s
        self._started_s = now_s()
        self._frames: list[Frame | None] = [None] * lines
        self._was_ready = False
        self._ended: object = {}
        #: To how many messages this app's API did what: by verb and the way in.
        self.verbs: Counter[str] = Counter()
        self.reloading = Reloading()
        self.loaded_at_s = time.time()
        #: Asks the parent for a reload; None where there is no parent that could.
        self.ask_reload: Callable[[], None] | None = None
        #: Takes over the settings of a reload that this process survives.
        self.follow: Callable[[Settings], None] = lambda settings: None
        #: The sentence about an overdue canary, "" for none.
        self.canary: Callable[[], str] = str
        self._waiting: list[asyncio.Future[Reloading]] = []

    def __len__(self) -> int:
        return len(self._frames)

    def frames(self) -> list[Frame]:
        return [frame for frame in self._frames if frame is not None]

    def take(self, number: int, frame: Frame) -> None:
        """Take a frame from a line. The numbers of a process that was replaced are kept: counters never go back."""
        before = self._frames[number]
        if before is not None and before.process != frame.process:
            self._ended = added(self._ended, before.metrics)
        self._frames[number] = frame
        self._was_ready = self._was_ready or not self.not_ready()

    def not_ready(self) -> list[tuple[str, str]]:
        """Return what keeps the processes from being ready, as subject and sentence; empty if all are up."""
        if len(self.frames()) < len(self._frames):
            return [("processes", "not all processes have started")]
        found: list[tuple[str, str]] = []
        for frame in self.frames():
            away = [(peer, _not_there(frame, peer)) for peer, there in frame.peers.items() if not there]
            if self.silent_s(frame) >= STALE_S:
                found.append((frame.process, f"it has reported nothing for {STALE_S:.0f} s"))
            elif frame.state == "stopping" or (frame.state == "starting" and not away):
                found.append((frame.process, STARTING if frame.state == "starting" else STOPPING))
            found += away
        if canary := self.canary():
            found.append(("canary", canary))
        return found

    def started(self) -> bool:
        """Return whether all were ready once."""
        return self._was_ready

    def not_alive(self) -> str:
        """Return why the processes are not alive; "" if all make progress."""
        for frame in self.frames():
            if frame.stuck:
                return f"the loop of {frame.stuck} makes no progress in {frame.process}"
            if self.silent_s(frame) > SILENT_S:
                return f"{frame.process} has reported nothing for {SILENT_S:.0f} s"
        missing = len(self.frames()) < len(self._frames)
        starting = any(frame.state == "starting" for frame in self.frames())  # the parent starts workers later
        if missing and not starting and self._now_s() - self._started_s > SILENT_S:
            return f"a process has reported nothing for {SILENT_S:.0f} s"
        return ""

    def totals(self) -> Mapping[str, Any]:
        """Return the numbers of all processes together, since this one started."""
        total = self._ended
        for frame in self.frames():
            total = added(total, frame.metrics)
        return cast("Mapping[str, Any]", total)

    def now(self, part: str) -> list[Mapping[str, float]]:
        """Return a part of the last numbers of each process: without those of a process that was replaced."""
        return [frame.metrics[part] for frame in self.frames() if part in frame.metrics]

    def peers(self) -> dict[str, bool]:
        """Return whether each server is connected to every process that needs it."""
        found: dict[str, bool] = {}
        for frame in self.frames():
            for peer, there in frame.peers.items():
                found[peer] = found.get(peer, True) and there
        return dict(sorted(found.items()))

    def store_answers(self, within_s: float = _ANSWERED_S) -> bool:
        """Return whether the store has answered all processes that have reported and use one, ``within_s``."""
        heard = [frame for frame in self.frames() if "redis" in frame.peers and self.silent_s(frame) < _ANSWERED_S]
        return bool(heard) and all(
            frame.peers["redis"] and frame.store_silent_s + self.silent_s(frame) < within_s for frame in heard
        )

    def clock_offset_s(self) -> float:
        """Return the store's clock minus this machine's, of the process where it is largest."""
        return max((frame.clock_offset_s for frame in self.frames()), key=abs, default=0.0)

    def moment_ms(self, at_s: float) -> int:
        """Return a moment of the monotonic clock as Unix milliseconds by the store's clock."""
        return round((time.time() + self.clock_offset_s() + at_s - self._now_s()) * 1000)

    def silent_s(self, frame: Frame) -> float:
        """Return for how long a process has been silent."""
        return self._now_s() - frame.heard_s

    # -- the line -----------------------------------------------------------------------------------------------------

    async def hear(self, hearing: Iterable[socket]) -> None:
        """Read all lines until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, end in enumerate(hearing):
                group.create_task(self._hear(number, end))

    async def _hear(self, number: int, line: socket) -> None:
        reader, writer = await asyncio.open_connection(sock=line, limit=_FRAME_MAX)
        try:
            while text := await _next_line(reader):
                if (frame := read_frame(text, self._now_s())) is not None:
                    self.take(number, frame)
        finally:
            writer.close()

    # -- reloads ------------------------------------------------------------------------------------------------------

    def reloaded(self, reloading: Reloading) -> None:
        """Take the result of a reload."""
        self.reloading = reloading
        if reloading.worked:
            self.loaded_at_s = reloading.at_s
        if reloading.again:  # it may have read the files before the request
            return
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(reloading)
        self._waiting.clear()

    def next_reload(self) -> asyncio.Future[Reloading]:
        """Return a future of the next reload's result."""
        future: asyncio.Future[Reloading] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future


def _not_there(frame: Frame, peer: str) -> str:
    """Return why a peer counts as not connected, with the sentences about its intakes. A process that starts has one
    trouble: what it waits for."""
    starting = frame.state == "starting"
    known = [text for subject, text in frame.troubles.items() if starting or subject.is_intake(peer)]
    missing = "not connected" if peer == "redis" else "not connected, or not consumed,"
    return "; ".join(known) or f"{missing} in instance {frame.process}"


async def _next_line(reader: StreamReader) -> bytes:
    """Return the next line; b"" at the end. One that is too long is skipped."""
    while True:
        try:
            return await reader.readline()
        except ValueError:  # over the limit: readline has dropped what it read of it
            continue
