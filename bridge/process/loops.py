"""Loops that run beside each other, none of which ends by itself, and how they are ended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

import structlog

log = structlog.get_logger("postdate")

_TURN_S = 0.02

#: A loop may need so long to close its connection before it is cancelled once more.
_CANCEL_S = 3.0
#: Loops within a loop are asked again before that one is.
_CANCEL_INNER_S = 1.0


async def together(loops: Iterable[Coroutine[None, None, None]]) -> None:
    """Run loops until this is cancelled. Raises what one of them raised; when all stop, some end before the others."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await end(tasks, _CANCEL_INNER_S)


async def end(tasks: Sequence[asyncio.Future[Any]], again_s: float = _CANCEL_S) -> None:
    """Cancel, and again what did not hear it: a cancellation that comes while redis-py subscribes is swallowed at times
    (one stop in ten, right after the start), and the loop would then go on for ever."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)
    await asyncio.gather(*tasks, return_exceptions=True)


class Running:
    """Runs loops until a signal comes, then gives them their grace. What the loops are, a subclass says."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self.stopping = asyncio.Event()
        self._now = asyncio.Event()

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        """The loops; none of them ends by itself."""
        raise NotImplementedError

    def take_no_more(self) -> int:
        """Stop taking; how much is claimed or under way."""
        raise NotImplementedError

    def finished(self) -> bool:
        """Whether nothing is under way any more."""
        raise NotImplementedError

    async def leave(self) -> int:
        """Say goodbye, and give back what is left; how much that is."""
        raise NotImplementedError

    def up(self) -> bool:
        """See ``bridge.process.report.Reported``."""
        raise NotImplementedError

    def sentence(self) -> str:
        """See ``bridge.process.report.Reported``."""
        raise NotImplementedError

    def marks(self) -> Mapping[str, object]:
        """See ``bridge.process.report.Reported``."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop in good order; a second call stops now."""
        if self.stopping.is_set():
            self._now.set()
        self.stopping.set()

    async def run(self) -> None:
        """Run until ``stop``, SIGTERM or SIGINT. Raises what a loop raised."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
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
        """Take nothing new, finish what is in hand, give the rest back."""
        deadline = time.monotonic() + self._grace_ms / 1000
        log.info("stopping", claimed=self.take_no_more())
        while time.monotonic() < deadline and not self._now.is_set():
            if self.finished() or any(task.done() and not task.cancelled() and task.exception() for task in tasks):
                break
            await asyncio.sleep(_TURN_S)
        log.info("stopped", given_back=await self.leave())
