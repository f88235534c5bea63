"""Kafka's part ``ends`` of ``bridge.app.brokers.Broker``: where messages come from and where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from adapters.kafka import stale_levels
from adapters.kafka.failure import RetryRouter, Returns
from adapters.kafka.intake import PRIORITY, KafkaIntake
from adapters.kafka.intake_replay import IntakeReplay
from adapters.kafka.levels.level_source import BoundedSource, LevelSource
from adapters.kafka.levels.level_topics import level_topics
from adapters.kafka.levels.packing import LevelPacking, level_intakes, places
from adapters.kafka.outgoing import AUDIT_HEADERS, KafkaOut
from adapters.kafka.routing import Router
from adapters.kafka.sink import KafkaSink
from adapters.kafka.source import KafkaSource
from adapters.kafka.topology.released import transactional_routes
from adapters.kafka.transactional import Transactions
from bridge.core.clock import StoreClock
from bridge.core.message import Claim
from bridge.delay.header import wanted
from bridge.delay.naming import Naming
from bridge.delay.seal import Seal
from bridge.delay.trust import DESTINATION
from bridge.pipeline.derive import route_rules
from bridge.pipeline.ends import Drains, Ends, LogReplay, RelayEnds
from bridge.pipeline.fan_out import Copy
from bridge.pipeline.relay import Carried
from bridge.settings import ProcessPlan, Settings
from bridge.telemetry.health import Health


def address(settings: Settings) -> str:
    return settings.kafka.bootstrap_servers


def open_ends(
    process: ProcessPlan, clock: StoreClock, health: Health, mend: Callable[[], None], secret: Callable[[], bytes]
) -> Ends:
    """Make source and sink of a process with a store, not connected yet. A record that is read again is known by its
    origin, so no crash makes it a copy."""
    settings, rules, limits = process.settings, process.settings.kafka, process.settings.limits
    transactions = Transactions(rules, settings.dispatch.lease, health, mend)
    sink = KafkaSink[Claim | Copy](rules, _outs(process.delivering, secret), limits.window_bytes, health, transactions)
    if not settings.routes:
        return Ends(None, sink, (sink.run,), rules.window, 0, lambda _: 0)
    source = KafkaSource(rules, _all_intakes(settings, secret), clock, limits.intake_bytes, health, mend)

    def follow(new: ProcessPlan) -> int:
        sink.follow(_outs(new.delivering, secret))
        source.follow(_all_intakes(new.settings, secret))
        return 0

    return Ends(source, sink, (source.run, sink.run), rules.window, 0, follow)


def _outs(settings: Settings, secret: Callable[[], bytes]) -> dict[str, KafkaOut]:
    taken, once = _taken(settings), frozenset(transactional_routes(settings))
    return {
        lane: _out(settings, name, target, taken, name in once, Seal(secret, name))
        for name in settings.routes
        for lane, target in settings.lanes_of(name).items()
    }


def _taken(settings: Settings) -> list[tuple[str, Naming]]:
    """Return the namings of all routes: no record may go back to one."""
    return [(name, naming) for name, route in settings.routes.items() for naming in route.namings()]


def _all_intakes(settings: Settings, secret: Callable[[], bytes]) -> list[KafkaIntake]:
    return [intake for name in settings.routes for intake in _intakes(settings, name, Seal(secret, name))]


def open_relays(settings: Settings, clock: StoreClock, health: Health, mend: Callable[[], None]) -> list[RelayEnds]:
    """Make the ends of two relays for each route without a store: from its intake and from its levels. Each has its own
    source and sink, so that a missing destination delays no other route."""
    relays = []
    for name in settings.routes:
        bytes_max = settings.limits.intake_bytes // (2 * len(settings.routes))
        intake_source = BoundedSource(settings.kafka, _intakes(settings, name), clock, bytes_max, health, mend)
        for source in (intake_source, _level_source(settings, name, clock, health, mend)):
            relays.append(_relay_ends(settings, name, source, health))
    return relays


def open_replay(settings: Settings, route: str, secret: Callable[[], bytes]) -> LogReplay:
    return IntakeReplay(settings.kafka, _intakes(settings, route, Seal(secret, route)))


def open_drains(settings: Settings, clock: StoreClock, health: Health) -> Drains | None:
    def drain(name: str) -> RelayEnds:
        return _relay_ends(settings, name, _level_source(settings, name, clock, health, lambda: None), health)

    return Drains(partial(stale_levels.routes_with_levels_left, settings), drain)


def _headers(settings: Settings, name: str) -> frozenset[bytes]:
    """Return the headers that a route reads, which do not leave with the record. A retry route reads none."""
    if settings.routes[name].retries:
        return frozenset()
    more = (DESTINATION, PRIORITY) if settings.routes[name].priority else (DESTINATION,)
    return frozenset(header.encode() for header in (*wanted(route_rules(settings, name).headers), *more))


def _intakes(settings: Settings, name: str, seal: Seal | None = None) -> list[KafkaIntake]:
    route, headers = settings.routes[name], _headers(settings, name)
    keyed, most = route.tombstones == "cancel", settings.limits.header_entries
    spread = route.order == "none" and route.stored
    by_record = settings.delay_from_of(name) == "record"
    originals = frozenset((*route.originals, *route.targets))
    return [
        KafkaIntake(
            name, naming, headers, keyed, spread, most, route.retries, route.priority, by_record, seal, originals
        )
        for naming in route.namings()
    ]


def _out(
    settings: Settings,
    name: str,
    target: str,
    taken: Sequence[tuple[str, Naming]],
    once: bool = False,
    seal: Seal | None = None,
) -> KafkaOut:
    """Return how a route's records leave for one of its destinations."""
    route, headers, audit = settings.routes[name], _headers(settings, name), settings.headers.audit
    namings = (Naming(route.intercept, target), *route.namings()[1:])
    router = Router(name, namings, route.allow_to, taken)
    drop = headers | AUDIT_HEADERS if audit else headers
    most = settings.limits.header_entries
    partitioner = settings.partitioner_of(name)
    if not route.retries:
        return KafkaOut(router.target, drop, audit, partitioner, most, transactional=once)
    returns = Returns(len(settings.schedule_of(name)), route.last_target, seal)
    retried = RetryRouter(router, returns).target
    return KafkaOut(retried, drop, audit, partitioner, most, transactional=once, returns=returns)


def _level_source(
    settings: Settings, name: str, clock: StoreClock, health: Health, mend: Callable[[], None]
) -> LevelSource:
    topics, in_use = level_topics(settings, name), settings.routes[name].mode == "levels"
    rules = settings.kafka.model_copy(update={"group": topics.group})
    bytes_max = settings.limits.intake_bytes // (2 * len(settings.routes))
    return LevelSource(rules, level_intakes(topics, _lane(name), in_use), clock, bytes_max, health, mend)


def _lane(name: str) -> str:
    """Return the ``Delivery.route`` of what comes from the levels of a route."""
    return f"{name}.level"


def _relay_ends(settings: Settings, name: str, source: KafkaSource, health: Health) -> RelayEnds:
    """Return the ends from one source of a route to its levels, its destination and its dead letters."""
    topics, window_bytes = level_topics(settings, name), settings.limits.window_bytes // (2 * len(settings.routes))
    sink = KafkaSink[Carried](
        settings.kafka,
        places(topics, _out(settings, name, settings.routes[name].target, _taken(settings))),
        window_bytes,
        health,
    )
    packing = LevelPacking(topics, _lane(name), name)
    return RelayEnds((name,), source, sink, (source.run, sink.run), packing, settings.kafka.window)
