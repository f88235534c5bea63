"""Run the loops of a process side by side until a signal, and end them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import structlog

from bridge.process.report import ProcessReport
from bridge.process.workers import PARENT_DIED
from bridge.settings import Settings

log = structlog.get_logger("postdate")

_TURN_S = 0.02

#: A loop may need this time to close its connection before it is cancelled again.
_CANCEL_S = 3.0
#: Loops inside a loop are cancelled again before that one is.
_CANCEL_INNER_S = 1.0


async def together(loops: Iterable[Coroutine[None, None, None]]) -> None:
    """Run loops until cancelled. Raises what one of them raised. At a stop some may end before others."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await end(tasks, _CANCEL_INNER_S)


async def end(tasks: Sequence[asyncio.Future[Any]], again_s: float = _CANCEL_S) -> None:
    """Cancel tasks, and cancel again those that go on.

    redis-py sometimes swallows a cancellation that comes while it subscribes (one stop in ten, right after the start).
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)
    await asyncio.gather(*tasks, return_exceptions=True)


class Running:
    """Runs loops until a signal comes, then gives them time to finish. A subclass names the loops."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self.stopping = asyncio.Event()
        self._now = asyncio.Event()
        #: Whether it stops because its parent died.
        self.orphaned = False

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        """Return the loops. None of them ends by itself before ``take_no_more``."""
        raise NotImplementedError

    def take_no_more(self) -> int:
        """Stop taking. Return how many messages are claimed or under way."""
        raise NotImplementedError

    def finished(self) -> bool:
        """Return whether nothing is under way."""
        raise NotImplementedError

    async def leave(self) -> int:
        """Sign off and give back the remaining messages. Return how many."""
        raise NotImplementedError

    def report(self) -> ProcessReport:
        """Return how it is now."""
        raise NotImplementedError

    def follow(self, settings: Settings) -> None:
        """Take over the live settings of a reload."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop gracefully. A second call stops at once."""
        if self.stopping.is_set():
            self._now.set()
        self.stopping.set()

    def stop_orphaned(self) -> None:
        self.orphaned = True
        self.stop()

    async def run(self) -> None:
        """Run until ``stop``, SIGTERM, SIGINT or the parent's death. Raises what a loop raised."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(PARENT_DIED, self.stop_orphaned)
        tasks = [asyncio.ensure_future(run) for run in self.loops()]
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            done, _ = await asyncio.wait((*tasks, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # a loop never ends by itself, so this raises
            await self._drain(tasks)
        finally:
            await end((*tasks, stopping))

    async def _drain(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        """Take nothing new, finish what was taken, give the rest back."""
        deadline = time.monotonic() + self._grace_ms / 1000
        log.info("stopping", claimed=self.take_no_more())
        while time.monotonic() < deadline and not self._now.is_set():
            if self.finished() or any(task.done() and not task.cancelled() and task.exception() for task in tasks):
                break
            await asyncio.sleep(_TURN_S)
        log.info("stopped", given_back=await self.leave())
