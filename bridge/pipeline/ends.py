"""What the pipeline gets from a broker: where messages come from and where they go."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.core.ports import Result, Sink, Source
from bridge.pipeline.relay import Packing

#: A loop that keeps a connection to the broker.
Link = Callable[[], Coroutine[None, None, None]]
Answered = Callable[[list[Result]], None]


class Ends(NamedTuple):
    """The broker's side of a process with a store. ``source`` is None where no route has an intake. ``window`` bounds
    what is published and not confirmed, ``taken_max`` what the broker may redeliver after a crash."""

    source: Source | None
    sink: Sink
    links: tuple[Link, ...]
    window: int
    taken_max: int


@dataclass(frozen=True, slots=True)
class RelayEnds:
    """The broker's side of one relay. ``routes`` are those it serves, ``batch_max`` bounds what it takes at once."""

    routes: tuple[str, ...]
    source: Source
    source_link: Link
    open_sink: Callable[[Answered], tuple[Sink, Link]]
    packing: Packing
    held_max: int


class Drains(NamedTuple):
    """Levels that postdate itself has to empty after their routes got a store. ``look`` names those routes and blocks;
    it raises ``BrokerUnavailable``. ``open`` makes the ends of one route's drain."""

    look: Callable[[], Sequence[str]]
    open: Callable[[str], RelayEnds]
