"""The wait before the next connection attempt: exponential, a few seconds at most, with jitter."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NoReturn

from bridge.core.errors import BrokerUnavailable
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

FIRST_S = 0.1
MAX_S = 5.0
#: A session that ends sooner counts as a failure: otherwise a broker that accepts postdate and then closes the session
#: would get ten attempts a second.
STEADY_S = 5.0
#: A broker that is back is noticed within this time. Until then "does not answer" is said, and nothing flows.
_NOTICED_S = 2.0


def reconnect_wait_s(failures: int, spread: float) -> float:
    """Return the wait in seconds, doubled from ``FIRST_S`` to ``MAX_S``. ``spread`` (0 to 1) takes off up to half, so
    that the clients of a restarted broker do not reconnect at one moment. Pure."""
    full = min(MAX_S, FIRST_S * 2.0 ** min(failures, 16))
    return full * (1 - spread / 2)


class Reconnect:
    """Counts the consecutive failures of one connection, and waits."""

    def __init__(self, steady_s: float = 0.0, connected: Callable[[], None] = lambda: None) -> None:
        """``connected`` is called for each connection that works."""
        self._steady_s = steady_s
        self._failures = 0
        self._short = 0
        self._worked_at: float | None = None
        self._connected = connected

    def worked(self) -> None:
        """Note that the connection works. If it holds for ``steady_s``, the next wait is the shortest again."""
        if self._worked_at is None:
            self._worked_at = time.monotonic()
            self._connected()

    async def wait(self, sooner: asyncio.Event | None = None, most_s: float = math.inf) -> None:
        """Wait before the next attempt, at most until ``sooner`` is set, or for ``most_s``. After connections that held
        for a moment only, nothing ends the wait sooner: two of them would wake each other for ever."""
        if self._worked_at is not None:
            held = time.monotonic() - self._worked_at >= self._steady_s
            self._failures = 0 if held else self._short
            self._short = 0 if held else self._short + 1
        self._worked_at = None
        with suppress(TimeoutError):
            wait_s = reconnect_wait_s(self._failures, random.random())  # noqa: S311 (jitter)
            async with asyncio.timeout(min(wait_s, most_s)):
                await (sooner if sooner and not self._short else asyncio.Event()).wait()
        self._failures += 1


async def keep_connected(
    session: Callable[[Reconnect], Awaitable[None]], health: Health, subject: Subject, meanwhile: str
) -> NoReturn:
    """Run one ``session`` after the other until cancelled, with a wait between; each ends with ``BrokerUnavailable``.

    Health then reports ``meanwhile``, what does not work without a session, and the error. A wait ends when another
    session with the same server works: an old error must not stand beside messages that flow.
    """
    reconnect = Reconnect(STEADY_S, partial(health.attempted, subject, True))
    while True:
        try:
            await session(reconnect)
        except BrokerUnavailable as error:
            health.attempted(subject, False)
            health.say(subject, f"{meanwhile}: {error}")
        await reconnect.wait(health.connected(subject), _NOTICED_S)
