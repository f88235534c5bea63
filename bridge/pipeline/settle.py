"""After the broker's answer: gone, parked again for later, or dead.

``verdict`` decides, purely, from the outcome and the number of tries; ``Settler`` tells the store in batches and keeps
what it could not tell until it can. A settle that comes after the lease has ended is refused by the store: the message
was recovered meanwhile and will be delivered again, which is the named window for duplicates.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

import structlog

from bridge.core.clock import StoreClock
from bridge.core.errors import ShardsUnavailable, StoreUnavailable
from bridge.core.message import NO_ROUTE, Claim, Outcome
from bridge.core.ports import Release, Result, Store
from bridge.pipeline.elsewhere import Elsewhere
from bridge.pipeline.retry import RetryRules, next_try_ms
from bridge.telemetry.health import Health, RefusedRoutes
from bridge.telemetry.lateness import Lateness
from bridge.telemetry.notices import Notices
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")

#: Settling waits this long for more to settle: nobody waits for it, and every call costs the same.
_GATHER_S = 0.016
_BATCH_MAX = 1000
#: What is of shards that cannot be asked is told again so late.
_ASIDE_S = 1.0

T = TypeVar("T")


class Ending(Enum):
    """How a claim ends."""

    GONE = "gone"
    LATER = "later"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``wait_ms`` and ``tries`` are for LATER; ``reason`` is one sentence for a person."""

    ending: Ending
    wait_ms: int | None
    tries: int
    reason: str


_GONE = Verdict(Ending.GONE, None, 0, "")


def verdict(result: Result, rules: RetryRules, spread: float) -> Verdict:
    """Pure. An unknown outcome is tried again at once and counts no try: the message is not to blame."""
    claim, outcome, refusal = result
    if outcome is Outcome.CONFIRMED:
        return _GONE
    if refusal is None:
        return Verdict(Ending.LATER, None, claim.tries, "")
    if refusal.again_ms is not None:
        return Verdict(Ending.LATER, refusal.again_ms, claim.tries, f"{refusal.reason}: {refusal.text}")
    tries = claim.tries + 1
    reason = f"{refusal.reason}: {refusal.text}"
    wait_ms = None if refusal.lasting else next_try_ms(tries, rules, spread)
    if wait_ms is None:
        return Verdict(Ending.DEAD, None, tries, reason)
    return Verdict(Ending.LATER, wait_ms, tries, reason)


class Settler:
    """Collects results and settles them."""

    def __init__(
        self,
        store: Store,
        clock: StoreClock,
        rules: RetryRules,
        lateness: Lateness,
        ended: Callable[[Sequence[Claim]], None],
        health: Health,
        elsewhere: Elsewhere,
    ) -> None:
        """``ended`` is told of claims that this instance no longer holds."""
        self._store = store
        self._clock = clock
        self._rules = rules
        self._lateness = lateness
        self._ended = ended
        self._health = health
        self._elsewhere = elsewhere
        self._dead = Notices(log.warning)
        self._refused = Notices(log.info)
        self._refused_routes = RefusedRoutes(health)
        self._confirmed: list[Claim] = []
        self._releases: list[Release] = []
        self._burials: list[tuple[Claim, str]] = []
        self._event = asyncio.Event()
        self._aside = 0
        self._trouble = ""
        self.delivered = 0

    def answered(self, results: Sequence[Result]) -> None:
        """Take in what a sink says. Called for every batch of answers, so it only sorts."""
        confirmed = [result.claim for result in results if result.outcome is Outcome.CONFIRMED]
        if confirmed:
            self._lateness.add(self._clock.now_us() / 1000, [claim.due_ms for claim in confirmed])
            self._confirmed += confirmed
            if self._refused_routes:
                self._refused_routes.delivered({claim.route for claim in confirmed})
            self.delivered += len(confirmed)
        if len(confirmed) < len(results):
            for result in results:
                if result.outcome is not Outcome.CONFIRMED:
                    self._not_delivered(result)
        self._event.set()

    def _not_delivered(self, result: Result) -> None:
        if result.refusal is not None and result.refusal.reason == NO_ROUTE:
            untouched = self._elsewhere.release(result.claim)
            if untouched is not None:
                self._releases.append(untouched)
                return
        decided = verdict(result, self._rules, random.random())  # noqa: S311 (jitter, not a secret)
        claim = result.claim
        name = claim.public_id.decode()
        if result.refusal is not None:
            self._refused_routes.refused(claim.route, decided.reason)
        if decided.ending is Ending.DEAD:
            self._dead.tell("dead letter", claim.route, decided.reason, id=name, tries=decided.tries)
            self._burials.append((replace(claim, tries=decided.tries), decided.reason))
            return
        if decided.reason:
            facts = {"id": name, "tries": decided.tries, "next_ms": decided.wait_ms}
            self._refused.tell("refused", claim.route, decided.reason, **facts)
        self._releases.append(Release(claim, decided.wait_ms, decided.tries, decided.reason))

    def pending(self) -> int:
        """How many results the store has not been told of."""
        return len(self._confirmed) + len(self._releases) + len(self._burials) + self._aside

    async def run(self) -> None:
        """Settle until cancelled."""
        reconnect = Reconnect()
        with closing(self._dead), closing(self._refused):
            while True:
                await self._event.wait()
                await asyncio.sleep(_GATHER_S)
                self._event.clear()
                await self._next_pass(reconnect)

    async def _next_pass(self, reconnect: Reconnect) -> None:
        try:
            await self.settle()
        except StoreUnavailable as error:
            self._health.say("store settle", f"deliveries cannot be recorded: {error}")
            self._event.set()
            await reconnect.wait()
        else:
            reconnect.worked()
            self._health.say("store settle", self._trouble if self._aside else "")

    async def settle(self) -> None:
        """One pass: tell the store everything there is to tell. What it does not take stays for the next pass."""
        await self._tell(self._confirmed, self._store.settle, lambda claim: claim)
        await self._tell(self._releases, self._store.release, lambda release: release.claim)
        await self._tell(self._burials, self._store.bury, lambda burial: burial[0])

    async def _tell(
        self, waiting: list[T], tell: Callable[[Sequence[T]], Awaitable[int]], claim_of: Callable[[T], Claim]
    ) -> None:
        while waiting:
            batch = waiting[:_BATCH_MAX]
            try:
                settled = await tell(batch)
            except ShardsUnavailable as error:
                settled = error.worked
                del waiting[: len(batch)]
                self._set_aside(waiting, [row for row in batch if claim_of(row).shard in error.shards])
                self._trouble = f"deliveries of some shards cannot be recorded: {error}"
                batch = [row for row in batch if claim_of(row).shard not in error.shards]
            else:
                del waiting[: len(batch)]
            self._finish([claim_of(row) for row in batch], settled)

    def _set_aside(self, waiting: list[T], rows: list[T]) -> None:
        """Tell these later, so that they hold up nothing of other shards."""

        def back() -> None:
            self._aside -= len(rows)
            waiting.extend(rows)
            self._event.set()

        self._aside += len(rows)
        asyncio.get_running_loop().call_later(_ASIDE_S, back)

    def _finish(self, claims: Sequence[Claim], settled: int) -> None:
        if settled < len(claims):
            log.warning("leases had ended", messages=len(claims) - settled, meaning="these may be delivered twice")
        self._ended(claims)
