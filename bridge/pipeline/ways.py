"""A relay with its ends: what a route without a store runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import NamedTuple

from bridge.core.ports import Source
from bridge.pipeline.relay import Relay

Link = Callable[[], Coroutine[None, None, None]]


class Way(NamedTuple):
    """A relay and where it takes from. ``links`` keep the broker's connections."""

    source: Source
    links: tuple[Link, ...]
    relay: Relay

    def loops(self) -> Iterator[Coroutine[None, None, None]]:
        """Its loops; none of them ends by itself."""
        yield from (link() for link in self.links)
        yield self.relay.run()
        yield self.relay.run_again()

    def take_no_more(self) -> None:
        """Stop taking; what the broker has handed out already still goes on its way."""
        self.source.stop()
        self.relay.stop()

    def finished(self) -> bool:
        """Whether nothing is under way any more."""
        return self.source.emptied() and self.relay.under_way() == 0
