"""Settings in, a service out: wires the stages of one process to its broker and its store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bridge.app.brokers import Broker, RedisStore, broker_of, desk_of, loader_of
from bridge.app.tracing import open_tracer, places_of
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnfit
from bridge.core.journal import Journal
from bridge.core.orders import RouteOrders
from bridge.parking.identity import Ids
from bridge.pipeline.assemble import Stages, assemble
from bridge.pipeline.derive import all_lanes, key_rule, level_rules, pipeline_rules, retry_rules
from bridge.pipeline.ends import Ends, RelayEnds
from bridge.pipeline.fan_out import FanOut
from bridge.pipeline.journal_watch import JournalWatch
from bridge.pipeline.journaled import Journaling, journaling
from bridge.pipeline.relay import Relay, RelayLimits
from bridge.pipeline.restore import Restorer
from bridge.pipeline.tiers import TieredStore, Tiering
from bridge.pipeline.traced import traced
from bridge.process.drains import LevelsDrain, NoIntake, StoreDrain
from bridge.process.members import Members, Sharing
from bridge.process.mend import Mend
from bridge.process.service import Parts, RelayParts, RelayService, Service
from bridge.process.watchdog import StoreWatch, Watch
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import TITLES
from bridge.settings.process_plan import is_canary, replanned
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics


def instance_name(settings: Settings, token: str) -> str:
    """Return a name for this process that no other has and that means something to a person."""
    return f"{settings.bridge.instance or f'{socket.gethostname()}-{os.getpid()}'}-{token}"


async def begin_logs(settings: Settings, store: RedisStore, journal: Journal | None) -> None:
    """Let the store log its moves for a journal, in all shards before anything leaves them, and have a cold tier.

    Raises ``StoreUnavailable``, and ``StoreUnfit`` where messages wait in a journal that the settings do not name."""
    shards = range(store.shards)
    if journal is None:
        if cold := sum(sum(routes.values()) for routes in (await store.tiers.cold()).values()):
            raise StoreUnfit(f"messages that wait in the journal alone: {cold}. Set journal.url to its database")
        return
    await store.moves.read(shards, 1)
    if settings.journal.write == "behind":
        await store.moves.read(shards, 1, parks=True)
    else:
        await store.moves.let_parks_end(shards)
    await loader_of(store, journal).begin(settings.journal.cold_after > 0)


def build(
    process: ProcessPlan,
    store: RedisStore,
    orders: RouteOrders,
    clock: StoreClock,
    instance: str,
    token: str,
    health: Health,
    journal: Journal | None = None,
) -> Service:
    """Return the service of one process, on a store that is open and has these ``orders`` now."""
    settings, broker = process.settings, broker_of(process.broker)
    metrics, live = Metrics(_announced(process)), _Live(process)
    mend = mending(broker, live.settings, health)
    ends = broker.ends.open_ends(process, clock, health, mend, store.secret)
    fan_out = FanOut(ends.sink, all_lanes(process.delivering))
    tracer = open_tracer(process, broker, instance)
    source, sink = traced(ends.source or NoIntake(), fan_out, tracer)
    rules = pipeline_rules(process, settings, ends.window, ends.taken_max)
    journaled = _journaling(process, store, journal, instance, health)
    parking = None if journaled is None else journaled.store
    stages = assemble(store, source, sink, rules, Ids(token), orders, health, metrics, parking)
    sharing = Sharing(store, instance, _announced(process), stages.leases.elsewhere)

    def report() -> dict[str, object]:
        return service.report().in_store()

    service = Service(
        Parts(
            store=store,
            source=source,
            sink=sink,
            links=ends.links,
            stages=stages,
            members=Members(
                store,
                stages.leases,
                stages.recovery,
                rules.claim.drain_ms,
                sink.able,
                report,
                health,
                sharing,
                stages.ordered,
                stages.fullness,
            ),
            watch=Watch(
                clock, stages.wake, stages.claimer, stages.publisher, health, stages.ordered, TITLES[process.broker]
            ),
            store_watch=StoreWatch(store.look, health),
            health=health,
            grace_ms=settings.bridge.shutdown_grace,
            broker=process.broker,
            follow=partial(live.follow, ends, stages, sharing, metrics, fan_out, tracer),
            leaving=_leaving(settings, broker, clock, health, metrics),
            journaling=journaled,
            journal_watch=_journal_watch(process, store, journal, instance, health),
        )
    )
    return service


@dataclass
class _Live:
    """A process as its last reload left it."""

    process: ProcessPlan

    def settings(self) -> Settings:
        return self.process.settings

    def follow(
        self,
        ends: Ends,
        stages: Stages,
        sharing: Sharing,
        metrics: Metrics,
        fan_out: FanOut,
        tracer: Any,
        new: Settings,
    ) -> None:
        """Take over the settings of a reload, in one turn of the loop: no part sees another one's previous routes."""
        process = self.process = replanned(self.process, new)
        sharing.follow(_announced(process))
        metrics.follow(_announced(process))
        fan_out.follow(all_lanes(process.delivering))
        if tracer is not None:
            tracer.follow(places_of(process))
        stages.follow(pipeline_rules(process, process.settings, ends.window, ends.follow(process)))


def _announced(process: ProcessPlan) -> list[str]:
    """Return the routes that a process can deliver, as others get to know them.

    Without the canary: an instance that has none would count as one that lacks a route, and get no shard.
    """
    return [name for name in process.delivering.routes if not is_canary(name)]


def _journal_watch(
    process: ProcessPlan, store: RedisStore, journal: Journal | None, instance: str, health: Health
) -> JournalWatch | None:
    if journal is None:
        return None
    desk, settings = desk_of(store, process), process.settings
    auto = settings.journal.restore == "auto"
    restorer = Restorer(TieredStore(store, loader_of(store, journal)), desk, journal, store.moves, key_rule(settings))
    return JournalWatch(restorer, desk, instance, auto, health)


def _journaling(
    process: ProcessPlan, store: RedisStore, journal: Journal | None, instance: str, health: Health
) -> Journaling | None:
    if journal is None:
        return None
    section, tiers = process.settings.journal, store.tiers
    loader = loader_of(store, journal)
    desk, after_ms = desk_of(store, process), section.cold_after
    tiering = Tiering(loader, journal, tiers, desk, instance, after_ms, health)
    tiered, before = TieredStore(store, loader), section.write == "before"
    return journaling(tiered, journal, store.moves, before, section.keep, health, is_canary, tiering)


def build_without_store(process: ProcessPlan, health: Health, emptying: StoreDrain | None = None) -> RelayService:
    """Return the service of one process without a store."""
    settings, broker, clock = process.settings, broker_of(process.broker), StoreClock()
    mend = mending(broker, lambda: settings, health)
    ends = broker.ends.open_relays(settings, clock, health, mend)
    metrics = Metrics(list(settings.routes))
    relays = tuple(_relay(settings, end, clock, mend, health, metrics) for end in ends)

    def follow(new: Settings) -> None:
        live = replanned(process, new).settings
        rules = {name: level_rules(live, name) for name in live.routes}
        for relay in relays:
            relay.follow(rules, retry_rules(live))

    grace_ms = settings.bridge.shutdown_grace
    return RelayService(RelayParts(relays, clock, health, grace_ms, process.broker, metrics, follow, emptying))


def mending(broker: Broker, settings: Callable[[], Settings], health: Health) -> Callable[[], None]:
    """Return what declares deleted parts of the topology again, if the settings allow it."""
    if not settings().bridge.setup:
        return lambda: None
    return Mend(lambda: broker.topology.redeclare(settings()), health)


def _leaving(
    settings: Settings, broker: Broker, clock: StoreClock, health: Health, metrics: Metrics
) -> LevelsDrain | None:
    drains = broker.ends.open_drains(settings, clock, health)
    if drains is None:
        return None

    def drain(route: str) -> Relay:
        return _relay(settings, drains.open(route), clock, lambda: None, health, metrics)

    return LevelsDrain(drains.look, drain)


def _relay(
    settings: Settings, ends: RelayEnds, clock: StoreClock, mend: Callable[[], None], health: Health, metrics: Metrics
) -> Relay:
    limits = settings.limits
    relay = Relay(
        ends.source,
        ends.sink,
        clock,
        {name: level_rules(settings, name) for name in ends.routes},
        ends.packing,
        retry_rules(settings),
        mend,
        health,
        # A source that was full reads again, for all routes, below half of its bytes.
        RelayLimits(limits.batch_max, limits.batch_bytes, ends.held_max, limits.intake_bytes // 4),
        metrics,
        ends.links,
    )
    ends.sink.on_answers(relay.answered)
    return relay
