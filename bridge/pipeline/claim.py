"""Claim what is due. ``publish`` sends it, ``settle`` records the answers, ``leases`` knows what is held.

One loop serves all shards of this instance. It claims as much as the publisher has room for, and passes it on in the
order of the claims. The next claim waits for the reply of the store only, and not for the broker's answers. So nothing
overtakes, and the broker is never idle. While much is overdue, the next claim is sent before this one's messages are
published, so that the store works meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import Claimed, DeliveringStore
from bridge.pipeline.gate import RateGate, Replies, Turn
from bridge.pipeline.leases import Leases
from bridge.pipeline.publish import Publisher
from bridge.pipeline.unopened import Unopened
from bridge.pipeline.wake import IDLE_S, Throughput, Wake, departure_s, pace_s
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.reconnect import Reconnect
from bridge.telemetry.subject import STORE_CLAIM

#: Due moments are whole milliseconds, so two publishes are never nearer than that anyway.
_GRID_S = 0.001
#: Shards that cannot be asked are asked again after this time, as long as others answer.
_REST_S = 1.0
#: The remembered size of the largest message shrinks by this factor with every claim.
_LARGEST_FADES = 0.98
#: A pass with as many messages asks ahead for the next one.
_ASK_AHEAD = 200
#: The largest claim of a shard in the first pass of a burst. Its messages leave before a large claim would be answered,
#: unpacked and sorted. Each claim that is full lets the next one take twice as much.
_FIRST_MAX = 64
#: The largest claim of a shard while instances take turns: most of it may have to be given back.
_TURN_MAX = 64


@dataclass(frozen=True)
class ClaimRules:
    """Times in milliseconds. ``batch_max`` and ``batch_bytes`` bound one claim of one shard.

    ``held_max`` bounds what is claimed and not settled. So a store that is slow to settle does not increase the number
    of copies that a crash can make.
    """

    lease_ms: int
    drain_ms: int
    pace_ms: int
    batch_max: int
    batch_bytes: int
    held_max: int


class _Share(NamedTuple):
    """What one pass may claim: at most so many messages and bytes of each shard."""

    shards: list[int]
    limit: int
    bytes_max: int


def next_claim_max(most: int, fullest: int, batch_max: int) -> int:
    """Return the largest claim of a shard in the next pass, from that of this pass and what its fullest one took. Pure.

    A claim of a quarter is still part of the burst: the window may have had room for no more.
    """
    if fullest >= most:
        return min(2 * most, max(batch_max, _FIRST_MAX))
    return most if 4 * fullest >= most else _FIRST_MAX


class Claimer:
    """The loop that claims."""

    def __init__(
        self,
        store: DeliveringStore,
        wake: Wake,
        leases: Leases,
        publisher: Publisher,
        rules: ClaimRules,
        health: Health,
        gate: RateGate,
        unopened: Unopened,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._wake = wake
        self._leases = leases
        self._publisher = publisher
        self._rules = rules
        self._health = health
        self._metrics = metrics
        self._reconnect = Reconnect()
        self._gate = gate
        self._unopened = unopened
        self._largest = 0
        self._most = _FIRST_MAX
        self._away: Set[int] = frozenset()
        self._answered_at = -_REST_S
        #: When the first of the shards that are away failed.
        self._failed_at = 0.0
        self._turns = 0
        #: The claim of the next pass, where it was sent ahead.
        self._asked: asyncio.Future[Replies] | None = None
        self._stopping = False
        self.passed_at = time.monotonic()

    def stop(self) -> None:
        """Claim nothing more. ``run`` ends."""
        self._stopping = True
        self._wake.nudge()
        self._wake.room_again()

    def follow(self, rules: ClaimRules) -> None:
        """Use these rules from the next pass on."""
        self._rules = rules

    def mark(self) -> object:
        """Return what changes with every turn of the loop; None after a stop."""
        return None if self._stopping else self._turns

    async def run(self) -> None:
        try:
            await self._run()
            if self._asked is not None:  # what it claims is held, so that it can be given back
                with suppress(StoreUnavailable):
                    await self.once()
        finally:
            if self._asked is not None:
                self._asked.cancel()

    async def _run(self) -> None:
        looked_at = time.monotonic()
        rate = Throughput()
        while not self._stopping:
            self._turns += 1
            shortest_s = self._rules.pace_ms / 1000
            pace = pace_s(rate.per_s, shortest_s)
            self._publisher.pace(departure_s(rate.per_s, shortest_s), pace - _GRID_S)
            await self._wake.sleep(time.monotonic() - looked_at, pace)
            try:
                if self._asked is None:
                    await self._leases.hand_over()
                    if not await self._wait_for_room():
                        continue
                looked_at = time.monotonic()
                rate.add(await self.once(idle=looked_at - self.passed_at >= IDLE_S))
            except StoreUnavailable as error:
                self._health.say(STORE_CLAIM, f"nothing is delivered: {error}")
                await self._reconnect.wait(self._health.connected(STORE_CLAIM))
                self._wake.nudge()

    async def _wait_for_room(self) -> bool:
        """Wait for room, a second at most: the loop has to hand over shards even without room."""
        if min(self._room()) <= 0 and not await self._wake.wait_for_room():
            self.passed_at = time.monotonic()  # this loop is alive; sink and settler report what is wrong
            self._asks_nothing()
        return min(self._room()) > 0

    def _asks_nothing(self) -> None:
        """Forget which shards did not answer: without room or shards this loop would never learn that they do."""
        self._away = frozenset()
        self._health.say(STORE_CLAIM, "")

    def _room(self) -> tuple[int, int]:
        messages, size = self._publisher.room()
        return min(messages, self._rules.held_max - len(self._leases)), size

    async def once(self, idle: bool = True) -> int:
        """One pass: claim what is due, now or in a moment. Return the number of messages.

        An idle pass asks every shard, other passes ask those that are known to have something due. A pass whose claim
        was sent ahead has only that one.
        """
        if self._asked is not None:
            asked, self._asked = self._asked, None
            async with self._gate.claiming(None) as turn:
                return await self._carry_out(await asked, turn)
        async with self._gate.claiming(self._leases.shards(), idle) as turn:
            shards = turn.open(self._wake.awake(self._leases.claimable()) if idle else self._wake.due())
            if idle:
                self.passed_at = time.monotonic()
                if not self._leases.shards():
                    self._asks_nothing()
            if turn.failed and not shards:
                self._note(frozenset(), turn.failed)
            share = self._share(shards)
            return await self._carry_out(await self._claim(share), turn) if share is not None else 0

    def _share(self, shards: list[int]) -> _Share | None:
        """Return what may be claimed from these shards now; None for nothing."""
        room, room_bytes = self._room()
        if not shards or room <= 0 or self._stopping:
            return None
        if room < len(shards):
            shards = (self._wake.due() or shards)[:room]
        # Each shard may return one message beyond its bytes. So fewer shards are asked while messages are large.
        if self._largest * len(shards) > room_bytes:
            shards = shards[: max(1, room_bytes // self._largest)]
        batch_max = _TURN_MAX if self._leases.takes_turns() else self._rules.batch_max
        limit = min(batch_max, self._most, room // len(shards))
        return _Share(shards, limit, max(1, min(self._rules.batch_bytes, room_bytes // len(shards))))

    async def _claim(self, share: _Share) -> Replies:
        rules, began_s = self._rules, time.monotonic()
        self._wake.asking(share.shards)
        replies = await self._store.claim(*share, rules.lease_ms, rules.drain_ms, self._wake.ahead_ms)
        self._metrics.store_s["claim"].add(time.monotonic() - began_s)
        return replies

    async def _carry_out(self, replies: Replies, turn: Turn) -> int:
        taken, fullest, failed = 0, 0, turn.failed
        admitted = await self._gate.admit(replies)
        for shard, reply in replies.items():
            if isinstance(reply, StoreUnavailable):
                failed[shard] = reply
            else:
                taken += self._take(shard, reply, admitted[shard])
                fullest = max(fullest, len(reply.claims))
        self._most = next_claim_max(self._most, fullest, self._rules.batch_max)
        if taken >= _ASK_AHEAD and not failed and not self._gate.works():  # else it needs a turn
            await self._ask_ahead()
        await self._publisher.once()
        self._note(replies.keys() - failed.keys(), failed)
        return taken

    async def _ask_ahead(self) -> None:
        """Send the next claim, unless the next pass has more to do than to claim what is due."""
        if time.monotonic() - self.passed_at >= IDLE_S or self._leases.leaving():
            return
        share = self._share(self._wake.due())
        if share is not None:
            self._asked = asyncio.ensure_future(self._claim(share))
            await asyncio.sleep(0)  # it is sent now

    def _take(self, shard: int, claimed: Claimed, claims: Sequence[Claim]) -> int:
        if claimed.owner is not None:
            self._wake.learnt(shard, None)  # asked again when it is handed over, and once a second
            return 0
        self._wake.learnt(shard, claimed.next_due_ms)
        if claimed.ghosts or claimed.newer or claimed.damaged:
            self._unopened.note(shard, claimed)
        if not claims:
            return len(claimed.claims)
        largest = max(len(claim.payload) for claim in claims)
        self._largest = max(largest, int(self._largest * _LARGEST_FADES))
        self._leases.hold(shard, claims)
        self._publisher.add(claims)
        return len(claimed.claims)

    def _note(self, answered: Set[int], failed: Mapping[int, StoreUnavailable]) -> None:
        """Let shards that cannot be asked rest, as long as others can be. Raises where none can."""
        now_s = time.monotonic()
        if answered:
            self._answered_at = now_s
        if not self._away:
            self._failed_at = now_s
        self._away = (self._away - answered | failed.keys()) & self._leases.shards()
        if not failed:
            self._reconnect.worked()
            if not self._away:
                self._health.say(STORE_CLAIM, "")
            return
        error = next(iter(failed.values()))
        if now_s - self._answered_at > _REST_S:
            raise error
        self._wake.rest(failed, _REST_S)
        if self._answered_at >= self._failed_at:  # else the whole store may be away
            text = f"nothing is delivered from some shards ({len(self._away)}): {error}"
            self._health.say(STORE_CLAIM, text, cause=str(error))
