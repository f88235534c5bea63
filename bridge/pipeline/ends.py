"""What the pipeline gets from a broker: where messages come from and where they go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bridge.core.message import Claim, Delivery
from bridge.core.ports import Link, Sink, Source
from bridge.pipeline.fan_out import Copy
from bridge.pipeline.relay import Carried, Packing
from bridge.settings import ProcessPlan


class Ends(NamedTuple):
    """The broker's side of a process with a store. ``source`` is None where no route has an intake. ``window`` bounds
    what is published and not confirmed, ``taken_max`` what the broker may redeliver after a crash. ``follow`` takes the
    routes that come and go at a reload, and returns the new ``taken_max``."""

    source: Source | None
    sink: Sink[Claim | Copy]
    links: tuple[Link, ...]
    window: int
    taken_max: int
    follow: Callable[[ProcessPlan], int]


@dataclass(frozen=True, slots=True)
class RelayEnds:
    """The broker's side of one relay. ``held_max`` bounds the refused messages that wait for another try."""

    routes: tuple[str, ...]
    source: Source
    sink: Sink[Carried]
    links: tuple[Link, ...]
    packing: Packing
    held_max: int


class Drains(NamedTuple):
    """Levels that postdate itself has to empty after their routes got a store. ``look`` names those routes and blocks;
    it raises ``BrokerUnavailable``. ``open`` makes the ends of one route's drain."""

    look: Callable[[], Sequence[str]]
    open: Callable[[str], RelayEnds]


class LogReplay(Protocol):
    """The records that a route took in, read once more. The broker learns nothing of it. A record arrived at its
    timestamp. Every method raises ``BrokerUnavailable``."""

    async def open(self, from_ms: int) -> None:
        """Find what was written at ``from_ms`` or later, up to now. Raises ``NotFound`` where there is no intake."""

    def records(self) -> AsyncIterator[Delivery]:
        """Iterate over these records, by their timestamps. It can be called again."""

    def later(self) -> AsyncIterator[Delivery]:
        """Iterate over what was written since ``open``, or since the last call."""

    def taken(self, delivery: Delivery) -> bool:
        """Return whether an instance had handled the record before ``open``."""

    async def close(self) -> None:
        """Close the connections."""
