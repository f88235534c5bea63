"""How long to wait before connecting again: short at first, a few seconds at most, never in step with others."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from bridge.core.errors import BrokerUnavailable
from bridge.telemetry.health import Health

FIRST_S = 0.1
MAX_S = 5.0
#: Sessions that work and end sooner are waited for longer each time: else a broker that lets postdate in and then ends
#: the session would be asked ten times a second.
STEADY_S = 5.0


def reconnect_wait_s(failures: int, spread: float) -> float:
    """Pure. Doubles from ``FIRST_S`` to ``MAX_S``; ``spread`` (0 to 1) takes off up to half, so that a hundred clients
    of a broker that restarts do not come back at one moment."""
    full = min(MAX_S, FIRST_S * 2.0 ** min(failures, 16))
    return full * (1 - spread / 2)


class Reconnect:
    """Counts the failures in a row of one connection, and waits."""

    def __init__(self, steady_s: float = 0.0) -> None:
        self._steady_s = steady_s
        self._failures = 0
        self._short = 0
        self._worked_at: float | None = None

    def worked(self) -> None:
        """The connection is there. The next wait is the shortest again, unless the one before held for less than
        ``steady_s``, too."""
        if self._worked_at is None:
            self._worked_at = time.monotonic()

    async def wait(self) -> None:
        """Wait before the next attempt."""
        if self._worked_at is not None:
            held = time.monotonic() - self._worked_at >= self._steady_s
            self._failures = 0 if held else self._short
            self._short = 0 if held else self._short + 1
        self._worked_at = None
        await asyncio.sleep(reconnect_wait_s(self._failures, random.random()))  # noqa: S311 (jitter, not a secret)
        self._failures += 1


async def keep_connected(
    session: Callable[[Reconnect], Awaitable[None]], health: Health, subject: str, meanwhile: str
) -> NoReturn:
    """One ``session`` after the other until cancelled, with a wait between; each ends with ``BrokerUnavailable``.

    ``meanwhile`` is what does not happen without one: the sentence begins with it, and with the error it ends.
    """
    reconnect = Reconnect(STEADY_S)
    while True:
        try:
            await session(reconnect)
        except BrokerUnavailable as error:
            health.say(subject, f"{meanwhile}: {error}")
        await reconnect.wait()
