"""Which routes are refused at their destination, as health tells it."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet

from bridge.telemetry.health import Health

#: A refusal is told of for so long if nothing else is heard of the route; for so long only, if it delivers as well.
_REFUSED_S = 60.0
_CALM_S = 5.0


class RefusedRoutes:
    """Tell it of every refusal, and of deliveries while it is not empty."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._refused_at: dict[str, tuple[float, str]] = {}

    def __bool__(self) -> bool:
        """Whether a route is refused: only then a delivery is worth telling."""
        return bool(self._refused_at)

    def refused(self, route: str, reason: str) -> None:
        """A message of this route was not taken."""
        words = f"messages of route {route} are refused, the last one as {reason}"
        self._refused_at[route] = (time.monotonic(), words)
        self._health.say(f"route {route}", words, _REFUSED_S)

    def delivered(self, routes: AbstractSet[str]) -> None:
        """A route that delivers is well, if a moment passes in which it is refused nothing; it may be silent then."""
        now = time.monotonic()
        for route in routes & self._refused_at.keys():
            at, words = self._refused_at[route]
            if at + _CALM_S < now:
                del self._refused_at[route]
                self._health.say(f"route {route}", "")
            else:
                self._health.say(f"route {route}", words, at + _CALM_S - now)
