"""Delivers what previous settings left behind: in the levels of routes that have a store now, and in a store that no
route uses any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager

import structlog

from bridge.core.errors import PostdateError, Unreachable
from bridge.core.message import Delivery
from bridge.desk.leftovers import Remains
from bridge.pipeline.relay import Relay
from bridge.process.loops import Running, together
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")

#: The pause between two looks (s): the first due message may be late by it.
LOOK_S = 5.0


class StoreDrain:
    """Delivers from a store that no route uses any more, for as long as the process lives.

    It looks again and again: the store may be away at the start, and an instance with previous settings may go on
    parking there. Until it finds something, it opens nothing.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Remains]],
        words: Callable[[Remains], str],
        service: Callable[[], AbstractAsyncContextManager[Running]],
        expected: bool,
    ) -> None:
        """``look`` counts what the store holds and raises ``StoreUnavailable`` and ``StoreUnfit``; ``words`` renders
        it; ``service`` opens the store and delivers from it. A store that does not answer is logged if ``expected``.
        """
        self._look = look
        self._words = words
        self._open = service
        self._expected = expected
        self._service: Running | None = None
        self._stopping = False
        self._logged = ""

    async def run(self) -> None:
        """Look and deliver until cancelled. Raises what a loop raised, unless the next look can mend it."""
        while True:
            try:
                remains = await self._look()
                self._say(self._words(remains) if any(remains) else "")
                if remains.waiting and not self._stopping:
                    await self._serve()
            except PostdateError as error:
                if self._expected or not isinstance(error, Unreachable):
                    self._say(f"whether Redis still holds messages of previous settings is not known: {error}")
            await asyncio.sleep(LOOK_S)

    async def _serve(self) -> None:
        async with self._open() as service:
            self._service = service
            if self._stopping:
                service.take_no_more()
            try:
                await together(service.loops())
            finally:
                self._service = None

    def _say(self, text: str) -> None:
        """Log every state once."""
        if text != self._logged:
            if text:
                log.warning("left behind", what=text)
            else:
                log.info("nothing left behind")
            self._logged = text

    def take_no_more(self) -> int:
        """Take no more messages; return how many are claimed."""
        self._stopping = True
        return self._service.take_no_more() if self._service is not None else 0

    def finished(self) -> bool:
        """Return whether no message is under way."""
        return self._service is None or self._service.finished()

    async def leave(self) -> int:
        """Leave the store; return how many messages are given back."""
        return await self._service.leave() if self._service is not None else 0


class LevelsDrain:
    """Delivers from the levels of routes that have a store now.

    It looks for them once, at the start, and reads them as long as the process lives, empty or not: an instance with
    previous settings may still write to them. ``look()`` names the routes and blocks; ``drain(route)`` makes the relay
    of one.
    """

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
        """Retry silently: source and sink report a broker that is away."""
        reconnect = Reconnect()
        while True:
            try:
                return await asyncio.to_thread(self._look)
            except PostdateError:
                await reconnect.wait()

    def stop(self) -> None:
        """Take no more messages."""
        self._stopping = True
        for relay in self._relays:
            relay.stop()

    def finished(self) -> bool:
        """Return whether no message is under way."""
        return all(relay.finished() for relay in self._relays)


class NoIntake:
    """The source of a process that only delivers what is parked: it never has a delivery."""

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        await asyncio.Event().wait()
        return []

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        return []

    def alive(self, delivery: Delivery) -> bool:
        return False

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing."""

    def place(self, delivery: Delivery) -> dict[str, object]:
        return {}

    def close_intakes(self, routes: Collection[str]) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def emptied(self) -> bool:
        return True
