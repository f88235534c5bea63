"""The one place that knows both sides: settings in, adapters built, a service out."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bridge.app.derive import dispatch_rules, level_rules, retry_rules, route_rules
from bridge.core.clock import StoreClock
from bridge.core.ports import Result, Source
from bridge.delay.destination import HEADER as DESTINATION
from bridge.delay.header import OWN_HEADERS, wanted
from bridge.parking.identity import Ids, new_instance
from bridge.pipeline.claim import Dispatcher
from bridge.pipeline.elsewhere import Elsewhere
from bridge.pipeline.park import Parker, ParkLimits
from bridge.pipeline.publish import Departures
from bridge.pipeline.relay import Relay, RelayLimits
from bridge.pipeline.settle import Settler
from bridge.pipeline.wake import Wake
from bridge.pipeline.ways import Link, Way
from bridge.process.emptying import Emptying
from bridge.process.leaving import Leaving
from bridge.process.members import Members
from bridge.process.mend import Mend
from bridge.process.no_intake import NoIntake
from bridge.process.service import Parts, RelayParts, RelayService, Service
from bridge.process.sharing import Sharing
from bridge.process.store_watch import StoreWatch
from bridge.process.watchdog import Watch
from bridge.settings import Settings
from bridge.settings.own_names import own_queues
from bridge.telemetry.health import Health
from bridge.telemetry.lateness import Lateness

if TYPE_CHECKING:
    from adapters.kafka.intake import KafkaIntake
    from adapters.kafka.levels.source import LevelSource
    from adapters.kafka.outgoing import KafkaOut
    from adapters.kafka.sink import KafkaSink
    from adapters.kafka.source import KafkaSource
    from adapters.rabbitmq.levels.packing import RoutePacking
    from adapters.rabbitmq.outgoing import Out
    from adapters.rabbitmq.sink import RabbitSink
    from adapters.rabbitmq.source import Intake
    from adapters.redis.store import RedisStore

#: Told what became of publishes.
Answered = Callable[[list[Result]], None]

#: What is due within so long is claimed together.
_AHEAD_MS = 8
#: Header entries that postdate and RabbitMQ add to a message which waits in levels: 28 steps, x-death and its like.
_ADDED_ENTRIES = 64
_DUE_GONE = "what has waited stays where it is until `postdate levels setup`"


def intake(settings: Settings, name: str) -> Intake:
    """Where a RabbitMQ route's messages come from."""
    from adapters.rabbitmq.source import Intake
    from adapters.rabbitmq.topology.plan import guarded

    names = frozenset(header.encode() for header in wanted(route_rules(settings, name).headers))
    bindings = guarded(settings, name) if settings.bridge.setup else ()
    return Intake(name, settings.queue_of(name), names, bindings, entries_max=settings.limits.header_entries)


def out(settings: Settings, name: str) -> Out:
    """How a RabbitMQ route's messages leave."""
    from adapters.rabbitmq.outgoing import AUDIT_HEADERS, Out
    from adapters.rabbitmq.raw.properties import DropRules

    route, headers = settings.routes[name], settings.headers
    rules = DropRules(
        headers.keep_user_id, headers.keep_cc, headers.keep_bcc, headers.keep_x_death, headers.keep_delivery_count
    )
    delay_headers = {header.encode() for header in (*OWN_HEADERS, *route.dialects)}
    if headers.audit:
        delay_headers |= AUDIT_HEADERS
    return Out(
        exchange=route.deliver_to,
        drop=rules.names(delay_headers),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        plugin=headers.compat == "plugin",
        # The default exchange sends to any queue; an exchange of the consumers' has been bound by them, with care.
        loops=None if route.deliver_to else _own_queues(settings.with_left),
        queues=settings.allow_list_of(name),
        entries_max=settings.limits.header_entries,
    )


def open_store(settings: Settings, clock: StoreClock, instance: str) -> RedisStore:
    """The store, not connected yet."""
    from adapters.redis.connect import connect
    from adapters.redis.store import RedisStore

    redis = settings.redis
    return RedisStore(connect(redis), redis.key_prefix, redis.shards, instance, clock)


def instance_name(settings: Settings, token: str) -> str:
    """The name of this process among the instances: unlike any other's, and of use to a person."""
    return f"{settings.bridge.instance or f'{socket.gethostname()}-{os.getpid()}'}-{token}"


def _report(
    parker: Parker, dispatcher: Dispatcher, settler: Settler, watch: Watch, lateness: Lateness, health: Health
) -> dict[str, object]:
    """How this process is, for ``postdate stats``."""
    return {
        "health": health.sentence(),
        "shards": sorted(dispatcher.shards()),
        "received": parker.received,
        "delivered": settler.delivered,
        "claimed": len(dispatcher.held()),
        "overdue_s": round(watch.overdue_s, 3),
        "lateness_ms": {
            "p50": lateness.percentile_ms(0.5),
            "p99": lateness.percentile_ms(0.99),
            "max": round(lateness.max_ms, 3),
        },
    }


class Ends(NamedTuple):
    """The broker's side of a house. ``links`` keep its connections, ``window`` bounds what is published and not
    confirmed, ``taken_max`` what may be delivered again after a crash."""

    source: Source
    sink: RabbitSink | KafkaSink
    links: tuple[Link, ...]
    window: int
    taken_max: int


def _rabbit_ends(settings: Settings, clock: StoreClock, answered: Answered, health: Health) -> Ends:
    from adapters.rabbitmq.connection import check_seams
    from adapters.rabbitmq.sink import RabbitSink
    from adapters.rabbitmq.source import RabbitSource
    from adapters.rabbitmq.topology.setup import declare

    check_seams()
    limits, rabbitmq, every = settings.limits, settings.rabbitmq, settings.with_left
    outs = {name: out(every, name) for name in every.routes}
    sink = RabbitSink(rabbitmq, outs, limits.window_bytes, answered, health)
    if not settings.routes:
        return Ends(NoIntake(), sink, (sink.run,), rabbitmq.window, 0)
    intakes = [intake(settings, name) for name in settings.routes]
    again = partial(declare, settings) if settings.bridge.setup else None
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, again)
    taken_max = rabbitmq.prefetch * len(settings.routes) + limits.batch_max
    return Ends(source, sink, (source.run, sink.run), rabbitmq.window, taken_max)


def _kafka_headers(settings: Settings, name: str) -> frozenset[bytes]:
    """The headers that a Kafka route reads, which do not leave with the record."""
    return frozenset(header.encode() for header in (*wanted(route_rules(settings, name).headers), DESTINATION))


def _kafka_intakes(settings: Settings, name: str) -> list[KafkaIntake]:
    """Where the records of a Kafka route come from."""
    from adapters.kafka.intake import KafkaIntake

    route, headers = settings.routes[name], _kafka_headers(settings, name)
    keyed, most = route.tombstones == "cancel", settings.limits.header_entries
    spread = route.order == "none" and route.mode == "redis"
    return [KafkaIntake(name, naming, headers, keyed, spread, most) for naming in route.namings()]


def _kafka_out(settings: Settings, name: str) -> KafkaOut:
    """How the records of a Kafka route leave."""
    from adapters.kafka.outgoing import AUDIT_HEADERS, KafkaOut
    from adapters.kafka.routing import Router

    route, headers, audit = settings.routes[name], _kafka_headers(settings, name), settings.headers.audit
    taken = [(other, naming) for other, one in settings.routes.items() for naming in one.namings()]
    router = Router(name, route.namings(), route.allow_to, taken)
    drop = headers | AUDIT_HEADERS if audit else headers
    return KafkaOut(router, drop, audit, headers_max=settings.limits.header_entries)


def _kafka_mend(settings: Settings, health: Health) -> Callable[[], None]:
    """Makes the topics of ours again that somebody deleted, if the settings allow it."""
    from adapters.kafka.topology.setup import make_again

    return Mend(partial(make_again, settings), health) if settings.bridge.setup else lambda: None


def _kafka_ends(settings: Settings, clock: StoreClock, answered: Answered, health: Health) -> Ends:
    from adapters.kafka.sink import KafkaSink
    from adapters.kafka.source import KafkaSource

    rules, limits, every = settings.kafka, settings.limits, settings.with_left
    outs = {name: _kafka_out(every, name) for name in every.routes}
    sink = KafkaSink(rules, outs, limits.window_bytes, answered, health)
    if not settings.routes:
        return Ends(NoIntake(), sink, (sink.run,), rules.window, 0)
    intakes = [one for name in settings.routes for one in _kafka_intakes(settings, name)]
    source = KafkaSource(rules, intakes, clock, limits.intake_bytes, health, _kafka_mend(settings, health))
    return Ends(source, sink, (source.run, sink.run), rules.window, 0)  # what is read again is known by its origin


def build(
    settings: Settings, store: RedisStore, clock: StoreClock, instance: str, token: str, health: Health
) -> Service:
    """A service for one process, on a store that is open; ``settings`` are those of one house."""
    limits = settings.limits
    lateness, wake = Lateness(), Wake(clock, _AHEAD_MS)
    answered: list[Answered] = []
    ends = _kafka_ends if settings.broker == "kafka" else _rabbit_ends
    source, sink, links, window, taken_max = ends(settings, clock, partial(_tell, answered), health)
    departures = Departures(sink, clock)
    dispatcher = Dispatcher(store, sink, wake, departures, dispatch_rules(settings, window), health)
    elsewhere = Elsewhere(dispatcher.give_way)
    settler = Settler(store, clock, retry_rules(settings), lateness, dispatcher.ended, health, elsewhere)

    def on_answers(results: list[Result]) -> None:
        settler.answered(results)
        dispatcher.answered()

    answered.append(on_answers)
    parker = Parker(
        source,
        store,
        {name: route_rules(settings, name) for name in settings.routes},
        Ids(token),
        wake.heard,
        health,
        ParkLimits(limits.batch_max, limits.batch_bytes, taken_max),
    )
    watch = Watch(clock, wake, dispatcher, health)

    report = partial(_report, parker, dispatcher, settler, watch, lateness, health)
    sharing = Sharing(store, instance, settings.with_left.routes, elsewhere)
    members = Members(store, dispatcher, settings.dispatch.takeover, sink.able, report, health, sharing)
    return Service(
        Parts(
            store=store,
            source=source,
            sink=sink,
            links=links,
            parker=parker,
            wake=wake,
            dispatcher=dispatcher,
            settler=settler,
            members=members,
            watch=watch,
            store_watch=StoreWatch(store.look, health),
            health=health,
            grace_ms=settings.bridge.shutdown_grace,
            leaving=_kafka_leaving(settings, clock, health) if settings.broker == "kafka" else None,
        )
    )


def _route_packing(settings: Settings, name: str) -> RoutePacking:
    """How the messages of a RabbitMQ route without a store are sent on."""
    from adapters.rabbitmq.levels.packing import RoutePacking
    from adapters.rabbitmq.levels.plan import plan_waits
    from adapters.rabbitmq.raw.properties import DropRules

    route, headers = settings.routes[name], settings.headers
    rules = DropRules(
        keep_cc=headers.keep_cc, keep_bcc=headers.keep_bcc, keep_delivery_count=headers.keep_delivery_count
    )
    return RoutePacking(
        waits=plan_waits(settings, name),
        target=route.deliver_to,
        drop=rules.names(header.encode() for header in (*OWN_HEADERS, *route.dialects)),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        loops=None if route.deliver_to else _own_queues(settings),
        queues=settings.allow_list_of(name),
        entries_max=settings.limits.header_entries + _ADDED_ENTRIES,
    )


def _own_queues(settings: Settings) -> re.Pattern[bytes]:
    """The routing keys with which a message would come to a queue of postdate's by the default exchange."""
    return re.compile(own_queues(settings).pattern.encode())


def _rabbit_relays(settings: Settings, clock: StoreClock, health: Health) -> list[Way]:
    """One way for all routes of a house without a store: from the intakes and the due queues."""
    from adapters.rabbitmq.connection import check_seams
    from adapters.rabbitmq.levels.packing import RabbitPacking, places
    from adapters.rabbitmq.levels.plan import LEVEL_HEADER
    from adapters.rabbitmq.sink import RabbitSink
    from adapters.rabbitmq.source import Intake, RabbitSource
    from adapters.rabbitmq.topology.setup import declare

    check_seams()
    limits, rabbitmq = settings.limits, settings.rabbitmq
    packings = {name: _route_packing(settings, name) for name in settings.routes}
    due = {name: packing.waits.due for name, packing in packings.items() if packing.waits.due}
    level, most = frozenset({LEVEL_HEADER.encode()}), limits.header_entries + _ADDED_ENTRIES
    intakes = [
        *(intake(settings, name) for name in settings.routes),
        *(Intake(f"{name}.due", queue, level, (), _DUE_GONE, most) for name, queue in due.items()),
    ]
    again = partial(declare, settings) if settings.bridge.setup else None
    answered: list[Answered] = []
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, again)
    sink = RabbitSink(rabbitmq, places(packings), limits.window_bytes, partial(_tell, answered), health)
    relay = Relay(
        source,
        sink,
        clock,
        {name: level_rules(settings, name) for name in settings.routes},
        RabbitPacking(packings, {f"{name}.due": name for name in due}),
        retry_rules(settings),
        Mend(again, health) if again is not None else lambda: None,
        health,
        RelayLimits(limits.batch_max, limits.batch_bytes, max(1, rabbitmq.prefetch // 4)),
    )
    answered.append(relay.answered)
    return [Way(source, (source.run, sink.run), relay)]


def _kafka_relays(settings: Settings, clock: StoreClock, health: Health) -> list[Way]:
    """Two ways for each route of a house without a store, from its intake and from its levels: with a source and a sink
    of their own, so that a destination that is gone holds up nobody else."""
    from adapters.kafka.levels.source import BoundedSource

    mend = _kafka_mend(settings, health)
    made = []
    for name in settings.routes:
        bytes_max = settings.limits.intake_bytes // (2 * len(settings.routes))
        intake_source = BoundedSource(settings.kafka, _kafka_intakes(settings, name), clock, bytes_max, health, mend)
        for source in (intake_source, _level_source(settings, name, clock, health, mend)):
            made.append(_kafka_way(settings, name, source, clock, mend, health))
    return made


def _level_source(
    settings: Settings, name: str, clock: StoreClock, health: Health, mend: Callable[[], None]
) -> LevelSource:
    """What reads the levels of a Kafka route."""
    from adapters.kafka.levels.packing import level_intakes
    from adapters.kafka.levels.plan import level_topics
    from adapters.kafka.levels.source import LevelSource

    topics, in_use = level_topics(settings, name), settings.routes[name].mode == "levels"
    rules = settings.kafka.model_copy(update={"group": topics.group})
    bytes_max = settings.limits.intake_bytes // (2 * len(settings.routes))
    return LevelSource(rules, level_intakes(topics, _lane(name), in_use), clock, bytes_max, health, mend)


def _lane(name: str) -> str:
    """The ``Delivery.route`` of what comes from the levels of a route."""
    return f"{name}.level"


def _kafka_way(
    settings: Settings, name: str, source: KafkaSource, clock: StoreClock, mend: Callable[[], None], health: Health
) -> Way:
    """From one source of a Kafka route to its levels, its destination and its dead letters."""
    from adapters.kafka.levels.packing import LevelPacking, places
    from adapters.kafka.levels.plan import level_topics
    from adapters.kafka.sink import KafkaSink

    limits, topics = settings.limits, level_topics(settings, name)
    answered: list[Answered] = []
    window_bytes = limits.window_bytes // (2 * len(settings.routes))
    sink = KafkaSink(
        settings.kafka, places(topics, _kafka_out(settings, name)), window_bytes, partial(_tell, answered), health
    )
    relay = Relay(
        source,
        sink,
        clock,
        {name: level_rules(settings, name)},
        LevelPacking(topics, _lane(name), name),
        retry_rules(settings),
        mend,
        health,
        RelayLimits(limits.batch_max, limits.batch_bytes, settings.kafka.window),
    )
    answered.append(relay.answered)
    return Way(source, (source.run, sink.run), relay)


def _kafka_leaving(settings: Settings, clock: StoreClock, health: Health) -> Leaving:
    """What is still in the levels of Kafka routes that have a store now is delivered from there."""
    from adapters.kafka.levels.cleanup import routes_with_levels_left

    def drain(name: str) -> Way:
        source = _level_source(settings, name, clock, health, lambda: None)
        return _kafka_way(settings, name, source, clock, lambda: None, health)

    return Leaving(partial(routes_with_levels_left, settings), drain)


def _tell(whom: list[Answered], results: list[Result]) -> None:
    """A sink is made before those whom it tells."""
    for answered in whom:
        answered(results)


def build_without_store(settings: Settings, health: Health, emptying: Emptying | None = None) -> RelayService:
    """A service for one process without a store; ``settings`` are those of one house."""
    clock = StoreClock()
    relays = _kafka_relays if settings.broker == "kafka" else _rabbit_relays
    ways = tuple(relays(settings, clock, health))
    return RelayService(RelayParts(ways, clock, health, settings.bridge.shutdown_grace, emptying))


def new_token() -> str:
    """What tells this process from every other, in names and in ids."""
    return new_instance()
