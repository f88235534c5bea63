"""Routes with a limit of what they park: notice that one is full, take nothing in meanwhile, or reject.

The counts of all instances are in the store, so each instance looks there with every beat. The bytes are estimated
from the number of parked messages and the mean size of those that this instance took in last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from bridge.core.message import Delivery
from bridge.core.ports import CountingStore
from bridge.core.reasons import Reason, ReasonKind
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

FULL = Reason(ReasonKind.FULL, "its route has reached max_parked or max_parked_bytes")
#: A full route is full until it has fallen to this part of its limit: otherwise it would open and close all the time.
_FREE_BELOW = 0.95
#: The weight of a batch in the mean size of messages.
_WEIGHT = 0.2
_NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ParkedLimit:
    """The most messages and bytes that a route parks; 0 for no limit. ``rejects``: what comes to a full route becomes
    a dead letter; if false, nothing is taken in."""

    messages: int = 0
    size: int = 0
    rejects: bool = False

    def fill(self, messages: int, mean_size: float) -> float:
        """Return how full a route is: 1 at its limit. Pure."""
        by_messages = messages / self.messages if self.messages else 0.0
        by_size = messages * mean_size / self.size if self.size else 0.0
        return max(by_messages, by_size)


class IntakeGate:
    """The routes for which a source takes nothing in, by cause."""

    def __init__(self, close_intakes: Callable[[Collection[str]], None]) -> None:
        self._close_intakes = close_intakes
        self._closed: dict[str, frozenset[str]] = {}

    def close(self, cause: str, routes: Collection[str]) -> None:
        """Take nothing in for these routes. Replaces what was said for this cause before."""
        self._closed[cause] = frozenset(routes)
        self._close_intakes(frozenset().union(*self._closed.values()))


class Fullness:
    """Which routes are full."""

    def __init__(
        self, store: CountingStore, limits: Mapping[str, ParkedLimit], gate: IntakeGate, health: Health
    ) -> None:
        self._store = store
        self.follow(limits)
        self._gate = gate
        self._health = health
        self._full = _NOBODY
        self._mean_size: dict[str, float] = {}
        self.rejecting = _NOBODY

    def follow(self, limits: Mapping[str, ParkedLimit]) -> None:
        """Use these limits from the next look on."""
        self._limits = dict(limits)

    def note(self, route: str, deliveries: Iterable[Delivery]) -> None:
        """Learn the size of messages that were taken in: at least one."""
        limit = self._limits.get(route)
        if limit is not None and limit.size:
            mean = fmean(len(delivery.payload) for delivery in deliveries)
            before = self._mean_size.get(route, mean)
            self._mean_size[route] = before + (mean - before) * _WEIGHT

    async def look(self) -> None:
        """Learn which routes are full. Raises ``StoreUnavailable``."""
        if not self._limits and not self._full:
            return
        asked = await self._store.parked_by_route(tuple(self._limits)) if self._limits else {}
        counts = {
            route: number for route, number in asked.items() if route in self._limits
        }  # a reload may come between
        full = frozenset(route for route, number in counts.items() if self._is_full(route, number))
        for route in full | self._full:
            text = self._sentence(route, counts[route]) if route in full else ""
            self._health.say(Subject("route", route, "full"), text, cause=route)
        if full != self._full:
            self._full = full
            self.rejecting = frozenset(route for route in full if self._limits[route].rejects)
            self._gate.close("full", full - self.rejecting)

    def _is_full(self, route: str, messages: int) -> bool:
        fill = self._limits[route].fill(messages, self._mean_size.get(route, 0.0))
        return fill >= (_FREE_BELOW if route in self._full else 1)

    def _sentence(self, route: str, messages: int) -> str:
        limit = self._limits[route]
        what = "further ones become dead letters" if limit.rejects else "further ones wait in the broker"
        limits = [f"max_parked is {limit.messages}"] * bool(limit.messages)
        limits += [f"max_parked_bytes is {limit.size}"] * bool(limit.size)
        return f"route {route} is full, {what}: messages parked: {messages}, and {', '.join(limits)}"

    def report(self) -> dict[str, list[str]]:
        """Return what an instance says of it."""
        return {"full": sorted(self._full)} if self._full else {}
