"""Parked messages of routes that the settings do not have: they are due one day, and then nobody delivers them.

The store keeps no count of a route's messages, and a count would cost every move of every message. So the next due are
looked at, which is all where few are parked, and what was looked at is said. A route that was renamed or removed has
what it left among the oldest, and so among the next due, unless its delays are much longer than the others'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from bridge.telemetry.plural import counted


class Looked(NamedTuple):
    """How many messages of each route were among those that were looked at, how many that were, and how many are
    parked."""

    routes: Mapping[str, int]
    messages: int
    parked: int

    @property
    def share(self) -> str:
        """Where not all were looked at, which; else ""."""
        if self.messages >= self.parked:
            return ""
        return f"of the {counted(self.messages, 'message')} that are due next, among {self.parked} parked,"


class Remains(NamedTuple):
    """What is in such a store: messages that are to be delivered, and dead letters."""

    waiting: int
    dead: int


def strays(looked: Looked, known: Collection[str], broker: str) -> Iterator[tuple[str, str]]:
    """Pure: each route that is not ``known``, and a sentence, without its stop. ``broker`` as a person calls it."""
    for route, number in sorted(looked.routes.items()):
        if route not in known:
            one = number == 1
            what = f"{looked.share} {number}" if looked.share else counted(number, "message")
            yield (
                route,
                f"{what} {'is' if one else 'are'} parked in Redis under this name, which no route of {broker} has in "
                f"the settings: nobody delivers {'it' if one else 'them'} when {'it is' if one else 'they are'} due, "
                "unless another instance has the route; put it back, by that name, until `postdate list --route "
                f"{route}` shows none, or cancel what that shows",
            )
