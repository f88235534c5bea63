"""What operators have ordered, as this instance knows it: which routes are paused, and which take nothing in."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from bridge.core.orders import RouteOrder, RouteOrders, RouteState, routes_that

log = structlog.get_logger("postdate")

_NO_ROUTES: frozenset[str] = frozenset()


class Ordered:
    """The orders in force. ``paused`` is another object after every change.

    ``let_go`` has the routes that were paused, and when that ended (Unix ms by the store's clock).
    """

    def __init__(
        self,
        orders: RouteOrders,
        drain: Callable[[Collection[str]], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``drain`` gets the routes of which nothing is to be taken in. ``changed`` is called after a change."""
        self._orders: RouteOrders = {}
        self._drain = drain
        self._changed = changed
        self.paused = _NO_ROUTES
        self.draining = _NO_ROUTES
        self.let_go: dict[str, int] = {}
        self.let_go_ms = 0
        self.learn(orders)

    def learn(self, orders: RouteOrders) -> None:
        """Take the orders that are in the store now."""
        if orders == self._orders:
            return
        for route in orders.keys() | self._orders.keys():
            _log(route, self._orders.get(route), orders.get(route))
        self._orders = orders
        self.let_go = {route: order.let_go_ms for route, order in orders.items() if order.let_go_ms}
        self.let_go_ms = max(self.let_go.values(), default=0)
        paused, draining = routes_that(orders, RouteState.PAUSED), routes_that(orders, RouteState.DRAINING)
        if paused != self.paused:
            self.paused = paused
        if draining != self.draining:
            self.draining = draining
            self._drain(draining)
        self._changed()

    def report(self) -> dict[str, list[str]]:
        """Return the routes that this instance does not deliver, and those that it does not take in."""
        routes = {"paused": sorted(self.paused), "draining": sorted(self.draining)}
        return {state: names for state, names in routes.items() if names}


def _log(route: str, before: RouteOrder | None, after: RouteOrder | None) -> None:
    was, now = (RouteState.RUNNING if order is None else order.state for order in (before, after))
    if now is was:
        return
    if after is None or now is RouteState.RUNNING:
        log.info("route resumed", route=route)
    else:
        log.info(f"route {after.state.value}", route=route, by=str(after.by), reason=after.reason)
