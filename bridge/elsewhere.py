"""Routes that other instances have: what is theirs to deliver is given back untouched, and its shard goes to them.

While the routes of instances differ, as during every rolling change of them, an instance may claim a message that it
has no route for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from bridge.message import Claim
from bridge.ports import Release

#: For so long it is left open whether another instance with the route is just starting.
_STARTING_S = 3.0
#: Meanwhile the message is looked at again after so long.
_AGAIN_MS = 500


class Elsewhere:
    """``give_way(shard)`` is called where another instance can deliver what waits in a shard."""

    def __init__(self, give_way: Callable[[int], None]) -> None:
        self._give_way = give_way
        self._routes: frozenset[str] = frozenset()
        self._missed_since: dict[str, float] = {}
        #: A route was missed that no other instance has, as far as is known: it is time to ask again.
        self.asks = False

    def learn(self, routes: Iterable[str]) -> None:
        """The routes that other instances have, from now on."""
        self._routes, self.asks = frozenset(routes), False
        for route in self._routes & self._missed_since.keys():
            del self._missed_since[route]

    def release(self, claim: Claim) -> Release | None:
        """How a message is given back whose route this instance lacks; None when no other instance has it either."""
        if claim.route in self._routes:
            self._give_way(claim.shard)
            return Release(claim, None, claim.tries, "")
        now_s = time.monotonic()
        self.asks = self.asks or claim.route not in self._missed_since
        if now_s - self._missed_since.setdefault(claim.route, now_s) < _STARTING_S:
            return Release(claim, _AGAIN_MS, claim.tries, "")
        return None
