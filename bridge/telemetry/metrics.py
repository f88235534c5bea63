"""The numbers behind /metrics: plain Python numbers that the stages add to, once for each batch where they can.

The HTTP process gets them as snapshots and renders them, so no metrics library is loaded here. All numbers of a
snapshot may be added up over processes.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bridge.core.message import Claim
from bridge.telemetry.lateness import LATENESS_BOUNDS_MS

#: Upper ends of the classes: of delays that producers ask for (ms), and of everything that takes time here (s).
DELAY_BOUNDS_MS = (1e3, 1e4, 6e4, 3e5, 9e5, 3.6e6, 2.16e7, 8.64e7, 6.048e8, 2.592e9)
STAGE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: The calls to the store that are measured.
STORE_CALLS = ("park", "claim", "settle", "release", "bury")
_LAG_EVERY_S = 0.25


class Distribution:
    """A histogram: how many values were in each class, and their sum."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def as_json(self) -> list[float]:
        return [*self.counts, round(self.total, 6)]


@dataclass(slots=True)
class RouteNumbers:
    """What happened on one route since the process started."""

    received: int = 0
    passed: int = 0
    parked: int = 0
    deduplicated: int = 0
    cancelled: int = 0
    confirmed: int = 0
    refused: int = 0
    unknown: int = 0
    #: By the kind of the reason: kept as dead letters on arrival, and all dead letters.
    rejected: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    lateness_ms: Distribution = field(default_factory=partial(Distribution, LATENESS_BOUNDS_MS))
    delay_ms: Distribution = field(default_factory=partial(Distribution, DELAY_BOUNDS_MS))
    #: How long an operator's order held what was delivered.
    held_ms: Distribution = field(default_factory=partial(Distribution, DELAY_BOUNDS_MS))

    def died(self, kind: str, on_arrival: bool = False) -> None:
        self.dead[kind] = self.dead.get(kind, 0) + 1
        if on_arrival:
            self.rejected[kind] = self.rejected.get(kind, 0) + 1

    def as_json(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.as_json() if isinstance(value, Distribution) else value for name, value in values.items()}


class _Routes(dict[str, RouteNumbers]):
    """The numbers by route. Other names share one that is never shown: canaries, and routes of other instances."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__({name: RouteNumbers() for name in names})
        self._other = RouteNumbers()

    def __missing__(self, name: str) -> RouteNumbers:
        return self._other


class Metrics:
    """The numbers of one process."""

    def __init__(self, routes: Collection[str] = ()) -> None:
        self.routes = _Routes(routes)
        #: Messages that cannot be opened, so that their route is not known, and claims whose lease ran out.
        self.damaged = 0
        self.recovered = 0
        self.park_s = Distribution(STAGE_BOUNDS_S)
        self.publish_s = Distribution(STAGE_BOUNDS_S)
        self.store_s = {call: Distribution(STAGE_BOUNDS_S) for call in STORE_CALLS}
        self.lag_s = Distribution(STAGE_BOUNDS_S)

    def follow(self, routes: Collection[str]) -> None:
        """Count for these routes from now on, and show no others."""
        for name in self.routes.keys() - set(routes):
            del self.routes[name]
        for name in set(routes) - self.routes.keys():
            self.routes[name] = RouteNumbers()

    def parked(self, routes: Iterable[str]) -> None:
        """Count messages that are parked durably, by the route of each."""
        numbers = self.routes
        for route in routes:
            numbers[route].parked += 1

    def delivered(self, now_ms: float, confirmed: Iterable[Claim]) -> None:
        """Count messages that the broker confirmed at ``now_ms`` (Unix ms by the store's clock)."""
        numbers = self.routes
        for claim in confirmed:
            route = numbers[claim.route]
            route.confirmed += 1
            from_ms = claim.late_from_ms
            route.lateness_ms.add(now_ms - from_ms)
            if from_ms > claim.due_ms:
                route.held_ms.add(from_ms - claim.due_ms)

    def totals(self) -> dict[str, dict[str, int]]:
        """Return what each route received and delivered, for the report of the instance."""
        return {name: {"received": route.received, "delivered": route.confirmed} for name, route in self.routes.items()}

    def as_json(self) -> dict[str, object]:
        return {
            "routes": {name: route.as_json() for name, route in self.routes.items()},
            "damaged": self.damaged,
            "recovered": self.recovered,
            "park_s": self.park_s.as_json(),
            "publish_s": self.publish_s.as_json(),
            "store_s": {call: distribution.as_json() for call, distribution in self.store_s.items()},
            "lag_s": self.lag_s.as_json(),
        }

    async def watch_loop(self) -> None:
        """Measure until cancelled how late the event loop is."""
        while True:
            asked_s = time.monotonic()
            await asyncio.sleep(_LAG_EVERY_S)
            self.lag_s.add(max(0.0, time.monotonic() - asked_s - _LAG_EVERY_S))


def added(base: object, other: object) -> object:
    """Return the sum of two snapshots, or of parts of them. What only one of them has is kept. Pure."""
    if isinstance(base, Mapping) and isinstance(other, Mapping):
        names = dict.fromkeys((*base, *other))
        return {
            name: added(base[name], other[name]) if name in base and name in other else base.get(name, other.get(name))
            for name in names
        }
    if isinstance(base, list) and isinstance(other, list):
        return [a + b for a, b in zip(base, other, strict=True)]
    if isinstance(base, int | float) and isinstance(other, int | float):
        return base + other
    raise TypeError(f"two snapshots differ: {type(base).__name__} and {type(other).__name__}")
