"""How long to wait before connecting again: short at first, a few seconds at most, never in step with others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NoReturn

from bridge.errors import BrokerUnavailable
from bridge.health import Health

FIRST_S = 0.1
MAX_S = 5.0


def reconnect_wait_s(failures: int, spread: float) -> float:
    """Pure. Doubles from ``FIRST_S`` to ``MAX_S``; ``spread`` (0 to 1) takes off up to half, so that a hundred clients
    of a broker that restarts do not come back at one moment."""
    full = min(MAX_S, FIRST_S * 2.0 ** min(failures, 16))
    return full * (1 - spread / 2)


class Reconnect:
    """Counts the failures in a row of one connection, and waits."""

    def __init__(self) -> None:
        self._failures = 0

    def worked(self) -> None:
        """The connection is there: the next failure is a first one again."""
        self._failures = 0

    async def wait(self) -> None:
        """Wait before the next attempt."""
        await asyncio.sleep(reconnect_wait_s(self._failures, random.random()))  # noqa: S311 (jitter, not a secret)
        self._failures += 1


async def keep_connected(
    session: Callable[[Reconnect], Awaitable[None]], health: Health, subject: str, meanwhile: str
) -> NoReturn:
    """One ``session`` after the other until cancelled, with a wait between; each ends with ``BrokerUnavailable``.

    ``meanwhile`` is what does not happen without one: the sentence begins with it, and with the error it ends.
    """
    reconnect = Reconnect()
    while True:
        try:
            await session(reconnect)
        except BrokerUnavailable as error:
            health.say(subject, f"{meanwhile}: {error}")
        await reconnect.wait()
