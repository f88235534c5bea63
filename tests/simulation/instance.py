"""One postdate in a simulated run: the real stages and loops, on simulated servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from bridge.core.orders import RouteOrders
from bridge.delay.header import HeaderRules
from bridge.delay.schedule import RetrySchedule
from bridge.parking.history import HistoryLimits
from bridge.parking.identity import Ids
from bridge.pipeline import history, journal_watch, move_tail, publish, restore, tiers
from bridge.pipeline.assemble import PipelineRules, assemble
from bridge.pipeline.claim import ClaimRules
from bridge.pipeline.decide import RouteRules
from bridge.pipeline.park import ParkLimits
from bridge.pipeline.settle import RetryRules
from bridge.process.members import Members, Sharing
from bridge.process.service import Parts, Service
from bridge.process.watchdog import StoreWatch, Watch
from bridge.telemetry import metrics
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.subject import Subject
from tests.simulation.broker import Broker, SimulatedSink, SimulatedSource
from tests.simulation.journal import JournalOf, JournalServer
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.plan import Plan
from tests.simulation.store import SimulatedStore, StoreServer
from tests.simulation.transactions import TransactionalSink

LEASE_MS, DRAIN_MS = 15_000, 4_000
_AHEAD_MS = 8
CLAIMS = ClaimRules(LEASE_MS, DRAIN_MS, 1, 100, 1 << 20, 1000)
RETRIES = RetryRules(first_ms=500, factor=2, max_ms=5_000, attempts=1_000)
LIMITS = ParkLimits(batch_max=100, batch_bytes=1 << 20, recent_max=1000)


HISTORY = HistoryLimits(24 * 3_600_000, 100_000)
#: The route of what consumers reject, and its waits.
RETRY_ROUTE, WAITS_MS = "retries", (200, 1_000, 3_000)


def route_rules(name: str, hold: bool) -> RouteRules:
    """Return the rules of a route with the defaults of the settings. ``hold``: of the retry route."""
    rules = RouteRules(HeaderRules(), "key", "dead", "replace", "find", 1 << 20)
    return replace(rules, schedule=RetrySchedule(WAITS_MS, hold=hold)) if name == RETRY_ROUTE else rules


class LoopAlarm:
    """``publish.Alarm`` on the loop's timers: a timerfd knows nothing of virtual time."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def on_virtual_time() -> Iterator[None]:
    """Replace what asks the operating system for time, and what looks often only to keep a real loop responsive.

    The cold tier is as much faster as its messages are due earlier. Small pages give a fault more places.
    """
    with (
        patch.object(publish, "Alarm", LoopAlarm),
        patch.multiple(history, _PACK_S=0.25, _PACK_SOON_S=0.25),
        patch.object(metrics, "_LAG_EVERY_S", 5.0),
        patch.multiple(tiers, _EVERY_S=0.5, _LEASE_MS=2_500, _COUNT_EVERY_S=5.0, _COUNTING_RARER=1, BATCH=25),
        patch.multiple(restore, BATCH=40),
        patch.multiple(journal_watch, _SAMPLE=20),
        patch.multiple(move_tail, _ENTRIES_MAX=20),
    ):
        yield


@dataclass
class Instance:
    """One process with its connections. ``rates`` limits routes, as ``max_rate``. ``cold_after_ms`` as in the plan."""

    name: str
    loop: VirtualLoop
    store_server: StoreServer
    broker: Broker
    routes: tuple[str, ...]
    plan: Plan
    rates: dict[str, float] = field(default_factory=dict)
    journal: JournalServer | None = None
    cold_after_ms: int = 0

    def __post_init__(self) -> None:
        self.process = Process(self.name, self.loop)
        self.process.drift = self.broker.random.uniform(-1e-5, 1e-5)
        self.process.context.run(self._start)

    def _start(self) -> None:
        self.process.tasks.append(self.loop.create_task(self._run()))

    async def _run(self) -> None:
        self.store = SimulatedStore(self.store_server, self.name)
        while True:  # as `run` does, which is started again until the store answers
            try:
                await self.store.look_at_clock()
                orders = await self.store.orders()
                if self.journal is not None:
                    self.journaled = JournalOf(self.store, self.journal)
                    await self.journaled.begin(self.plan, self.cold_after_ms)
                break
            except Exception:
                await asyncio.sleep(0.5)
        self.source = SimulatedSource(self.broker, self.store.clock, self.process, self.routes)
        ends = self.broker, self.process, self.routes
        self.sink = TransactionalSink(*ends, LEASE_MS) if self.plan.transactional else SimulatedSink(*ends)
        self.service = self._assembled(orders)
        self.source.connect()
        self.process.tasks += [self.loop.create_task(run) for run in self.service.loops()]

    def _assembled(self, orders: RouteOrders) -> Service:
        store, health = self.store, Health(self.loop.time)
        self.rules = PipelineRules(self._route_rules(), CLAIMS, RETRIES, LIMITS, self.rates, history=HISTORY)
        numbers = Metrics(self.routes)
        journaling, watch, parking = None, None, None
        if self.journal is not None:
            journaling = self.journaled.journaling(self.plan, self.cold_after_ms, self.name, health)
            watch, parking = self.journaled.watch(self.plan, self.name, health), journaling.store
        ends = self.source, self.sink
        stages = assemble(store, *ends, self.rules, Ids(self.name), orders, health, numbers, parking)
        self.sharing = Sharing(store, self.name, self.routes, stages.leases.elsewhere)

        async def look() -> dict[Subject, str]:
            await store.look_at_clock()
            return {}

        self.stages, self.health = stages, health
        return Service(
            Parts(
                store=store,
                source=self.source,
                sink=self.sink,
                links=(),
                stages=stages,
                members=Members(
                    store,
                    stages.leases,
                    stages.recovery,
                    DRAIN_MS,
                    self.sink.able,
                    dict,
                    health,
                    self.sharing,
                    stages.ordered,
                    stages.fullness,
                ),
                watch=Watch(
                    store.clock, stages.wake, stages.claimer, stages.publisher, health, stages.ordered, "RabbitMQ"
                ),
                store_watch=StoreWatch(look, health),
                health=health,
                grace_ms=25_000,
                broker="rabbitmq",
                follow=lambda settings: None,
                journaling=journaling,
                journal_watch=watch,
            )
        )

    def _route_rules(self) -> dict[str, RouteRules]:
        return {name: route_rules(name, self.plan.hold) for name in self.routes}

    def reload(self, claim: ClaimRules, retry: RetryRules) -> None:
        """Take over live settings, as at SIGHUP."""
        if hasattr(self, "stages"):
            self.process.context.run(self.stages.follow, replace(self.rules, claim=claim, retry=retry))

    def have(self, routes: tuple[str, ...]) -> None:
        """Have these routes from now on, as after a SIGHUP that adds or removes some."""
        self.routes = routes
        if hasattr(self, "stages"):
            self.source.routes = self.sink.routes = routes
            self.rules = replace(self.rules, routes=self._route_rules())
            self.sharing.follow(routes)
            self.process.context.run(self.stages.follow, self.rules)
            self.broker.rebalance()

    def kill(self) -> None:
        """End the process at once, as kill -9 does. The broker notices a little later."""
        self.process.kill()
        self.loop.call_later(self.broker.random.uniform(0, 0.5), self._noticed)

    def _noticed(self) -> None:
        if source := getattr(self, "source", None):
            self.broker.lose(source)

    def stop(self) -> None:
        """End the process gracefully, as SIGTERM does."""
        if hasattr(self, "service"):
            self.process.context.run(lambda: self.process.tasks.append(self.loop.create_task(self._stop())))
        else:
            self.kill()

    async def _stop(self) -> None:
        service = self.service
        service.take_no_more()
        until_s = self.loop.time() + 25.0
        while self.loop.time() < until_s and not service.finished():  # noqa: ASYNC110 (as ``Running`` does)
            await asyncio.sleep(0.02)
        await service.leave()
        self.loop.call_soon(self.kill, context=self._outside())

    def _outside(self) -> Any:
        return self.broker.outside
