"""A signal that comes while a process starts ends it, whatever the libraries make of a cancellation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from bridge.app import start


async def swallow_a_cancellation() -> None:
    """As redis-py sometimes does while it connects."""
    signal.raise_signal(signal.SIGTERM)
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def starts_for_ever() -> None:
    await swallow_a_cancellation()
    await asyncio.Event().wait()


async def handles_signals_then() -> None:
    await swallow_a_cancellation()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()


@pytest.mark.parametrize("work", [starts_for_ever, handles_signals_then])
def test_a_signal_whose_cancellation_was_swallowed_comes_again(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], Coroutine[None, None, None]]
) -> None:
    monkeypatch.setattr(start, "_AGAIN_S", 0.05)

    async def run() -> None:
        ended, _ = await asyncio.wait([asyncio.ensure_future(start.until_signal(work()))], timeout=10)
        assert ended

    asyncio.run(run())
