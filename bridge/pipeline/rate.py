"""Keep the rate of routes with ``max_rate``: what is due beyond it is held, and let go in its order.

All instances take tokens from one bucket for each route, in the store. A claimed message without a token is given back
as held, like one of a paused route. While a shard has held messages of a route, all others of the route there are held
behind them. Steps take tokens and let as many messages go, the next one after the last.

The claim loop alone uses this. Without such routes it costs one comparison for each claim.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import FIRST_HELD, Store
from bridge.pipeline.wake import Wake

#: A bucket holds the tokens of this time: the most that leaves at once after a quiet time.
_BUCKET_S = 0.1
#: Seconds between two steps of a route.
_STEP_S = 0.025
#: Held messages of a shard that one step looks at.
_LOOK_MAX = 500
#: Messages that were let go are claimed within this time.
_CLAIMED_S = 1.0


@dataclass(slots=True)
class _Backlog:
    """The held messages of a route in a shard. ``looked``: a step was made. ``last``: as in ``LetGo``.

    ``ended_s``: when the last of them was let go; None while there are more.
    """

    looked: bool = False
    last: tuple[int, bytes] = FIRST_HELD
    ended_s: float | None = None


class RateLimits:
    """The routes with a rate, and what this instance holds back of them."""

    def __init__(self, store: Store, wake: Wake, per_s: Mapping[str, float]) -> None:
        """``per_s``: messages per second by route."""
        self._store = store
        self._wake = wake
        self._per_s = dict(per_s)
        self._backlogs: dict[tuple[str, int], _Backlog] = {}
        self._mine: frozenset[int] = frozenset()
        self._tokens: Counter[str] = Counter()
        self._next_step_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: By route, the last shard that got a token: where there are fewer tokens than shards, they take turns.
        self._served: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._per_s)

    def routes(self) -> Collection[str]:
        """Return the routes with a rate."""
        return self._per_s.keys()

    def unknown(self) -> set[int]:
        """Return the shards that must not be claimed from before the next step."""
        return {shard for (_, shard), one in self._backlogs.items() if not one.looked}

    def look_again(self, mine: Iterable[int]) -> None:
        """Look for held messages in these shards, whatever is known of them."""
        for shard in mine:
            for route in self._per_s:
                self._backlogs.setdefault((route, shard), _Backlog())

    async def advance(self, mine: frozenset[int], paused: Collection[str]) -> dict[int, StoreUnavailable]:
        """Let go what has tokens. Return the shards that failed."""
        self._tokens.clear()  # tokens that no message needed would add up to a burst
        if mine is not self._mine:
            self._backlogs = {place: one for place, one in self._backlogs.items() if place[1] in mine}
            self.look_again(mine - self._mine)
            self._mine = mine
        failed: dict[int, StoreUnavailable] = {}
        now_s = asyncio.get_running_loop().time()
        for place, one in tuple(self._backlogs.items()):
            if place[0] in paused or (one.ended_s is not None and now_s - one.ended_s > _CLAIMED_S):
                del self._backlogs[place]
        for route in {route for (route, _), one in self._backlogs.items() if one.ended_s is None}:
            failed |= await self._step(route, now_s)
        self._set_timer()
        return failed

    async def _step(self, route: str, now_s: float) -> dict[int, StoreUnavailable]:
        backlogs = {
            shard: one for (name, shard), one in self._backlogs.items() if name == route and one.ended_s is None
        }
        known = [shard for shard, one in backlogs.items() if one.looked]
        number = 0
        if known and now_s >= self._next_step_s.get(route, 0.0):
            self._next_step_s[route] = now_s + _STEP_S
            number = await self._take(route, len(known) * _LOOK_MAX)
        turns = sorted(known, key=lambda shard: (shard <= self._served.get(route, -1), shard))
        if number:
            self._served[route] = turns[(number - 1) % len(turns)]
        shares = _shared(number, turns)
        asked = {
            shard: (one.last, shares.get(shard, 0))
            for shard, one in backlogs.items()
            if shares.get(shard) or not one.looked
        }
        failed: dict[int, StoreUnavailable] = {}
        if not asked:
            return failed
        # Spread over the time until the next step, whose messages come after these.
        gap_us = int(min(1e6 / self._per_s[route], _STEP_S * 1e6 / max(1, number)))
        for shard, reply in (await self._store.let_go(route, asked, _LOOK_MAX, gap_us)).items():
            if isinstance(reply, StoreUnavailable):
                failed[shard] = reply
                continue
            number -= reply.moved
            if reply.owned:  # otherwise it is asked again, and not claimed from before
                one = backlogs[shard]
                one.looked, one.last, one.ended_s = True, reply.last, None if reply.more else now_s
            if reply.first_ms is not None:
                self._wake.heard(shard, reply.first_ms)
        self._tokens[route] += number  # for messages that come due now
        return failed

    def _held_behind(self, claim: Claim) -> bool | None:
        """Return whether a claim waits behind others of its route; None if it takes part in no backlog."""
        one = self._backlogs.get((claim.route, claim.shard))
        if one is None:
            return None
        if (claim.due_ms, claim.id) <= one.last:
            return False
        return True if one.ended_s is None else None

    async def grant(self, claims: Iterable[Claim]) -> None:
        """Take tokens for claims that take part in no backlog."""
        rated = (claim for claim in claims if claim.route in self._per_s)
        for route, number in Counter(one.route for one in rated if self._held_behind(one) is None).items():
            missing = number - self._tokens[route]
            if missing > 0:
                self._tokens[route] += await self._take(route, missing)

    async def _take(self, route: str, wanted: int) -> int:
        per_s = self._per_s[route]
        try:
            return await self._store.tokens(route, per_s, max(1, int(per_s * _BUCKET_S)), wanted)
        except StoreUnavailable:
            return 0  # the messages are held, and a later step lets them go

    def passes(self, claim: Claim) -> bool:
        """Return whether a claim may be delivered now. If not, it is to be held."""
        route = claim.route
        if route not in self._per_s:
            return True
        behind = self._held_behind(claim)
        if behind is None and self._tokens[route] > 0:
            self._tokens[route] -= 1
            return True
        if behind is None:
            one = self._backlogs.setdefault((route, claim.shard), _Backlog(looked=True))
            one.ended_s = None
            self._set_timer()  # the step of this pass is over: without it the loop would sleep until its idle pass
        return behind is False

    def _set_timer(self) -> None:
        """Wake the loop for the next step while anything is held."""
        if self._timer is None and any(one.ended_s is None for one in self._backlogs.values()):
            self._timer = asyncio.get_running_loop().call_later(_STEP_S, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake.nudge()


def _shared(number: int, shards: Collection[int]) -> dict[int, int]:
    """Return a share of ``number`` for each shard, as equal as possible; the first ones get one more. Pure."""
    shares = dict.fromkeys(shards, 0)
    for place, shard in enumerate(shards):
        shares[shard] = number // len(shards) + (place < number % len(shards))
    return shares
