"""Loops that run beside each other, none of which ends by itself, and how they are ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

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
