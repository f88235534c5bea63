"""What the suites of ``Source`` and ``Sink`` need beyond the ports: a broker's other side. With the rigs in memory."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from itertools import count

import pytest

from adapters.memory import ManualClock, MemorySink, MemorySource
from adapters.memory.memory_sink import HOLD
from bridge.core.message import Claim, Delivery, Refusal
from bridge.core.ports import Result, Sink, Source
from bridge.core.reasons import Reason, ReasonKind

DEADLINE_S = 30.0
BYTES_MAX = 64 << 20
WINDOW = 1000


class EndFeature(Enum):
    """What a source or a sink may offer beyond its port. A suite skips a test whose feature the rig lacks."""

    HAS_ORIGIN = "the broker numbers its messages"
    ACCEPTS_SINGLY = "a message can be accepted before an older one for good"
    KEEPS_HANDED_OUT_AT_STOP = "after stop, the buffer is still to be taken"
    DELIVERIES_DIE_WITH_THE_CONNECTION = "a new connection gets again what the old one did not accept"
    BLOCKS = "the broker can block publishers and stay connected"


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, and fail when it does not come."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


class EndRig:
    """What the rigs of both ends have in common."""

    features: frozenset[EndFeature] = frozenset()

    def need(self, feature: EndFeature) -> None:
        """Skip the test if the end lacks a feature."""
        if feature not in self.features:
            pytest.skip(f"not here: {feature.value}")


class SourceRig(EndRig, ABC):
    """A broker with two routes, and one source on it at a time."""

    routes: tuple[str, str] = ("orders", "payments")

    @abstractmethod
    async def open(self, window: int = WINDOW) -> Source:
        """Connect the source. At most ``window`` messages are handed out and not accepted."""

    @abstractmethod
    async def again(self) -> Source:
        """End the source, and connect a new one to the same broker."""

    @abstractmethod
    async def feed(self, *bodies: bytes, route: int = 0) -> None:
        """Publish messages on a route, in order."""

    @abstractmethod
    def body(self, delivery: Delivery) -> bytes:
        """Return the body of a delivery, as it was published."""

    async def lose_connection(self) -> None:
        """Break the source's connection. It reconnects by itself."""
        raise NotImplementedError

    def place_of(self, offset: int) -> dict[str, object]:
        """Return the place of a record of the first route; the first record has offset 0."""
        raise NotImplementedError


class SinkRig(EndRig, ABC):
    """A broker with a destination, and one sink on it. ``batches`` are the listener's calls."""

    def __init__(self) -> None:
        self.batches: list[list[Result[Claim]]] = []
        self._numbers = count(1)

    @abstractmethod
    async def open(self, window: int = WINDOW) -> Sink[Claim]:
        """Connect a sink whose results go to ``batches``."""

    @abstractmethod
    async def hold(self) -> None:
        """Let the broker answer nothing until the connection ends."""

    @abstractmethod
    async def lose_connection(self) -> None:
        """End the connection, and let no new one succeed."""

    @abstractmethod
    async def heal(self) -> None:
        """Let connections succeed again."""

    @abstractmethod
    def pack(self, body: bytes) -> bytes:
        """Return a message as the store would have it."""

    @abstractmethod
    async def received(self, number: int) -> list[bytes]:
        """Return the bodies of the first messages at the destination, in order."""

    def letter(self, body: bytes = b"body", route: str = "orders") -> Claim:
        """Return a letter with an id of its own."""
        message_id = b"%020d" % next(self._numbers)
        return Claim(
            message_id,
            0,
            b"token678",
            1_700_000_000_000,
            0,
            0,
            route,
            b"",
            self.pack(body),
            message_id,
            time.monotonic(),
        )

    def lost_letter(self) -> Claim:
        """Return a letter for a destination that does not exist. Publish it before any other."""
        return self.letter(route="lost")

    def results(self) -> list[Result[Claim]]:
        """Return every result so far."""
        return [result for batch in self.batches for result in batch]

    async def answers(self, number: int) -> list[Result[Claim]]:
        """Wait for results. Fail if there are more. Forget them."""
        await until(lambda: len(self.results()) >= number, f"fewer than {number} answers came")
        results = self.results()
        self.batches.clear()
        assert len(results) == number
        return results

    def block(self, blocked: bool) -> None:
        """Let the broker block publishers, or end that."""
        raise NotImplementedError


class MemorySourceRig(SourceRig):
    """The memory source is its own broker, so a new connection of it stands for a new source."""

    features = frozenset(EndFeature) - {EndFeature.HAS_ORIGIN, EndFeature.BLOCKS}

    async def open(self, window: int = WINDOW) -> MemorySource:
        self.source = MemorySource(ManualClock(), window)
        return self.source

    async def again(self) -> MemorySource:
        self.source.reopen()
        return self.source

    async def lose_connection(self) -> None:
        self.source.lose_connection()

    async def feed(self, *bodies: bytes, route: int = 0) -> None:
        for body in bodies:
            self.source.feed(body, {}, route=self.routes[route])

    def body(self, delivery: Delivery) -> bytes:
        return delivery.payload


class MemoryLogRig(MemorySourceRig):
    """The memory source with logs."""

    features = frozenset(EndFeature) - {EndFeature.BLOCKS}

    async def open(self, window: int = WINDOW) -> MemorySource:
        self._offsets = (count(), count())
        return await super().open(window)

    async def feed(self, *bodies: bytes, route: int = 0) -> None:
        for body in bodies:
            origin = (self.routes[route].encode(), next(self._offsets[route]))
            self.source.feed(body, {}, route=self.routes[route], origin=origin)

    def place_of(self, offset: int) -> dict[str, object]:
        return {"log": self.routes[0], "offset": offset}


class MemorySinkRig(SinkRig):
    """The memory sink, which is told what to answer."""

    features = frozenset({EndFeature.BLOCKS})

    async def open(self, window: int = WINDOW) -> MemorySink[Claim]:
        self.sink = MemorySink[Claim](window, BYTES_MAX, connected=False)
        self.sink.on_answers(self.batches.append)
        self.sink.connect()
        return self.sink

    async def hold(self) -> None:
        self.sink.answer = HOLD

    async def lose_connection(self) -> None:
        self.sink.lose_connection()

    async def heal(self) -> None:
        self.sink.connect()

    def block(self, blocked: bool) -> None:
        self.sink.block(blocked)

    def pack(self, body: bytes) -> bytes:
        return body

    def lost_letter(self) -> Claim:
        self.sink.script(Refusal(Reason(ReasonKind.NO_TARGET, "there is no such destination")))
        return super().lost_letter()

    async def received(self, number: int) -> list[bytes]:
        return [claim.payload for claim in self.sink.published if claim.route != "lost"][:number]


def bodies(rig: SourceRig, deliveries: list[Delivery]) -> list[bytes]:
    """Return the bodies of deliveries."""
    return [rig.body(delivery) for delivery in deliveries]
