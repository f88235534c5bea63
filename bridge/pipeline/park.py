"""Park: take deliveries, read their headers, park them durably, and only then accept them from the source.

``decide`` says what becomes of each delivery. The loop works in rounds (``round``): the next run of each route, in a
few calls to the store. The rest of a route waits for the next round, together with what other routes have by then, so
that no route delays another. One round runs at a time. Meanwhile the next one gathers in the source's buffer, so rounds
grow with the load.

Where deliveries have an origin, the store skips what it has handled, and takes every offset below its mark as handled.
So once a record of a log went back to the source unparked, no later record of that log may be parked before it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby

import structlog

from bridge.core.errors import StoreFull, StoreUnavailable
from bridge.core.message import Delivery
from bridge.core.ports import ParkingStore, Source
from bridge.parking.identity import Ids
from bridge.parking.redelivery import Given
from bridge.pipeline.decide import Neighbours, Parking, Rejection, RouteRules, Step, decide, home_of
from bridge.pipeline.full import FULL, Fullness
from bridge.pipeline.round import Round, RoundParts, Run, next_run, urgent
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.notices import Notices
from bridge.telemetry.reconnect import Reconnect
from bridge.telemetry.subject import STORE_FULL, STORE_PARK

log = structlog.get_logger("postdate")

#: Messages that are not urgent wait this long for others: a call costs the same for one message and for fifty.
_GATHER_S = 0.016
#: A store without room answers, so it is asked again this soon: it may have room at any moment.
_FULL_S = 1.0
#: A store that refused a message this long ago counts as full, though it has taken others since.
_FULL_HELD_S = 5.0
#: Cancellations, messages with keys of their own, and dead letters in one round, over all routes: a few milliseconds of
#: work. A message of another route waits for the rest of one round, and for its own.
_HEAVY_MAX = 128


@dataclass(frozen=True)
class ParkLimits:
    """How much goes in one call (messages, bytes), and how many messages the store remembers for redeliveries."""

    batch_max: int
    batch_bytes: int
    recent_max: int


class Parker:
    """The loop that parks."""

    def __init__(
        self,
        source: Source,
        store: ParkingStore,
        routes: Mapping[str, RouteRules],
        ids: Ids,
        parked: Callable[[int, int], None],
        health: Health,
        limits: ParkLimits,
        metrics: Metrics,
        fullness: Fullness,
    ) -> None:
        """``parked(shard, due ms)`` is called with the earliest due moment parked in a shard."""
        self._fullness = fullness
        self._source = source
        self._store = store
        self._routes = dict(routes)
        self._health = health
        self._limits = limits
        self._metrics = metrics
        self._dead = Notices(log.warning)
        self._skipped = Notices(log.info)
        self._parts = RoundParts(
            source,
            store,
            self._routes,
            ids,
            parked,
            limits.recent_max,
            Given(source.alive),
            self._dead,
            self._skipped,
            self._metrics,
        )
        self._neighbours = Neighbours()
        self._spread = 0
        #: By route, in order: steps that were not in a round yet. No queue here is empty.
        self._waiting: dict[str, deque[Step]] = {}
        self._stopping = False
        #: While stopping, something went back to the source, and so does everything after it.
        self._gave_up = False
        #: Whether there are deliveries that are taken and not accepted.
        self.busy = False
        self.received = 0
        self._rounds = 0
        self._failures = 0
        #: Why the store had no room, when it last had none, and when it took messages between two refusals.
        self._full, self._full_s, self._partly_s = "", -math.inf, -math.inf

    def follow(self, routes: Mapping[str, RouteRules], recent_max: int) -> None:
        """Use these rules for deliveries from now on. What a removed route has taken in is parked by its own."""
        self._routes.update(routes)
        self._parts = replace(self._parts, recent_max=recent_max)

    def mark(self) -> object:
        """Return what changes with every round and every failure of the store; None while nothing is to be parked."""
        return (self.received, self._rounds, self._failures) if self.busy else None

    async def run(self) -> None:
        with closing(self._dead), closing(self._skipped):
            while True:
                await self._gather()
                await self._advance()

    def stop(self) -> None:
        """Give back to the source what the store does not take now. The source is stopped by its owner."""
        self._stopping = True

    async def once(self, deliveries: Sequence[Delivery]) -> None:
        """One pass over these deliveries: each is parked, is rejected or cancels something, and is then accepted."""
        self._queue(deliveries)
        while self._waiting:
            await self._advance()

    async def _gather(self) -> None:
        """Take what there is. While steps wait, take only of routes without any, and do not wait for more."""
        limits, source = self._limits, self._source
        if self._waiting:
            self._queue(source.more(limits.batch_max, limits.batch_bytes, self._waiting))
            return
        self.busy = False
        steps = self._queue(await source.take(limits.batch_max, limits.batch_bytes))
        self.busy = True
        if len(steps) < limits.batch_max and not urgent(steps, self._store.clock.now_ms()):
            await asyncio.sleep(_GATHER_S)
            self._queue(source.more(limits.batch_max - len(steps), limits.batch_bytes))

    def _queue(self, deliveries: Iterable[Delivery]) -> list[Step]:
        """Decide what becomes of deliveries, and queue them for their round."""
        steps = [self._step(delivery) for delivery in deliveries]
        if full := self._fullness.rejecting:
            steps = [
                step._replace(decision=Rejection(FULL)) if step.delivery.route in full and _would_wait(step) else step
                for step in steps
            ]
        for route, some in groupby(steps, lambda step: step.delivery.route):
            run = list(some)
            self._waiting.setdefault(route, deque()).extend(run)
            self._count(route, run)
        self.received += len(steps)
        return steps

    def _count(self, route: str, steps: Sequence[Step]) -> None:
        numbers = self._metrics.routes[route]
        numbers.received += len(steps)
        self._fullness.note(route, (step.delivery for step in steps))
        for step in steps:
            if not step.delivery.headers and step.delivery.failure is None:
                numbers.passed += 1
            elif isinstance(step.decision, Parking):
                numbers.delay_ms.add(step.decision.due_ms - step.delivery.arrived_ms)

    def _step(self, delivery: Delivery) -> Step:
        rules = self._routes[delivery.route]
        shard = home_of(delivery, rules, self._store.shards)
        if shard is None:
            self._spread += 1
            shard = (self._spread // self._limits.batch_max) % self._store.shards
        decision = decide(delivery, rules)
        if delivery.origin is not None and isinstance(decision, Parking) and decision.relative:
            due_ms = self._neighbours.due_ms((delivery.origin[0], delivery.record_key), decision.due_ms)
            if due_ms != decision.due_ms:  # rare, and a new tuple for every record costs a microsecond
                decision = decision._replace(due_ms=due_ms)
        return Step(delivery, decision, shard)

    async def _advance(self) -> None:
        """Carry out the next run of each waiting route: first those that need one call, then the others."""
        self._rounds += 1
        plain: list[Run] = []
        heavy: list[Run] = []
        now_ms = self._store.clock.now_ms()
        heavy_max = max(1, _HEAVY_MAX // max(1, len(self._waiting)))
        for route, waiting in tuple(self._waiting.items()):
            run = next_run(waiting, self._routes[route].on_same_key == "replace", now_ms, heavy_max)
            if not waiting:
                del self._waiting[route]
            (heavy if run.heavy else plain).append(run)
        for runs in (plain, heavy):
            if runs:
                await self._carry_out(Round(runs, self._parts))

    async def _carry_out(self, parking: Round) -> None:
        """Repeat a round until the store has answered, or until none of it can be acknowledged any more."""
        reconnect, failed = Reconnect(), self._gave_up
        began_s = time.monotonic()
        while any(map(self._source.alive, parking.pending())) and not (self._stopping and failed):
            try:
                await parking.attempt()
            except StoreUnavailable as error:
                failed = True
                self._failures += 1
                full = isinstance(error, StoreFull)
                self._say_full(str(error) if full else "", parked=False)
                self._health.say(STORE_PARK, "" if full else f"nothing is parked: {error}")
                await reconnect.wait(self._health.connected(STORE_PARK), _FULL_S if full else math.inf)
            else:
                self._say_full(self._full if began_s - self._full_s < _FULL_HELD_S else "", parked=True)
                self._health.say(STORE_PARK, "")
                self._metrics.park_s.add(time.monotonic() - began_s)
                return
        self._gave_up = self._stopping and failed
        self._health.say(STORE_PARK, "")  # this loop asks nothing now; others do
        self._source.drop(list(parking.pending()))

    def _say_full(self, error: str, parked: bool) -> None:
        """Say that the store is full. At its limit it takes a message now and then: that is one trouble."""
        now_s = time.monotonic()
        if not error:
            self._health.say(STORE_FULL, "")
            return
        if parked:
            self._partly_s = now_s
        else:
            self._full, self._full_s = error, now_s
        partly = now_s - self._partly_s < _FULL_HELD_S
        text = f"only some messages are parked: {error}" if partly else f"nothing is parked: {error}"
        self._health.say(STORE_FULL, text, self._full_s + _FULL_HELD_S - now_s, cause="full")


def _would_wait(step: Step) -> bool:
    return isinstance(step.decision, Parking) and step.decision.due_ms > step.delivery.arrived_ms
