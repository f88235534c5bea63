"""An event loop with virtual time, on which processes can be frozen and killed.

Nothing sleeps: where every task waits, time jumps to the next timer. A callback belongs to the process in whose context
it was scheduled. While that process is frozen, its callbacks wait; after it was killed, they are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
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
        self.killed = False
        self.frozen = False
        self._loop = loop
        self._held_up: list[tuple[Callable[..., object], tuple[Any, ...], Context]] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        #: Kept to the end of the run: a task that is collected would run the finally blocks of a killed process.
        self.tasks: list[asyncio.Task[Any]] = []

    def freeze(self) -> None:
        """Run nothing until ``thaw``. What it sent is on its way, and what it is sent waits."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on, with everything that came meanwhile."""
        self.frozen = False
        held_up, self._held_up = self._held_up, []
        for callback, args, context in held_up:
            self._loop.call_soon(callback, *args, context=context)

    def kill(self) -> None:
        """Run nothing any more, not even finally blocks."""
        self.killed = True
        self._held_up.clear()

    def run(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        """Run a callback, keep it for later, or drop it."""
        if self.killed:
            return
        if self.frozen:
            self._held_up.append((callback, args, context))
        else:
            callback(*args)


#: Timers this close to each other (seconds) ring together: the rounding of floats in sums.
_TOGETHER_S = 1e-6


class VirtualLoop(asyncio.BaseEventLoop):
    """``time`` starts at 0 and moves only in jumps. It keeps its own timers, which is twice as fast."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        #: What a callback of a process raised, which no process of ours may.
        self.errors: list[str] = []
        self.set_exception_handler(self._note)

    def _note(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}")

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        """Ring the timers of the next moment, and run what is ready. Raises ``Deadlock``."""
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Deadlock
            self._now_s = max(self._now_s, timers[0][0])
        until_s = self._now_s + _TOGETHER_S
        while timers and timers[0][0] < until_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        context = copy_context() if context is None else context
        return super().call_soon(process.run, callback, args, context, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        process = PROCESS.get() if context is None else context.get(PROCESS)
        context = copy_context() if context is None else context
        if process is not None:
            callback, args = process.run, (callback, args, context)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle
