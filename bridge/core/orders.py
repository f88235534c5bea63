"""What operators order for a route: it runs, is paused, or drains.

PAUSED: messages are taken in and parked, and none is delivered. A message that comes due is *held* in its shard, with
its order. DRAINING: nothing is taken in, and what is parked is delivered when due. Orders are in the store, so they
outlive the processes, and all instances follow them within about a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

#: The score of a held message in the due set is this plus its due moment: the year 2248, beyond every due moment
#: (``limits.max_delay`` is 100 years at most). ``adapters/redis/lua/include/held.lua`` has the same number.
HELD_MS = 2**43


class RouteState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acted, and the way in. Over the api: the name or the role of a token. By cli: a user of the operating system.

    Both are empty where that is not known.
    """

    who: str = ""
    via: str = ""

    def __str__(self) -> str:
        return f"{self.who} ({self.via})" if self.via else self.who


class RouteOrder(NamedTuple):
    """The order for one route: since when (Unix ms by the store's clock), by whom, and why.

    ``pauses`` has the begin and the end of its last ended pauses (at most 8), in their order.
    """

    state: RouteState
    since_ms: int
    by: Actor
    reason: str
    pauses: tuple[tuple[int, int], ...] = ()

    @property
    def let_go_ms(self) -> int:
        """When its last pause ended, 0 without one. Lateness does not count the wait before it."""
        return self.pauses[-1][1] if self.pauses else 0

    def overdue_ms(self, due_ms: int, now_ms: int) -> int:
        """Return for how long a message has been overdue: since its due moment, without the time in pauses."""
        held_ms = sum(max(0, end_ms - max(begin_ms, due_ms)) for begin_ms, end_ms in self.pauses)
        return max(0, now_ms - due_ms - held_ms)


#: By route. A route without an order runs. One that was paused keeps an order to run.
RouteOrders = Mapping[str, RouteOrder]


def read_order(text: str) -> RouteOrder:
    """Return an order from JSON. One that cannot be read counts as a pause: a delivery cannot be taken back."""
    try:
        data = json.loads(text)
        pauses = tuple((int(begin_ms), int(end_ms)) for begin_ms, end_ms in data.get("pauses", ()))
        by = Actor(str(data["who"]), str(data["via"]))
        return RouteOrder(RouteState(data["state"]), int(data["since_ms"]), by, str(data["reason"]), pauses)
    except (ValueError, KeyError, TypeError, AttributeError):
        return RouteOrder(RouteState.PAUSED, 0, Actor(), "the order in the store cannot be read")


def routes_that(orders: RouteOrders, state: RouteState) -> frozenset[str]:
    return frozenset(route for route, order in orders.items() if order.state is state)


def ordered(orders: RouteOrders) -> RouteOrders:
    """Return the orders without those to run. Pure."""
    return {route: order for route, order in orders.items() if order.state is not RouteState.RUNNING}


def latest(parts: Iterable[RouteOrders]) -> dict[str, RouteOrder]:
    """Return the orders of several stores as one. Of two for a route, the later one counts. Pure."""
    found: dict[str, RouteOrder] = {}
    for part in parts:
        for route, order in part.items():
            if route not in found or found[route].since_ms <= order.since_ms:
                found[route] = order
    return found
