"""The way out: wake, claim, and on to ``bridge.pipeline.publish``. The answers come back to ``bridge.pipeline.settle``.

One loop for all shards of this instance. It claims as much as the sink has room for and passes it on in the order of
the claims; the next claim need not wait for the answers, only for the reply of the store, so nothing overtakes and the
broker is never idle. A shard that goes to another instance is handed over when the last message in flight is settled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

import structlog

from bridge.core.errors import ShardsUnavailable, StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import Claimed, Release, Sink, Store
from bridge.pipeline.alarm import Alarm
from bridge.pipeline.publish import Departures
from bridge.pipeline.wake import IDLE_S, Wake, pace_s
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")

#: The load, which sets the pace, is averaged over about so long.
_RATE_OVER_S = 0.2
#: Due moments are whole milliseconds, so departures are never nearer than that anyway.
_GRID_S = 0.001
#: Shards that cannot be asked are asked again so late, as long as others answer.
_REST_S = 1.0
#: How fast the largest message of late is forgotten, with every claim.
_LARGEST_FADES = 0.98
#: After giving way an instance leaves the shard to the others for so long. They hear at once that it is free.
_AWAY_S = 0.1
#: For so long afterwards a claim takes at most so many messages of a shard, as it may have to give most of them back.
_TURNS_S, _TURN_MAX = 1.0, 64


#: How many messages of a newer version are remembered, so that the log names each once.
_TOLD_MAX = 10_000
_NAMED_MAX = 5


@dataclass(frozen=True)
class DispatchRules:
    """Times in milliseconds; ``batch_max`` and ``batch_bytes`` bound one claim of one shard.

    ``held_max`` bounds what is claimed and not settled, so that a store that is slow to settle does not widen the
    window in which a death makes copies.
    """

    lease_ms: int
    drain_ms: int
    pace_ms: int
    batch_max: int
    batch_bytes: int
    held_max: int


class Dispatcher:
    """The loop on the way out, and what this instance holds."""

    def __init__(
        self, store: Store, sink: Sink, wake: Wake, departures: Departures, rules: DispatchRules, health: Health
    ) -> None:
        self._store = store
        self._sink = sink
        self._wake = wake
        self._departures = departures
        self._rules = rules
        self._health = health
        self._room_again = asyncio.Event()
        self._reconnect = Reconnect()
        self._largest = 0
        self._damaged: list[tuple[Claim, str]] = []
        self._told_newer: set[bytes] = set()
        self._mine: frozenset[int] = frozenset()
        self._leaving: set[int] = set()
        self._away: Set[int] = frozenset()
        self._answered_at = -_REST_S
        self._held: dict[bytes, Claim] = {}
        self._held_in: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._given_way: set[int] = set()
        self._gave_way_at = -_TURNS_S
        self.stopping = False
        self.passed_at = time.monotonic()
        self._turns = 0

    # -- what others tell it ----------------------------------------------------------------------------------------

    def take_over(self, shards: frozenset[int]) -> None:
        """Drain these shards and no others."""
        self._leaving = (self._leaving | (self._mine - shards)) - (shards - self._given_way)
        self._mine = shards
        self._wake.watch(shards - self._given_way)

    def shards(self) -> frozenset[int]:
        """The shards that are this instance's to drain."""
        return self._mine

    def give_way(self, shard: int) -> None:
        """Let another instance drain this shard for a moment: only that one can deliver a message there."""
        if shard in self._mine and shard not in self._given_way:
            self._gave_way_at = time.monotonic()
            self._given_way.add(shard)
            self._leaving.add(shard)
            self._wake.watch(self._mine - self._given_way)

    def _come_back(self, shard: int) -> None:
        self._given_way.discard(shard)
        self._wake.watch(self._mine - self._given_way)

    def taken(self) -> Mapping[int, int]:
        """How many messages were claimed from each shard since the last call."""
        taken, self._taken = self._taken, {}
        return taken

    def ended(self, claims: Iterable[Claim]) -> None:
        """These claims are settled, released or buried: no longer held."""
        for claim in claims:
            if self._held.pop(claim.id + claim.token, None) is not None:
                self._held_in[claim.shard] -= 1
        self._room_again.set()
        if any(not self._held_in.get(shard) for shard in self._leaving):
            self._wake.nudge()  # it can be handed over now

    def answered(self) -> None:
        """The sink may have room again."""
        self._room_again.set()
        self._departures.answered()

    def held(self) -> list[Claim]:
        """What is claimed and not yet settled."""
        return list(self._held.values())

    def mark(self) -> object:
        """What changes with every turn of the loop; None where it is to turn no more."""
        return None if self.stopping else self._turns

    # -- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Dispatch until cancelled, or until told to stop."""
        looked_at = time.monotonic()
        rate = 0.0
        while not self.stopping:
            self._turns += 1
            pace = pace_s(rate, self._rules.pace_ms / 1000)
            self._departures.pace_s = pace - _GRID_S
            await self._wake.sleep(time.monotonic() - looked_at, pace)
            try:
                await self._hand_over()
                if not await self._has_room():
                    continue
                before, looked_at = looked_at, time.monotonic()
                taken = await self.dispatch(idle=looked_at - self.passed_at >= IDLE_S)
                rate += (taken / (looked_at - before + 0.0001) - rate) * min(1.0, (looked_at - before) / _RATE_OVER_S)
            except StoreUnavailable as error:
                self._health.say("store dispatch", f"nothing is delivered: {error}")
                await self._reconnect.wait()
                self._wake.nudge()

    async def _has_room(self) -> bool:
        """Wait for room, a second at most: shards are handed over also while the sink has none."""
        if min(self._room()) <= 0:
            self._room_again.clear()
            try:
                async with asyncio.timeout(IDLE_S):  # wait_for of Python 3.11 swallows a cancellation now and then
                    await self._room_again.wait()
            except TimeoutError:
                self.passed_at = time.monotonic()  # the loop is alive; sink and settler say themselves what is wrong
        return min(self._room()) > 0

    def _room(self) -> tuple[int, int]:
        messages, size = self._sink.room()
        return min(messages - len(self._departures), self._rules.held_max - len(self._held)), size

    async def dispatch(self, idle: bool = True) -> int:
        """One pass: claim what is due, now or in a moment. An idle pass looks at every shard; returns how many came."""
        shards = self._wake.awake(sorted(self._mine - self._given_way)) if idle else self._wake.due()
        if idle:
            self.passed_at = time.monotonic()
        room, room_bytes = self._room()
        if not shards or room <= 0 or self.stopping:
            return 0
        if room < len(shards):
            shards = (self._wake.due() or shards)[:room]
        # Each shard may return one message beyond its bytes, so where large ones are about fewer shards are asked.
        if self._largest * len(shards) > room_bytes:
            shards = shards[: max(1, room_bytes // self._largest)]
        taking_turns = time.monotonic() - self._gave_way_at < _TURNS_S
        limit = min(_TURN_MAX if taking_turns else self._rules.batch_max, room // len(shards))
        bytes_max = max(1, min(self._rules.batch_bytes, room_bytes // len(shards)))
        taken = 0
        failed: dict[int, StoreUnavailable] = {}
        self._wake.asking(shards)
        lease_ms, drain_ms = self._rules.lease_ms, self._rules.drain_ms
        replies = await self._store.claim(shards, limit, bytes_max, lease_ms, drain_ms, self._wake.ahead_ms)
        for shard, reply in replies.items():
            if isinstance(reply, StoreUnavailable):
                failed[shard] = reply
            else:
                taken += self._take(shard, reply)
        await self.depart()
        self._note(replies.keys() - failed.keys(), failed)
        await self._bury_damaged()
        return taken

    def _note(self, answered: Set[int], failed: Mapping[int, StoreUnavailable]) -> None:
        """Shards that cannot be asked rest for a moment, as long as others can be. Raises where none can."""
        now_s = time.monotonic()
        if answered:
            self._answered_at = now_s
        self._away = (self._away - answered | failed.keys()) & self._mine
        if not failed:
            self._reconnect.worked()
            if not self._away:
                self._health.say("store dispatch", "")
            return
        error = next(iter(failed.values()))
        if now_s - self._answered_at > _REST_S:
            raise error
        self._wake.rest(failed, _REST_S)
        self._health.say("store dispatch", f"nothing is delivered from {len(self._away)} shards: {error}")

    async def run_departures(self) -> None:
        """Let go who is due, until cancelled."""
        alarm = Alarm(self._departures.wake)
        try:
            while True:
                await self._departures.sleep(alarm)
                with suppress(StoreUnavailable):  # their leases have ended, so recover gives them back
                    await self.depart()
        finally:
            alarm.close()

    async def depart(self) -> None:
        """Publish what is due."""
        late = self._departures.go()
        if late:
            # This process stood still for longer than the lease: someone else may have these already. They are not
            # held, so that nobody renews them: if the store does not hear the release, recover gives them back.
            log.warning("woke up after the leases had ended", messages=len(late))
            self.ended(late)
            await self._store.release([Release(claim, None, claim.tries, "") for claim in late])

    def _take(self, shard: int, claimed: Claimed) -> int:
        if claimed.owner is not None:
            self._wake.learnt(shard, None)  # looked at again when it is handed over, and once a second
            return 0
        self._wake.learnt(shard, claimed.next_due_ms)
        if claimed.ghosts or claimed.newer or claimed.damaged:
            self._complain(shard, claimed)
        claims = claimed.claims
        if not claims:
            return 0
        largest = max(len(claim.payload) for claim in claims)
        self._largest = max(largest, int(self._largest * _LARGEST_FADES))
        for claim in claims:
            self._held[claim.id + claim.token] = claim
        self._held_in[shard] = self._held_in.get(shard, 0) + len(claims)
        self._taken[shard] = self._taken.get(shard, 0) + len(claims)
        self._departures.add(claims)
        return len(claims)

    def _complain(self, shard: int, claimed: Claimed) -> None:
        if claimed.ghosts:
            log.error("parked messages have vanished from the store", shard=shard, messages=claimed.ghosts)
        if claimed.newer:
            text = "messages of a newer version of postdate wait: start an instance of that version"
            self._health.say(f"newer version in shard {shard}", text, for_s=4 * self._rules.lease_ms / 1000)
            news = [one for one in claimed.newer if one not in self._told_newer]
            if len(self._told_newer) + len(news) > _TOLD_MAX:
                self._told_newer.clear()
            self._told_newer.update(news[:_TOLD_MAX])
            if news:
                log.error("messages of a newer version of postdate", shard=shard, messages=len(news), ids=_names(news))
        if claimed.damaged:
            self._damaged += claimed.damaged
            ids = _names([claim.id for claim, _ in claimed.damaged])
            log.error("dead letters", shard=shard, messages=len(claimed.damaged), ids=ids, reason=claimed.damaged[0][1])

    async def _bury_damaged(self) -> None:
        """If the store does not hear it, recover gives them back and the next claim has them again."""
        damaged, self._damaged = self._damaged, []
        if damaged:
            await self._store.bury(damaged)

    # -- leases and shares ------------------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Lengthen the leases of what the broker has not answered yet."""
        soon = time.monotonic() + self._rules.lease_ms / 1000 * 0.7
        claims = [claim for claim in self._held.values() if claim.lease_ends < soon]
        if not claims:
            return
        started = time.monotonic()
        away: Set[int] = frozenset()
        try:
            await self._store.renew(claims, self._rules.lease_ms)
        except ShardsUnavailable as error:  # said where they are claimed
            away = error.shards
        for claim in claims:
            if claim.shard not in away:
                claim.lease_ends = started + self._rules.lease_ms / 1000

    async def _hand_over(self) -> None:
        free = [shard for shard in self._leaving if not self._held_in.get(shard)]
        if free:
            with suppress(ShardsUnavailable):  # then another instance waits until our time there is up
                await self._store.hand_over(free)
            self._leaving.difference_update(free)
            for shard in self._given_way.intersection(free):
                asyncio.get_running_loop().call_later(_AWAY_S, self._come_back, shard)

    async def leave(self, claims: Sequence[Claim]) -> None:
        """Give back what is held and every shard, at the end."""
        self._departures.clear()
        if claims:
            await self._store.release([Release(claim, None, claim.tries, "") for claim in claims])
        await self._store.hand_over(self._mine | self._leaving)


def _names(ids: Sequence[bytes]) -> list[str]:
    """The first few, as text."""
    return [one.decode("ascii", "replace") for one in ids[:_NAMED_MAX]]
