"""What the pipeline gets from a broker: where messages come from and where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.core.message import Claim
from bridge.core.ports import Link, Sink, Source
from bridge.pipeline.fan_out import Copy
from bridge.pipeline.relay import Carried, Packing


class Ends(NamedTuple):
    """The broker's side of a process with a store. ``source`` is None where no route has an intake. ``window`` bounds
    what is published and not confirmed, ``taken_max`` what the broker may redeliver after a crash."""

    source: Source | None
    sink: Sink[Claim | Copy]
    links: tuple[Link, ...]
    window: int
    taken_max: int


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
