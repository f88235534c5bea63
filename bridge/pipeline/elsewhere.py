"""Give back messages of routes that only other instances have, and hand their shard to those instances.

While the routes of instances differ, as in every rolling change of routes, an instance may claim a message that it has
no route for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from bridge.core.message import Claim
from bridge.core.ports import Release

#: For so long another instance with the route may still be starting.
_STARTING_S = 3.0
#: Meanwhile the message is tried again after so long.
_AGAIN_MS = 500


class Elsewhere:
    """Routes of other instances. ``give_way(shard)`` is called where another instance can deliver a message."""

    def __init__(self, give_way: Callable[[int], None]) -> None:
        self._give_way = give_way
        self._routes: frozenset[str] = frozenset()
        self._missed_since: dict[str, float] = {}
        #: No other instance is known to have a route that was missed: the next meeting should come at once.
        self.asks = False

    def learn(self, routes: Iterable[str]) -> None:
        """Replace the routes that other instances have."""
        self._routes, self.asks = frozenset(routes), False
        for route in self._routes & self._missed_since.keys():
            del self._missed_since[route]

    def release(self, claim: Claim) -> Release | None:
        """Return how to give back a message whose route this instance lacks; None when no instance has the route."""
        if claim.route in self._routes:
            self._give_way(claim.shard)
            return Release(claim, None, claim.tries, "")
        now_s = time.monotonic()
        self.asks = self.asks or claim.route not in self._missed_since
        if now_s - self._missed_since.setdefault(claim.route, now_s) < _STARTING_S:
            return Release(claim, _AGAIN_MS, claim.tries, "")
        return None
