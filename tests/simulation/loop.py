"""An event loop with virtual time, on which processes can be frozen and killed.

Nothing sleeps: where every task waits, time jumps to the next timer. A callback belongs to the process in whose context
it was scheduled. While that process is frozen, its callbacks wait; after it was killed, they are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

#: The process whose code runs; None outside of all processes, as in a server.
PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Deadlock(Exception):
    """Every task waits, and no timer is set."""


class Process:
    """One operating-system process. ``context`` runs code in it."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        #: By which part its monotonic clock is too fast, and by how much its wall clock was set (seconds).
        self.drift = 0.0
        self.set_by_s = 0.0
        #: By how much longer (s) its requests travel.
        self.far_s = 0.0
        self.killed = False
        #: Whether it runs nothing now: it is frozen, or was killed; and since when.
        self.still = False
        self.still_s = 0.0
        self._loop = loop
        self._held_up: list[Handle] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        #: Kept to the end of the run: a task that is collected would run the finally blocks of a killed process.
        self.tasks: list[asyncio.Task[Any]] = []

    def freeze(self) -> None:
        """Run nothing until ``thaw``. What it sent is on its way, and what it is sent waits."""
        self._stand_still()

    def thaw(self) -> None:
        """Go on, with everything that came meanwhile."""
        self.still = self.killed
        held_up, self._held_up = self._held_up, []
        self._loop.ready.extend(held_up)

    def kill(self) -> None:
        """Run nothing any more, not even finally blocks."""
        self._stand_still()
        self.killed = True
        self._held_up.clear()

    def _stand_still(self) -> None:
        if not self.still:
            self.still, self.still_s = True, self._loop.now_s

    def hold_up(self, handle: Handle) -> None:
        """Keep a callback for later, or drop it."""
        if not self.killed:
            self._held_up.append(handle)


class Handle:
    """A callback, as ``asyncio.TimerHandle`` without what a run does not need: half of a run is callbacks."""

    __slots__ = ("args", "callback", "context", "process", "when_s")

    def __init__(
        self, when_s: float, callback: Callable[..., object] | None, args: tuple[Any, ...], context: Context
    ) -> None:
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.context = context
        self.process = context.get(PROCESS)

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.when_s


#: Timers this close to each other (seconds) ring together: the rounding of floats in sums.
_TOGETHER_S = 1e-6


class VirtualLoop(asyncio.BaseEventLoop):
    """``time`` starts at 0 and moves only in jumps. It keeps its own timers and callbacks, which is faster."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._timers: list[tuple[float, int, Handle]] = []
        self._number = 0
        self.ready: deque[Handle] = deque()
        #: What a callback of a process raised, which no process of ours may.
        self.errors: list[str] = []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what no task handled."""
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        """Ring the timers of the next moment, and run what is ready. Raises ``Deadlock``."""
        timers, ready = self._timers, self.ready
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Deadlock
            self.now_s = max(self.now_s, timers[0][0])
        until_s = self.now_s + _TOGETHER_S
        while timers and timers[0][0] < until_s:
            # No timer rings early: two processes that look again in less than this would stop time.
            self.now_s = max(self.now_s, timers[0][0])
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            callback, process = handle.callback, handle.process
            if callback is None:
                continue
            if process is not None and process.still:
                process.hold_up(handle)
                continue
            try:
                handle.context.run(callback, *handle.args)
            except Exception as error:
                self.errors.append(f"a callback failed: {error!r}")

    def _write_to_self(self) -> None:
        pass

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle(self.now_s, callback, args, copy_context() if context is None else context)
        self.ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle(when, callback, args, copy_context() if context is None else context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return self.call_at(self.now_s + delay, callback, *args, context=context)
