"""The gate between a claim and its publishing: what comes due on a route beyond its rate is held.

A paused route is a rate of 0, and so is one that no instance has. ``max_rate`` is a rate, and other routes have none. A
message of a limited route is claimed when it is due, like any other, and given back as *held*: it keeps its due moment
and its order, and no claim finds it. Held messages are let go in steps and in their order: at their rate, or all of
them where the route has none any more. While a route has held messages in a shard, later ones of it are held behind
them. So nothing overtakes.

All instances take the tokens of a rate from one bucket for each route, in the store. The claim loop alone uses this.
Without orders, rates and held messages it costs a few comparisons for each claim.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import NamedTuple

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import FIRST_HELD, Claimed, DeliveringStore, HeldStep, LetGo
from bridge.pipeline.leases import RoutesElsewhere
from bridge.pipeline.ordered import Ordered
from bridge.pipeline.wake import Wake

#: What the store answered to a claim, and what of it may be published, by shard.
Replies = Mapping[int, Claimed | StoreUnavailable]
Admitted = Mapping[int, Sequence[Claim]]

#: A bucket holds the tokens of this time: the most that leaves at once after a quiet time.
_BUCKET_S = 0.1
#: Seconds between two steps of a route with a rate.
_PACE_S = 0.025
#: Held messages of a shard that one step looks at: about two milliseconds of Redis's time.
_STEP_MAX = 500
#: After this number of idle passes (one a second) the stage looks at all shards, whatever it knows of them.
_LOOK_EVERY = 5
#: Messages that were let go are claimed within this time.
_CLAIMED_S = 1.0
#: Steps of which a backlog remembers the turns: those of half a minute.
_TURNS_MAX = 1200


class _Place(NamedTuple):
    """Where a backlog is: a shard, and a route with a rate, or "" for all routes without one."""

    route: str
    shard: int


@dataclass(slots=True)
class _Turns:
    """What one step let go: up to ``last``, the next one at ``next_ms`` (Unix ms by the store's clock)."""

    last: tuple[int, bytes]
    next_ms: float
    gap_ms: float


@dataclass(slots=True)
class _Backlog:
    """Held messages that are let go, of ``routes`` in a shard. ``last``: the last that was. ``after``: where the next
    step begins; a message that was parked after its moment may be held before ``last``.

    ``ended_s``: when the last of them was let go; None while there are more. ``turns`` has the steps of a rate whose
    messages were not all claimed yet, and ``credit`` is the number of these messages. ``unsure_s``: until then (inf:
    not known yet) messages are held again that a step of a rate without a reply may have let go. The next step comes
    after that: it would let others go first.
    """

    routes: frozenset[str]
    last: tuple[int, bytes] = FIRST_HELD
    after: tuple[int, bytes] = FIRST_HELD
    credit: int = 0
    ended_s: float | None = None
    turns: deque[_Turns] = field(default_factory=lambda: deque(maxlen=_TURNS_MAX))
    unsure_s: float | None = None

    def holds(self, claim: Claim) -> bool:
        """Return whether a claim would overtake these messages."""
        return claim.route in self.routes and (claim.due_ms, claim.id) > self.last

    def turn_ms(self, claim: Claim) -> int:
        """Return when the turn of a message came that was let go. Messages come in the order of their turns."""
        while len(self.turns) > 1 and self.turns[0].last < (claim.due_ms, claim.id):
            self.turns.popleft()
        if not self.turns:
            return 0
        turn_ms = self.turns[0].next_ms
        self.turns[0].next_ms += self.turns[0].gap_ms
        return min(int(turn_ms), claim.claimed_ms)


class RateGate:
    """Which claims may be published, and what is held of this instance's shards."""

    def __init__(
        self,
        store: DeliveringStore,
        clock: StoreClock,
        wake: Wake,
        ordered: Ordered,
        routes: RoutesElsewhere,
        per_s: Mapping[str, float],
    ) -> None:
        """``per_s``: messages per second of routes with a rate."""
        self._store = store
        self._clock = clock
        self._wake = wake
        self._ordered = ordered
        self._per_s = dict(per_s)
        self._paused = ordered.paused
        self._routes = routes
        #: Why the messages of routes are held that no instance has.
        self._missing = routes.missing
        #: By route: messages per second, 0 for a paused or missing one.
        self._limits = self._per_s | dict.fromkeys(self._paused, 0.0)
        self._next_per_s = self._per_s
        self._mine: frozenset[int] = frozenset()
        self._idle_passes = 0
        #: Shards of which it is not known whether they have held messages, and those of them that others still drain.
        self.unknown: frozenset[int] = frozenset()
        self._elsewhere: frozenset[int] = frozenset()
        self._backlogs: dict[_Place, _Backlog] = {}
        self._tokens: Counter[str] = Counter()
        self._next_step_s: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: By route, the last shard that got a token: where there are fewer tokens than shards, they take turns.
        self._served: dict[str, int] = {}
        self.waiting: list[Claim] = []

    def claiming(self, shards: frozenset[int] | None, idle: bool = False) -> Turn:
        """Return a turn of the claim loop. ``shards`` are this instance's; None for a claim that was sent ahead.

        Entering it follows the orders and lets go what may go; ``idle``: in every shard. Leaving it holds the claims
        that may not be published.
        """
        return Turn(self, shards, idle)

    def follow(self, per_s: Mapping[str, float]) -> None:
        if per_s != self._next_per_s:
            self._next_per_s = dict(per_s)

    def works(self) -> bool:
        """Return whether routes are limited, or something is held, or may be."""
        return bool(self._limits or self.unknown or self._backlogs or self._changed())

    def _changed(self) -> bool:
        return (
            self._paused is not self._ordered.paused
            or self._per_s is not self._next_per_s
            or self._missing is not self._routes.missing
        )

    # -- what is let go ---------------------------------------------------------------------------------------------

    async def advance(self, mine: frozenset[int], idle: bool) -> dict[int, StoreUnavailable]:
        """Follow the orders; let go what is due again, one step for each backlog. Return the shards that failed."""
        if self._changed():
            self._paused, self._per_s = self._ordered.paused, self._next_per_s
            self._missing = self._routes.missing
            self._limits = self._per_s | dict.fromkeys(chain(self._paused, self._missing), 0.0)
            at_rate = self._per_s.keys() - self._paused
            self._forget(place for place in self._backlogs if place.route not in at_rate)
            self.unknown, self._elsewhere = mine, frozenset()
        if mine is not self._mine:
            self._forget(place for place in self._backlogs if place.shard not in mine)
            self.unknown, self._elsewhere = (self.unknown & mine) | (mine - self._mine), frozenset()
            self._mine = mine
        if idle:
            self._idle_passes += 1
            if self._idle_passes % _LOOK_EVERY == 0:
                self.unknown = mine
        if self._tokens:
            self._tokens.clear()  # tokens that no message needed would add up to a burst
        if not self.unknown and not self._backlogs:
            return {}
        return await self._step_freely(idle) | await self._step_at_rates()

    def _forget(self, places: Iterable[_Place]) -> None:
        for place in tuple(places):
            del self._backlogs[place]

    async def _step_freely(self, idle: bool) -> dict[int, StoreUnavailable]:
        """Let go what routes without a limit have held, each message at its own due moment. Learn what else is held."""
        due = () if idle else self._wake.due()
        # A shard that another instance still drains is asked again when that one hands it over, or in the idle pass.
        asked = [shard for shard in self.unknown if idle or shard not in self._elsewhere or shard in due]
        steps = {shard: HeldStep(FIRST_HELD, dict.fromkeys(self._limits, 0), True) for shard in asked}
        for place, backlog in self._backlogs.items():
            if not place.route:
                steps[place.shard] = HeldStep(backlog.last, dict.fromkeys(self._limits, 0), True)
        if not steps:
            return {}
        replies = await self._store.let_go(steps, _STEP_MAX)
        for shard, reply in self._answered(replies).items():
            self.unknown -= {shard}
            self._elsewhere -= {shard}
            for route in reply.rest & self._per_s.keys() - self._paused:
                self._backlogs.setdefault(_Place(route, shard), _Backlog(frozenset((route,))))
            self._backlogs.pop(_Place("", shard), None)
            if not reply.ended and (free := reply.rest - self._limits.keys()):
                self._backlogs[_Place("", shard)] = _Backlog(free, reply.last)
                self._wake.nudge()
        return _failed(replies)

    def _answered(self, replies: Mapping[int, LetGo | StoreUnavailable]) -> dict[int, LetGo]:
        """Return the answers of shards that this instance drains. Nothing is known of the others any more."""
        answers = {shard: reply for shard, reply in replies.items() if isinstance(reply, LetGo)}
        for shard in [shard for shard, reply in answers.items() if not reply.owned]:
            del answers[shard]
            self._wake.learnt(shard, None)
            self.unknown |= {shard}
            self._elsewhere |= {shard}
            self._forget(place for place in self._backlogs if place.shard == shard)
        for shard, reply in answers.items():
            if reply.first_ms is not None:
                self._wake.heard(shard, reply.first_ms)
        return answers

    async def _step_at_rates(self) -> dict[int, StoreUnavailable]:
        """Make one step for each route with a rate that has held messages."""
        now_s = asyncio.get_running_loop().time()
        self._forget(
            place
            for place, backlog in self._backlogs.items()
            if backlog.ended_s is not None and now_s - backlog.ended_s > _CLAIMED_S
        )
        for backlog in self._backlogs.values():
            if backlog.unsure_s is not None and now_s > backlog.unsure_s:
                backlog.unsure_s, backlog.after = None, FIRST_HELD
        failed: dict[int, StoreUnavailable] = {}
        for route in {place.route for place in self._backlogs if place.route}:
            if now_s >= self._next_step_s.get(route, 0.0):
                failed |= await self._step_at_rate(route, now_s)
        self._set_timer()
        return failed

    async def _step_at_rate(self, route: str, now_s: float) -> dict[int, StoreUnavailable]:
        """Let go as many held messages of a route as there are tokens."""
        backlogs = {
            place.shard: backlog
            for place, backlog in self._backlogs.items()
            if place.route == route and backlog.ended_s is None and backlog.unsure_s is None
        }
        if not backlogs:
            return {}
        self._next_step_s[route] = now_s + _PACE_S
        number = await self._take(route, len(backlogs) * _STEP_MAX)
        if not number:
            return {}
        turns = sorted(backlogs, key=lambda shard: (shard <= self._served.get(route, -1), shard))
        self._served[route] = turns[(number - 1) % len(turns)]
        shares = {shard: share for shard, share in _shared(number, turns).items() if share}
        # Spread over the time until the next step, whose messages come after these.
        gap_us = int(min(1e6 / self._per_s[route], _PACE_S * 1e6 / number))
        steps = {
            shard: HeldStep(backlogs[shard].after, {route: share}, False) for shard, share in shares.items() if share
        }
        replies = await self._store.let_go(steps, _STEP_MAX, gap_us)
        # The store may have got this step late, and get the next one soon: that one's moments must not come before.
        last_s = asyncio.get_running_loop().time() + max(shares.values()) * gap_us / 1e6
        self._next_step_s[route] = max(self._next_step_s[route], last_s)
        for shard in _failed(replies):
            backlogs[shard].unsure_s = inf
        for shard, reply in self._answered(replies).items():
            backlog = backlogs[shard]
            number -= reply.moved
            # A held message whose moment was changed may be due far ahead: others due before it are not let go by that.
            backlog.after = min(reply.last, (self._clock.now_ms() + 1, b""))
            backlog.last = max(backlog.last, backlog.after)
            backlog.ended_s = now_s if reply.ended or route not in reply.rest else None
            # Those that an operator gave a later moment all leave at that: their tokens are of no use then.
            if reply.first_ms is not None and reply.last[0] <= self._clock.now_ms():
                backlog.credit += reply.moved
                backlog.turns.append(_Turns(reply.last, reply.first_ms, gap_us / 1000))
        self._tokens[route] += number  # for messages that come due now
        return _failed(replies)

    async def _take(self, route: str, wanted: int) -> int:
        per_s = self._per_s[route]
        try:
            return await self._store.tokens(route, per_s, max(1, int(per_s * _BUCKET_S)), wanted)
        except StoreUnavailable:
            return 0  # the messages are held, and a later step lets them go

    def _set_timer(self) -> None:
        """Wake the loop for the next step while anything is held back by a rate."""
        if self._timer is None and any(p.route and backlog.ended_s is None for p, backlog in self._backlogs.items()):
            self._timer = asyncio.get_running_loop().call_later(_PACE_S, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake.nudge()

    # -- what is held -----------------------------------------------------------------------------------------------

    async def _grant(self, claims: Iterable[Claim]) -> None:
        """Take tokens for claims that no backlog of their route decides on."""
        numbers = Counter(claim.route for claim in claims if self._limits.get(claim.route) and self._is_free(claim))
        for route, number in numbers.items():
            missing = number - self._tokens[route]
            if missing > 0:
                self._tokens[route] += await self._take(route, missing)

    def _is_free(self, claim: Claim) -> bool:
        backlog = self._backlogs.get(_Place(claim.route, claim.shard))
        return backlog is None or (backlog.ended_s is not None and backlog.holds(claim))

    def _passes(self, claim: Claim) -> bool:
        """Return whether a claim may be published now. If not, it is to be held."""
        limit = self._limits.get(claim.route)
        place = _Place("" if limit is None else claim.route, claim.shard)
        backlog = self._backlogs.get(place)
        if limit == 0 or (backlog is not None and backlog.unsure_s is not None):
            return False
        late = backlog is not None and not backlog.holds(claim)  # it was let go, or was parked after its moment
        if backlog is not None and late and (limit is None or backlog.credit > 0):
            backlog.credit -= limit is not None
            claim.let_go_ms = max(claim.let_go_ms, backlog.turn_ms(claim))
            return True
        if backlog is not None and backlog.ended_s is None and not late:
            return False
        if limit is None:
            return True
        if self._tokens[claim.route] > 0:
            self._tokens[claim.route] -= 1
            return True
        backlog = self._backlogs.setdefault(place, _Backlog(frozenset((claim.route,))))
        backlog.ended_s, backlog.after = None, FIRST_HELD
        self._set_timer()  # the step of this pass is over: without it the loop would sleep until its idle pass
        return False

    def _note_resume(self, claims: Iterable[Claim]) -> None:
        """Note of claims that were due before their route was resumed when that was."""
        last_ms, let_go = self._ordered.let_go_ms, self._ordered.let_go
        for claim in claims:
            if claim.due_ms < last_ms:
                claim.let_go_ms = let_go.get(claim.route, 0)

    async def admit(self, replies: Replies) -> Admitted:
        """Return what may be published, by shard. The other claims are held at the end of the turn."""
        claimed = {shard: reply.claims for shard, reply in replies.items() if isinstance(reply, Claimed)}
        if self._ordered.let_go_ms:
            self._note_resume(chain.from_iterable(claimed.values()))
        if not self._limits and not self._backlogs:
            return claimed
        if self._per_s:
            await self._grant(chain.from_iterable(claimed.values()))
        for place, backlog in self._backlogs.items():
            if backlog.unsure_s == inf and place.shard in claimed:  # the store carried out that step before
                backlog.unsure_s = asyncio.get_running_loop().time() + _CLAIMED_S
        return {shard: self._passing(claims) for shard, claims in claimed.items()}

    def _passing(self, claims: Iterable[Claim]) -> list[Claim]:
        passing: list[Claim] = []
        limits, no_backlogs = self._limits, not self._backlogs
        for claim in claims:
            passes = (no_backlogs and claim.route not in limits) or self._passes(claim)
            (passing if passes else self.waiting).append(claim)
        return passing

    async def hold(self) -> None:
        """Hold what may not be published. If the store misses it, ``recover`` parks it as due."""
        waiting, self.waiting = self.waiting, []
        await self._store.hold((claim, self._why(claim.route)) for claim in waiting)

    def _why(self, route: str) -> str | None:
        """Return why a held message of a route counts as refused: "" if not, None if it counts as before. One that
        waits for its turn may have been refused before, and nothing leaves meanwhile."""
        return self._missing.get(route, "") if self._limits.get(route) == 0 else None


class Turn:
    """One turn of the claim loop: what it may claim and publish, while the gate is open.

    ``failed``: shards in which nothing could be let go, and later those that could not be claimed from.
    """

    def __init__(self, gate: RateGate, shards: frozenset[int] | None, idle: bool) -> None:
        self._gate = gate
        self._shards = shards
        self._idle = idle
        self.failed: dict[int, StoreUnavailable] = {}

    async def __aenter__(self) -> Turn:
        if self._shards is not None:
            self.failed = await self._gate.advance(self._shards, self._idle)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Also where a step failed: the next turn may let others go, which came after these.
        if self._gate.waiting and (kind is None or issubclass(kind, StoreUnavailable)):
            await self._gate.hold()

    def open(self, shards: list[int]) -> list[int]:
        """Return the shards of these that may be claimed from: it is known what they have held."""
        unknown = self._gate.unknown
        return [shard for shard in shards if shard not in unknown] if unknown else shards


def _failed(replies: Mapping[int, LetGo | StoreUnavailable]) -> dict[int, StoreUnavailable]:
    return {shard: reply for shard, reply in replies.items() if isinstance(reply, StoreUnavailable)}


def _shared(number: int, shards: Collection[int]) -> dict[int, int]:
    """Return a share of ``number`` for each shard, as equal as possible; the first ones get one more. Pure."""
    shares = dict.fromkeys(shards, 0)
    for place, shard in enumerate(shards):
        shares[shard] = number // len(shards) + (place < number % len(shards))
    return shares
