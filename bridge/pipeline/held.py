"""Keep the messages of paused routes, and let them go when their route is resumed. ``rate`` does so for routes with a
rate.

A message of a paused route is claimed when it is due, like any other, and given back as *held*: it keeps its due moment
and its order, and no claim finds it. After a resume this instance lets the held messages of its shards go, in steps and
in their order. Until a shard has none left, a message of the route that comes after the last step is held, too. So no
message overtakes one that was held before it.

All of this happens in the claim loop, one thing after the other. While no route is paused and nothing is held, it costs
two comparisons for each claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import structlog

from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.orders import RouteOrder, RouteOrders, RouteState, routes_that
from bridge.core.ports import FIRST_HELD, Claimed, Release, Store
from bridge.pipeline.rate import RateLimits
from bridge.pipeline.wake import Wake

log = structlog.get_logger("postdate")

#: Messages of a shard that one step looks at: about two milliseconds of Redis's time.
_STEP_MAX = 500
#: Every so many idle passes (one a second), all shards are looked at, whatever is known of them.
_LOOK_EVERY = 5
_NOBODY: frozenset[str] = frozenset()


class Ordered:
    """What operators have ordered, as this instance knows it. ``paused`` is another object after every change."""

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
        self.paused = _NOBODY
        self.draining = _NOBODY
        self.learn(orders)

    def learn(self, orders: RouteOrders) -> None:
        """Take the orders that are in the store now."""
        if orders == self._orders:
            return
        for route in orders.keys() | self._orders.keys():
            _log(route, self._orders.get(route), orders.get(route))
        self._orders = orders
        paused, draining = routes_that(orders, RouteState.PAUSED), routes_that(orders, RouteState.DRAINING)
        if paused != self.paused:
            self.paused = paused
        if draining != self.draining:
            self.draining = draining
            self._drain(draining)
        self._changed()

    def report(self) -> dict[str, list[str]]:
        """Return what this instance says of itself: routes that it does not deliver, and that it does not take in."""
        told = {"paused": sorted(self.paused), "draining": sorted(self.draining)}
        return {name: routes for name, routes in told.items() if routes}


def _log(route: str, before: RouteOrder | None, after: RouteOrder | None) -> None:
    if after is None:
        log.info("route resumed", route=route)
    elif before is None or before.state is not after.state:
        log.info(f"route {after.state.value}", route=route, by=after.by, reason=after.reason)


@dataclass(slots=True)
class _Shard:
    """How far the held messages of a shard were let go: ``last`` and ``rest`` as in ``Unheld``.

    ``looked``: a step was made. ``elsewhere``: another instance still drained the shard.
    """

    looked: bool = False
    elsewhere: bool = False
    last: tuple[int, bytes] = FIRST_HELD
    rest: frozenset[str] = _NOBODY


class Held:
    """The held messages of this instance's shards. It is used by the claim loop alone."""

    def __init__(self, store: Store, wake: Wake, ordered: Ordered, rates: RateLimits) -> None:
        self._rates = rates
        self._store = store
        self._wake = wake
        self._ordered = ordered
        self._paused = ordered.paused
        self._mine: frozenset[int] = frozenset()
        self._passes = 0
        #: Shards of which it is not known that they have no message to let go.
        self._open: dict[int, _Shard] = {}
        self._waiting: list[Claim] = []

    def works(self) -> bool:
        """Return whether routes are paused, have a rate, or have held messages to let go."""
        return bool(self._paused or self._ordered.paused or self._open or self._rates)

    def unknown(self) -> Collection[int]:
        """Return the shards that must not be claimed from before the next step."""
        shards = {shard for shard, one in self._open.items() if not one.looked} if self._open else set()
        return shards | self._rates.unknown() if self._rates else shards

    async def advance(self, mine: frozenset[int], idle: bool) -> dict[int, StoreUnavailable]:
        """Follow the orders; let go what is due again, one step for each shard. Return the shards that failed."""
        if self._paused is not self._ordered.paused:
            self._paused = self._ordered.paused
            self._open = {shard: _Shard() for shard in mine}
            self._rates.look_again(mine)
        if mine is not self._mine:
            kept = {shard: one for shard, one in self._open.items() if shard in mine}
            self._open = kept | {shard: _Shard() for shard in mine - self._mine}
            self._mine = mine
        if idle:
            self._passes += 1
            if self._passes % _LOOK_EVERY == 0:
                self._open = {shard: _Shard() for shard in mine} | self._open
                self._rates.look_again(mine)
        failed = await self._step(idle) if self._open else {}
        return failed | await self._rates.advance(mine, self._paused) if self._rates else failed

    async def _step(self, idle: bool) -> dict[int, StoreUnavailable]:
        due = () if idle else self._wake.due()
        # A shard that another instance still drains is asked again when that one hands it over, or in the idle pass.
        shards = {shard: one.last for shard, one in self._open.items() if idle or not one.elsewhere or shard in due}
        failed: dict[int, StoreUnavailable] = {}
        if not shards:
            return failed
        stay = self._paused.union(self._rates.routes()) if self._rates else self._paused
        for shard, reply in (await self._store.unhold(shards, stay, _STEP_MAX)).items():
            if isinstance(reply, StoreUnavailable):
                failed[shard] = reply
                continue
            if not reply.owned:
                self._wake.learnt(shard, None)
                self._open[shard] = _Shard(elsewhere=True)
                continue
            if reply.first_ms is not None:
                self._wake.heard(shard, reply.first_ms)
            if reply.rest:
                self._open[shard] = _Shard(True, False, reply.last, reply.rest)
                self._wake.nudge()
            else:
                del self._open[shard]
        return failed

    def sorted(self, shard: int, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Return the claims that may be delivered. The others wait for ``give_back``."""
        if not self._paused and not self._open and not self._rates:
            return claims
        one = self._open.get(shard, _Shard())
        go: list[Claim] = []
        for claim in claims:
            overtakes = claim.route in one.rest and (claim.due_ms, claim.id) > one.last
            held = claim.route in self._paused or overtakes or not self._rates.passes(claim)
            (self._waiting if held else go).append(claim)
        return go

    async def grant(self, replies: Iterable[Claimed | StoreUnavailable]) -> None:
        """Take the tokens that claimed messages of routes with a rate need. Call it before ``sorted``."""
        if self._rates:
            claims = (claim for one in replies if isinstance(one, Claimed) for claim in one.claims)
            await self._rates.grant(claim for claim in claims if claim.route not in self._paused)

    async def give_back(self) -> None:
        """Park the claims of paused routes again, as held. If the store misses it, ``recover`` parks them as due."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            await self._store.release(_held(waiting))


def _held(claims: Iterable[Claim]) -> list[Release]:
    return [Release(claim, None, claim.tries, "", held=True) for claim in claims]
