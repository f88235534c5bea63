"""Levels of routes that have a store now: what was put there before goes on its way beside the rest.

They are looked for once, at the start, and read for as long as the process lives, empty or not: an instance that still
runs with the settings of before may go on writing to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bridge.core.errors import PostdateError
from bridge.pipeline.relay import Relay
from bridge.telemetry.reconnect import Reconnect


class Leaving:
    """``look()`` names the routes, blocking; ``drain(route)`` makes the relay that drains the levels of one."""

    def __init__(self, look: Callable[[], Sequence[str]], drain: Callable[[str], Relay]) -> None:
        self._look = look
        self._drain = drain
        self._relays: list[Relay] = []
        self._stopping = False

    async def run(self) -> None:
        """Drain until cancelled. Raises what a loop raised."""
        routes = await self._routes()
        if not self._stopping:
            self._relays = [self._drain(route) for route in routes]
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            for relay in self._relays:
                for loop in relay.loops():
                    group.create_task(loop)

    async def _routes(self) -> Sequence[str]:
        """That the broker is away is said by those who need it for more."""
        reconnect = Reconnect()
        while True:
            try:
                return await asyncio.to_thread(self._look)
            except PostdateError:
                await reconnect.wait()

    def stop(self) -> None:
        """Stop taking."""
        self._stopping = True
        for relay in self._relays:
            relay.stop()

    def finished(self) -> bool:
        """Whether nothing is under way any more."""
        return all(relay.finished() for relay in self._relays)
