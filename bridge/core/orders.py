"""What operators order for a route: it runs, is paused, or drains.

PAUSED: messages are taken in and parked, and none is delivered. A message that comes due is *held* in its shard, with
its order. DRAINING: nothing is taken in, and what is parked is delivered when due. Orders are in the store, so they
outlive the processes, and all instances follow them within about a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

#: The score of a held message in the due set is this plus its due moment: the year 2248, beyond every due moment
#: (``limits.max_delay`` is 100 years at most). ``adapters/redis/lua/include/held.lua`` has the same number.
HELD_MS = 2**43


class RouteState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"


class RouteOrder(NamedTuple):
    """The order for one route: since when (Unix ms by the store's clock), by whom, and why."""

    state: RouteState
    since_ms: int
    by: str
    reason: str


#: By route. A route without an order runs.
RouteOrders = Mapping[str, RouteOrder]


def read_order(text: str) -> RouteOrder:
    """Return an order from JSON. One that cannot be read counts as a pause: a delivery cannot be taken back."""
    try:
        told = json.loads(text)
        return RouteOrder(RouteState(told["state"]), int(told["since_ms"]), str(told["by"]), str(told["reason"]))
    except (ValueError, KeyError, TypeError):
        return RouteOrder(RouteState.PAUSED, 0, "", "the order in the store cannot be read")


def routes_that(orders: RouteOrders, state: RouteState) -> frozenset[str]:
    """Return the routes that were ordered into a state. Pure."""
    return frozenset(route for route, order in orders.items() if order.state is state)


def latest(parts: Iterable[RouteOrders]) -> dict[str, RouteOrder]:
    """Return the orders of several stores as one. Of two for a route, the later one counts. Pure."""
    found: dict[str, RouteOrder] = {}
    for part in parts:
        for route, order in part.items():
            if route not in found or found[route].since_ms <= order.since_ms:
                found[route] = order
    return found
