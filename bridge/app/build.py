"""Settings in, a service out: wires the stages of one process to its broker and its store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bridge.app.brokers import Broker, RedisStore, broker_of
from bridge.app.tracing import open_tracer
from bridge.core.clock import StoreClock
from bridge.core.orders import RouteOrders
from bridge.parking.history import HistoryLimits
from bridge.parking.identity import Ids, new_instance
from bridge.pipeline.claim import Claimer, ClaimRules
from bridge.pipeline.derive import (
    dispatch_rules,
    level_rules,
    parked_limits,
    rate_limits,
    retry_rules,
    route_rules,
    several_lanes,
)
from bridge.pipeline.ends import RelayEnds
from bridge.pipeline.fan_out import fanned
from bridge.pipeline.full import Fullness, IntakeGate
from bridge.pipeline.held import Ordered
from bridge.pipeline.history import Historian
from bridge.pipeline.leases import Leases
from bridge.pipeline.park import Parker, ParkLimits
from bridge.pipeline.publish import Publisher
from bridge.pipeline.relay import Relay, RelayLimits
from bridge.pipeline.settle import Settler
from bridge.pipeline.traced import traced
from bridge.pipeline.wake import Wake
from bridge.process.leftovers import LevelsDrain, NoIntake, StoreDrain
from bridge.process.members import Members, Sharing
from bridge.process.mend import Mend
from bridge.process.service import Parts, RelayParts, RelayService, Service
from bridge.process.watchdog import StoreWatch, Watch
from bridge.settings import ProcessPlan, Settings
from bridge.settings.live import with_live
from bridge.settings.plan import is_canary
from bridge.telemetry.health import Health
from bridge.telemetry.lateness import Lateness
from bridge.telemetry.metrics import Metrics

#: Messages due within this are claimed together.
_AHEAD_MS = 8


def instance_name(settings: Settings, token: str) -> str:
    """Return a name for this process that no other has and that means something to a person."""
    return f"{settings.bridge.instance or f'{socket.gethostname()}-{os.getpid()}'}-{token}"


def new_token() -> str:
    """Return what tells this process from every other, in names and in ids."""
    return new_instance()


def build(
    process: ProcessPlan,
    store: RedisStore,
    orders: RouteOrders,
    clock: StoreClock,
    instance: str,
    token: str,
    health: Health,
) -> Service:
    """Return the service of one process, on a store that is open and has these ``orders`` now."""
    settings, broker = process.settings, broker_of(process.broker)
    lateness, wake = Lateness(), Wake(clock, _AHEAD_MS)
    # Without the canary: an instance that has none would count as one that lacks a route, and get no shard.
    routes = [name for name in process.delivering.routes if not is_canary(name)]
    metrics = Metrics(routes)
    ends = broker.open_ends(process, clock, health, mending(broker, settings, health))
    sink = fanned(ends.sink, several_lanes(process.delivering))
    source, sink = traced(ends.source or NoIntake(), sink, open_tracer(process, broker, instance))
    rules = dispatch_rules(settings, ends.window)
    leases = Leases(store, wake, rules.lease_ms)
    historian = _historian(settings, store, clock)
    settler = Settler(store, clock, retry_rules(settings), lateness, leases, health, metrics, historian)
    publisher = Publisher(sink, settler, leases, wake, clock, metrics)
    sink.on_answers(publisher.answered)
    gate = IntakeGate(source.hold)
    ordered = Ordered(orders, partial(gate.close, "drained"), wake.nudge)
    fullness = Fullness(store, parked_limits(settings), gate, health)
    claimer = Claimer(store, wake, leases, publisher, rules, health, ordered, rate_limits(process.delivering), metrics)
    rules_of = {name: route_rules(settings, name) for name in settings.routes}
    limits = ParkLimits(settings.limits.batch_max, settings.limits.batch_bytes, ends.taken_max)
    parker = Parker(source, store, rules_of, Ids(token), wake.heard, health, limits, metrics, fullness or None)
    watch = Watch(clock, wake, claimer, health)

    report = partial(_report, parker, leases, settler, watch, lateness, health, metrics, ordered, fullness)
    sharing = Sharing(store, instance, routes, leases.elsewhere)
    members = Members(store, leases, rules.drain_ms, sink.able, report, health, sharing, ordered, fullness or None)
    return Service(
        Parts(
            store=store,
            source=source,
            sink=sink,
            links=ends.links,
            parker=parker,
            wake=wake,
            leases=leases,
            claimer=claimer,
            publisher=publisher,
            settler=settler,
            members=members,
            watch=watch,
            store_watch=StoreWatch(store.look, health),
            health=health,
            grace_ms=settings.bridge.shutdown_grace,
            historian=historian,
            broker=process.broker,
            metrics=metrics,
            follow=_following(settings, parker, settler, claimer, rules),
            leaving=_leaving(settings, broker, clock, health, metrics),
        )
    )


def _historian(settings: Settings, store: RedisStore, clock: StoreClock) -> Historian | None:
    limits = HistoryLimits(settings.history.keep, settings.history.max)
    return Historian(store, clock, limits, is_canary) if limits.most else None


def _following(
    settings: Settings, parker: Parker, settler: Settler, claimer: Claimer, rules: ClaimRules
) -> Callable[[Settings], None]:
    """Return what takes over the live settings of a reload."""

    def follow(new: Settings) -> None:
        live = with_live(settings, new)
        parker.follow({name: route_rules(live, name) for name in live.routes})
        settler.follow(retry_rules(live))
        claimer.follow(replace(rules, pace_ms=live.dispatch.pace))

    return follow


def build_without_store(process: ProcessPlan, health: Health, emptying: StoreDrain | None = None) -> RelayService:
    """Return the service of one process without a store."""
    settings, broker, clock = process.settings, broker_of(process.broker), StoreClock()
    mend = mending(broker, settings, health)
    ends = broker.open_relays(settings, clock, health, mend)
    metrics = Metrics(list(settings.routes))
    relays = tuple(_relay(settings, one, clock, mend, health, metrics) for one in ends)

    def follow(new: Settings) -> None:
        live = with_live(settings, new)
        rules = {name: level_rules(live, name) for name in live.routes}
        for relay in relays:
            relay.follow(rules, retry_rules(live))

    grace_ms = settings.bridge.shutdown_grace
    return RelayService(RelayParts(relays, clock, health, grace_ms, process.broker, metrics, follow, emptying))


def mending(broker: Broker, settings: Settings, health: Health) -> Callable[[], None]:
    """Return what declares deleted parts of the topology again, if the settings allow it."""
    if not settings.bridge.setup:
        return lambda: None
    return Mend(partial(broker.redeclare, settings), health)


def _leaving(
    settings: Settings, broker: Broker, clock: StoreClock, health: Health, metrics: Metrics
) -> LevelsDrain | None:
    drains = broker.open_drains(settings, clock, health)
    if drains is None:
        return None

    def drain(route: str) -> Relay:
        return _relay(settings, drains.open(route), clock, lambda: None, health, metrics)

    return LevelsDrain(drains.look, drain)


def _relay(
    settings: Settings,
    ends: RelayEnds,
    clock: StoreClock,
    mend: Callable[[], None],
    health: Health,
    metrics: Metrics,
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
        RelayLimits(limits.batch_max, limits.batch_bytes, ends.held_max),
        ends.links,
        metrics,
    )
    ends.sink.on_answers(relay.answered)
    return relay


def _report(
    parker: Parker,
    leases: Leases,
    settler: Settler,
    watch: Watch,
    lateness: Lateness,
    health: Health,
    metrics: Metrics,
    ordered: Ordered,
    fullness: Fullness,
) -> dict[str, object]:
    """Return how this process is, for ``postdate stats``."""
    return {
        "health": health.sentence(),
        "shards": sorted(leases.shards()),
        "received": parker.received,
        "delivered": settler.delivered,
        "by_route": metrics.totals(),
        "claimed": len(leases),
        "overdue_s": round(watch.overdue_s, 3),
        "lateness_ms": {
            "p50": lateness.percentile_ms(0.5),
            "p99": lateness.percentile_ms(0.99),
            "max": round(lateness.max_ms, 3),
        },
        **ordered.report(),
        **fullness.report(),
    }
