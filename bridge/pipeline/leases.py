"""What this instance holds: the shards that it drains, and the claims that are not settled yet.

A shard is drained by one instance at a time. It is handed over when its last claim is settled. A claim has a lease,
which ``recover`` renews.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import structlog

from bridge.core.errors import ShardsUnavailable
from bridge.core.message import Claim, Refusal
from bridge.core.ports import DeliveringStore, Release
from bridge.pipeline.wake import Wake

log = structlog.get_logger("postdate")

#: How long an instance that gave a shard away leaves it to the others, which learn at once that it is free.
_AWAY_S = 0.1
#: For this time after giving a shard away, claims are small: most of such a claim may have to be given back.
_TURNS_S = 1.0
#: For this time a shard that is to be handed over waits for the broker's answers to what was published of it.
_ANSWERED_S = 30.0
#: How long another instance that has the missing route may need to start.
_STARTING_S = 3.0


class Leases:
    """The shards and claims of this instance."""

    def __init__(self, store: DeliveringStore, wake: Wake) -> None:
        self._store = store
        self._wake = wake
        self._mine: frozenset[int] = frozenset()
        #: Shards to hand over as soon as nothing of them is held.
        self._leaving: set[int] = set()
        #: Shards of this instance that another one drains for a moment.
        self._given_way: set[int] = set()
        self._gave_way_at = -_TURNS_S
        self._held: dict[bytes, Claim] = {}
        self._held_in: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self.elsewhere = RoutesElsewhere(self, wake)

    # -- shards -----------------------------------------------------------------------------------------------------

    def take_over(self, shards: frozenset[int]) -> None:
        """Drain these shards and no others."""
        self._leaving = (self._leaving | (self._mine - shards)) - (shards - self._given_way)
        self._mine = shards
        self._wake.watch(shards - self._given_way)

    def shards(self) -> frozenset[int]:
        """Return the shards that are this instance's to drain."""
        return self._mine

    def leaving(self) -> bool:
        """Return whether shards wait to be handed over."""
        return bool(self._leaving)

    def claimable(self) -> list[int]:
        """Return the shards that this instance may claim from now."""
        return sorted(self._mine - self._given_way)

    def give_way(self, shard: int) -> None:
        """Let another instance drain this shard for a moment, because only that one can deliver a message there."""
        if shard in self._mine and shard not in self._given_way:
            self._gave_way_at = time.monotonic()
            self._given_way.add(shard)
            self._leaving.add(shard)
            self._wake.watch(self._mine - self._given_way)

    def takes_turns(self) -> bool:
        """Return whether this instance gave a shard away a moment ago."""
        return time.monotonic() - self._gave_way_at < _TURNS_S

    def _take_back(self, shard: int) -> None:
        self._given_way.discard(shard)
        self._wake.watch(self._mine - self._given_way)

    async def hand_over(self) -> None:
        """Hand over the shards that are leaving and of which nothing is held.

        Give back what the broker does not answer: one queue that confirms nothing would keep a shard from all routes.
        """
        if not self._leaving:
            return
        sent_s = time.monotonic() - _ANSWERED_S
        silent = [c for c in self._held.values() if 0 < c.sent_s < sent_s and c.shard in self._leaving]
        if silent:
            await self.give_back(silent, "not confirmed before a handover")
        free = [shard for shard in self._leaving if not self._held_in.get(shard)]
        if free:
            with suppress(ShardsUnavailable):  # then another instance waits until our drain key expires
                await self._store.hand_over(free)
            self._leaving.difference_update(free)
            for shard in self._given_way.intersection(free):
                asyncio.get_running_loop().call_later(_AWAY_S, self._take_back, shard)

    # -- claims -----------------------------------------------------------------------------------------------------

    def hold(self, shard: int, claims: Sequence[Claim]) -> None:
        """Add claims of one shard."""
        for claim in claims:
            self._held[claim.id + claim.token] = claim
        self._held_in[shard] = self._held_in.get(shard, 0) + len(claims)
        self._taken[shard] = self._taken.get(shard, 0) + len(claims)

    def ended(self, claims: Iterable[Claim]) -> None:
        """Remove claims that are settled, released or buried."""
        for claim in claims:
            if self._held.pop(claim.id + claim.token, None) is not None:
                self._held_in[claim.shard] -= 1
        self._wake.room_again()
        if any(not self._held_in.get(shard) for shard in self._leaving):
            self._wake.nudge()  # it can be handed over now

    def shards_held(self) -> list[int]:
        """Return the shards of these claims."""
        return [shard for shard, claims in self._held_in.items() if claims]

    def held(self) -> list[Claim]:
        """Return the claims that are not settled yet."""
        return list(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def taken(self) -> Mapping[int, int]:
        """Return how many messages were claimed from each shard since the last call."""
        taken, self._taken = self._taken, {}
        return taken

    async def give_back(self, claims: Sequence[Claim], because: str) -> None:
        """Release claims that cannot be published now.

        They are no longer held, so that no renewal keeps them: if the store misses the release, ``recover`` parks them
        again.
        """
        log.warning(because, messages=len(claims))
        self.ended(claims)
        await self._release(claims)

    async def leave(self) -> None:
        """Give back every claim and every shard when the process ends."""
        if self._held:
            await self._release(self.held())
        await self._store.hand_over(self._mine | self._leaving)

    async def _release(self, claims: Sequence[Claim]) -> None:
        await self._store.release([Release(claim, None, claim.tries, "") for claim in claims])


class RoutesElsewhere:
    """Routes that this instance lacks: those that only others have, and those that none has.

    While the routes of instances differ, as in a rolling change of the settings, an instance may claim a message whose
    route it lacks. It gives the message back, and the shard to an instance that has the route. Where none has it, what
    comes due is held until the route is back, so that it keeps its order. Now and then one try says so again.
    """

    def __init__(self, leases: Leases, wake: Wake) -> None:
        self._leases = leases
        self._wake = wake
        self._routes: frozenset[str] = frozenset()
        self._missed: set[str] = set()
        #: Routes that no instance has, and why their messages are held. Another object after every change.
        self.missing: dict[str, str] = {}
        #: No other instance is known to have a route that was missed: the next meeting should come at once.
        self.asks = False

    def learn(self, routes: Iterable[str]) -> None:
        """Replace the routes that other instances have."""
        self._routes, self.asks = frozenset(routes), False
        self.found(self._routes)

    def found(self, routes: Collection[str]) -> None:
        """Let go what is held of these routes: an instance has them."""
        self._try(routes)
        self._missed.difference_update(routes)

    def lacks(self, claim: Claim, refusal: Refusal) -> bool:
        """Note that this instance lacks the route of a message, which is to be parked again as it was.

        Return whether to report that: not while an instance that has the route may be starting.
        """
        route = claim.route
        if route in self._routes:
            self._leases.give_way(claim.shard)
            return False
        late = route in self._missed
        if route not in self.missing:
            self.asks = self.asks or not late
            self.missing = {**self.missing, route: str(refusal.reason)}
            again_s = (refusal.again_ms or 0) / 1000 if late else _STARTING_S
            asyncio.get_running_loop().call_later(again_s, self._try, (route,))
        return late

    def _try(self, routes: Collection[str]) -> None:
        if known := self.missing.keys() & routes:
            self._missed |= known
            self.missing = {route: why for route, why in self.missing.items() if route not in known}
            self._wake.nudge()
