"""Record the broker's answers: gone, parked again for later, or dead.

``verdict`` is pure and decides from the refusal and the number of tries. ``Settler`` tells the store in batches, and
repeats what the store did not take. The store refuses to settle a recovered lease: that message will be delivered
again, which is a named window for duplicates.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import structlog

from bridge.core.clock import StoreClock
from bridge.core.errors import ShardsUnavailable, StoreUnavailable
from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import DeliveringStore, Release, Result
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.schedule import growing_waits_ms
from bridge.pipeline.history import Historian
from bridge.pipeline.leases import Leases
from bridge.telemetry.health import Health, RefusedRoutes
from bridge.telemetry.lateness import Lateness
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.notices import Notices
from bridge.telemetry.reconnect import Reconnect
from bridge.telemetry.subject import STORE_SETTLE

log = structlog.get_logger("postdate")

#: Settling waits this long for more results, because every call costs the same.
_GATHER_S = 0.016
_BATCH_MAX = 1000
#: Results of shards that do not answer are repeated after this time.
_ASIDE_S = 1.0

T = TypeVar("T")

#: The largest part of a wait that ``spread`` takes off.
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class RetryRules:
    """The first and the longest wait (ms), the factor between two, and the number of tries in all."""

    first_ms: int
    factor: float
    max_ms: int
    attempts: int


def next_try_ms(tries: int, rules: RetryRules, spread: float) -> int | None:
    """Return the wait (ms, at least 1) before the next try, or None when all tries are used. Pure.

    ``tries`` counts failed tries, from 1. ``spread``, 0 to 1, is the caller's random number. It takes up to a fifth off
    the wait, so that messages refused together do not come back together. It only shortens, so that ``max_ms`` holds.
    Full jitter (0 to the wait) was rejected: it retries half of the messages too early for a broker that is restarting.
    """
    waits_ms = growing_waits_ms(rules.first_ms, rules.factor, rules.max_ms, rules.attempts - 1)
    return max(1, int(waits_ms[tries - 1] * (1 - JITTER * spread))) if tries <= len(waits_ms) else None


class Verdict(NamedTuple):
    """The wait before the next try of a refused message, None if it is dead, and the number of its failed tries."""

    wait_ms: int | None
    tries: int


def verdict(tries: int, refusal: Refusal, rules: RetryRules, spread: float) -> Verdict:
    """Decide what becomes of a message that was refused after ``tries`` failed tries. Pure."""
    if refusal.again_ms is not None:
        return Verdict(refusal.again_ms, tries)
    return Verdict(None if refusal.lasting else next_try_ms(tries + 1, rules, spread), tries + 1)


class Settler:
    """Collects results and settles them."""

    def __init__(
        self,
        store: DeliveringStore,
        clock: StoreClock,
        rules: RetryRules,
        lateness: Lateness,
        leases: Leases,
        health: Health,
        metrics: Metrics,
        historian: Historian | None = None,
    ) -> None:
        """``historian`` is None where no history is written."""
        self._store = store
        self._historian = historian
        self._clock = clock
        self._rules = rules
        self._lateness = lateness
        self._leases = leases
        self._health = health
        self._metrics = metrics
        self._dead = Notices(log.warning)
        self._refused = Notices(log.info)
        self._refused_routes = RefusedRoutes(health)
        self._confirmed: list[Claim] = []
        self._releases: list[Release] = []
        self._burials: list[tuple[Claim, str]] = []
        self._event = asyncio.Event()
        self._gather_s = _GATHER_S
        self._aside = 0
        self._trouble = ""
        self.delivered = 0

    def answered(self, results: Sequence[Result[Claim]]) -> None:
        """Take a batch of the sink's answers. It only sorts them, because it runs for every batch."""
        confirmed = [result.letter for result in results if result.outcome is Outcome.CONFIRMED]
        if confirmed:
            now_ms = self._clock.now_us() / 1000
            self._lateness.add(now_ms, [claim.late_from_ms for claim in confirmed])
            self._metrics.delivered(now_ms, confirmed)
            if self._historian is not None:
                self._historian.confirmed(int(now_ms), confirmed)
            self._confirmed += confirmed
            if self._refused_routes:
                retried = {claim.route for claim in confirmed if claim.tries}
                self._refused_routes.delivered({claim.route for claim in confirmed}, retried)
            self.delivered += len(confirmed)
        if len(confirmed) < len(results):
            for result in results:
                if result.outcome is not Outcome.CONFIRMED:
                    self._not_delivered(result)
        self._event.set()

    def _not_delivered(self, result: Result[Claim]) -> None:
        claim, refusal = result.letter, result.refusal
        numbers, name = self._metrics.routes[claim.route], claim.public_id.decode()
        if refusal is None:  # the message did not cause it, so it is tried again at once, and that counts no try
            numbers.unknown += 1
            self._releases.append(Release(claim, None, claim.tries, ""))
            return
        reason = refusal.reason
        if reason.kind is ReasonKind.NO_ROUTE:
            self._releases.append(Release(claim, None, claim.tries, ""))
            if self._leases.elsewhere.lacks(claim, refusal):
                self._note_refused(claim.route, reason, refusal.again_ms)
            return
        wait_ms, tries = verdict(claim.tries, refusal, self._rules, random.random())  # noqa: S311 (jitter)
        self._note_refused(claim.route, reason, wait_ms)
        if wait_ms is None:
            self._dead.tell("dead letter", claim.route, reason, id=name, tries=tries)
            numbers.died(reason.kind)
            self._burials.append((replace(claim, tries=tries), str(reason)))
            return
        self._refused.tell("refused", claim.route, reason, id=name, tries=tries, next_ms=wait_ms)
        self._releases.append(Release(claim, wait_ms, tries, str(reason)))

    def _note_refused(self, route: str, reason: Reason, wait_ms: int | None) -> None:
        self._metrics.routes[route].refused += 1
        self._refused_routes.refused(route, reason, wait_ms or 0)

    def release(self, claims: Iterable[Claim]) -> None:
        """Give back claims that were not sent, because the broker is lost. Another instance may have it, and takes
        their shards."""
        self._releases += (Release(claim, None, claim.tries, "") for claim in claims)
        self._event.set()

    def bury(self, burials: Iterable[tuple[Claim, str]]) -> None:
        """Make dead letters of claims that cannot be published."""
        self._burials += burials
        self._event.set()

    def follow(self, rules: RetryRules) -> None:
        """Use these rules for answers from now on."""
        self._rules = rules

    def pending(self) -> int:
        """Return how many results the store has not recorded yet."""
        return len(self._confirmed) + len(self._releases) + len(self._burials) + self._aside

    async def run(self) -> None:
        reconnect = Reconnect()
        with closing(self._dead), closing(self._refused):
            while True:
                await self._event.wait()
                await asyncio.sleep(self._gather_s)
                self._event.clear()
                await self._repeat(reconnect)

    def stop(self) -> None:
        """Settle what comes without gathering, so that the process can end. ``run`` goes on until cancelled."""
        self._gather_s = 0.0
        self._event.set()

    async def _repeat(self, reconnect: Reconnect) -> None:
        try:
            await self.once()
        except StoreUnavailable as error:
            self._health.say(STORE_SETTLE, f"deliveries cannot be recorded: {error}")
            self._event.set()
            await reconnect.wait(self._health.connected(STORE_SETTLE))
        else:
            reconnect.worked()
            self._health.say(STORE_SETTLE, self._trouble if self._aside else "")

    async def once(self) -> None:
        """One pass: tell the store all results. What it does not take stays for the next pass."""
        await self._tell("settle", self._confirmed, self._store.settle, lambda claim: claim)
        await self._tell("release", self._releases, self._store.release, lambda release: release.claim)
        await self._tell("bury", self._burials, self._store.bury, lambda burial: burial[0])

    async def _tell(
        self, call: str, waiting: list[T], tell: Callable[[Sequence[T]], Awaitable[int]], claim_of: Callable[[T], Claim]
    ) -> None:
        left = len(waiting)  # what comes meanwhile is gathered for the next pass
        while left > 0:
            batch = waiting[: min(left, _BATCH_MAX)]
            left -= len(batch)
            began_s = time.monotonic()
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
                self._metrics.store_s[call].add(time.monotonic() - began_s)
            self._finish([claim_of(row) for row in batch], settled)

    def _set_aside(self, waiting: list[T], rows: list[T]) -> None:
        """Repeat these later, so that they do not delay other shards."""

        def back() -> None:
            self._aside -= len(rows)
            waiting.extend(rows)
            self._event.set()

        self._aside += len(rows)
        asyncio.get_running_loop().call_later(_ASIDE_S, back)

    def _finish(self, claims: Sequence[Claim], settled: int) -> None:
        if settled < len(claims):
            log.warning("leases expired before settling", messages=len(claims) - settled, risk="delivered twice")
        self._leases.ended(claims)
