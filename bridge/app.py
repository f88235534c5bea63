"""The one place that knows both sides: settings in, adapters built, a service out."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bridge.clock import StoreClock
from bridge.decide import RouteRules
from bridge.depart import Departures
from bridge.destination import HEADER as DESTINATION
from bridge.dispatch import Dispatcher, DispatchRules
from bridge.header import OWN_HEADERS, HeaderRules, wanted
from bridge.health import Health
from bridge.identity import Ids, new_instance
from bridge.lateness import Lateness
from bridge.levels import LevelRules, rounding, to_whole_seconds
from bridge.members import Members
from bridge.mend import Mend
from bridge.park import Parker, ParkLimits
from bridge.ports import Result
from bridge.relay import Relay, RelayLimits
from bridge.retry import RetryRules
from bridge.service import Parts, RelayParts, RelayService, Service, Way
from bridge.settings import Settings
from bridge.settle import Settler
from bridge.wake import Wake
from bridge.watch import Watch

if TYPE_CHECKING:
    from adapters.kafka.intake import Intake as KafkaIntake
    from adapters.kafka.outgoing import Out as KafkaOut
    from adapters.kafka.sink import KafkaSink
    from adapters.kafka.source import KafkaSource
    from adapters.rabbitmq.outgoing import Out
    from adapters.rabbitmq.packing import RoutePacking
    from adapters.rabbitmq.sink import RabbitSink
    from adapters.rabbitmq.source import Intake, RabbitSource
    from adapters.redis.store import RedisStore

#: Told what became of publishes.
Answered = Callable[[list[Result]], None]

#: What is claimed and not settled, in windows: one without its confirms, and one that is being settled meanwhile.
_WINDOWS_HELD = 2
#: What is due within so long is claimed together.
_AHEAD_MS = 8
_DUE_GONE = "what has waited stays where it is until `postdate levels setup`"


def route_rules(settings: Settings, name: str) -> RouteRules:
    """What the way in needs to know of a route."""
    route, headers = settings.routes[name], settings.headers
    kafka = route.broker == "kafka"
    return RouteRules(
        name=name,
        headers=HeaderRules(route.dialects, headers.levels, settings.limits.max_delay, route.binary_numbers),
        order=route.order,
        on_bad=settings.on_bad_of(name),
        on_same_key=headers.on_same_key,
        message_id="find" if kafka else headers.message_id,
        body_max=settings.limits.max_body,
        allow_to=frozenset(route.allow_to) if kafka else None,
    )


def intake(settings: Settings, name: str) -> Intake:
    """Where a RabbitMQ route's messages come from."""
    from adapters.rabbitmq.source import Intake
    from adapters.rabbitmq.topology import guarded

    names = frozenset(header.encode() for header in wanted(route_rules(settings, name).headers))
    bindings = guarded(settings, name) if settings.bridge.setup else ()
    return Intake(name, settings.queue_of(name), names, bindings)


def out(settings: Settings, name: str) -> Out:
    """How a RabbitMQ route's messages leave."""
    from adapters.rabbitmq.outgoing import AUDIT_HEADERS, Out
    from adapters.rabbitmq.properties import DropRules

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
        loops=frozenset() if route.deliver_to else frozenset(settings.queue_of(r).encode() for r in settings.routes),
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


def _dispatch_rules(settings: Settings, window: int) -> DispatchRules:
    dispatch, limits = settings.dispatch, settings.limits
    return DispatchRules(
        lease_ms=dispatch.lease,
        drain_ms=dispatch.takeover,
        pace_ms=dispatch.pace,
        batch_max=limits.batch_max,
        batch_bytes=limits.batch_bytes,
        held_max=_WINDOWS_HELD * window,
    )


class Ends(NamedTuple):
    """The broker's side of a house. ``window`` bounds what is published and not confirmed, ``taken_max`` what may be
    delivered again after a crash."""

    source: RabbitSource | KafkaSource
    sink: RabbitSink | KafkaSink
    window: int
    taken_max: int


def _rabbit_ends(settings: Settings, clock: StoreClock, answered: Answered, health: Health) -> Ends:
    from adapters.rabbitmq.connection import check_seams
    from adapters.rabbitmq.setup import declare
    from adapters.rabbitmq.sink import RabbitSink
    from adapters.rabbitmq.source import RabbitSource

    check_seams()
    limits, rabbitmq = settings.limits, settings.rabbitmq
    intakes = [intake(settings, name) for name in settings.routes]
    again = partial(declare, settings) if settings.bridge.setup else None
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, again)
    outs = {name: out(settings, name) for name in settings.routes}
    sink = RabbitSink(rabbitmq, outs, limits.window_bytes, answered, health)
    return Ends(source, sink, rabbitmq.window, rabbitmq.prefetch * len(settings.routes) + limits.batch_max)


def _kafka_lane(settings: Settings, names: Iterable[str]) -> tuple[list[KafkaIntake], dict[str, KafkaOut]]:
    """Where the records of Kafka routes come from, and how those of each leave."""
    from adapters.kafka.aim import Aim
    from adapters.kafka.intake import Intake
    from adapters.kafka.outgoing import AUDIT_HEADERS, Out

    audit = settings.headers.audit
    taken = [(name, naming) for name, route in settings.routes.items() for naming in route.namings()]
    intakes, outs = [], {}
    for name in names:
        route = settings.routes[name]
        headers = frozenset(header.encode() for header in (*wanted(route_rules(settings, name).headers), DESTINATION))
        keyed = route.tombstones == "cancel"
        intakes += [Intake(name, naming, headers, keyed) for naming in route.namings()]
        aim = Aim(name, route.namings(), route.allow_to, taken)
        outs[name] = Out(aim, headers | AUDIT_HEADERS if audit else headers, audit)
    return intakes, outs


def _kafka_ends(settings: Settings, clock: StoreClock, answered: Answered, health: Health) -> Ends:
    from adapters.kafka.sink import KafkaSink
    from adapters.kafka.source import KafkaSource

    rules, limits = settings.kafka, settings.limits
    intakes, outs = _kafka_lane(settings, settings.routes)
    source = KafkaSource(rules, intakes, clock, limits.intake_bytes, health)
    sink = KafkaSink(rules, outs, limits.window_bytes, answered, health)
    return Ends(source, sink, rules.window, 0)  # what is read again is known by its origin


def build(
    settings: Settings, store: RedisStore, clock: StoreClock, instance: str, token: str, health: Health
) -> Service:
    """A service for one process, on a store that is open; ``settings`` are those of one house."""
    limits = settings.limits
    lateness, wake = Lateness(), Wake(clock, _AHEAD_MS)
    answered: list[Answered] = []
    ends = _kafka_ends if settings.broker == "kafka" else _rabbit_ends
    source, sink, window, taken_max = ends(settings, clock, partial(_tell, answered), health)
    departures = Departures(sink, clock)
    dispatcher = Dispatcher(store, sink, wake, departures, _dispatch_rules(settings, window), health)
    settler = Settler(store, clock, _retries(settings), lateness, dispatcher.ended, health)

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
    members = Members(store, dispatcher, instance, settings.dispatch.takeover, sink.able, report, health)
    return Service(
        Parts(
            store=store,
            source=source,
            sink=sink,
            links=(source.run, sink.run),
            parker=parker,
            wake=wake,
            dispatcher=dispatcher,
            settler=settler,
            members=members,
            watch=watch,
            health=health,
            grace_ms=settings.bridge.shutdown_grace,
        )
    )


def level_rules(settings: Settings, name: str) -> LevelRules:
    """What the way in needs to know of a route without a store."""
    route, rules = settings.routes[name], route_rules(settings, name)
    by_level = rounding(settings.headers.levels, settings.levels.rounding)
    return LevelRules(
        headers=rules.headers,
        round=by_level if route.mode == "levels" else to_whole_seconds,
        on_bad=rules.on_bad,
        body_max=rules.body_max,
    )


def _route_packing(settings: Settings, name: str) -> RoutePacking:
    """How the messages of a RabbitMQ route without a store are sent on."""
    from adapters.rabbitmq.levels import plan_waits
    from adapters.rabbitmq.packing import RoutePacking
    from adapters.rabbitmq.properties import DropRules

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
        loops=_own_queues(settings) if not route.deliver_to else frozenset(),
    )


def _own_queues(settings: Settings) -> frozenset[bytes]:
    """The queues of this house that it reads itself: no message may go there by the default exchange."""
    from adapters.rabbitmq.levels import plan_waits

    names = {name for route in settings.routes for name in (settings.queue_of(route), plan_waits(settings, route).due)}
    return frozenset(name.encode() for name in names)


def _rabbit_relays(settings: Settings, clock: StoreClock, health: Health) -> list[Way]:
    """One way for all routes of a house without a store: from the intakes and the due queues."""
    from adapters.rabbitmq.connection import check_seams
    from adapters.rabbitmq.levels import LEVEL_HEADER
    from adapters.rabbitmq.packing import RabbitPacking, places
    from adapters.rabbitmq.setup import declare
    from adapters.rabbitmq.sink import RabbitSink
    from adapters.rabbitmq.source import Intake, RabbitSource

    check_seams()
    limits, rabbitmq = settings.limits, settings.rabbitmq
    packings = {name: _route_packing(settings, name) for name in settings.routes}
    due = {name: packing.waits.due for name, packing in packings.items() if packing.waits.due}
    level = frozenset({LEVEL_HEADER.encode()})
    intakes = [
        *(intake(settings, name) for name in settings.routes),
        *(Intake(f"{name}.due", queue, level, without=_DUE_GONE) for name, queue in due.items()),
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
        _retries(settings),
        Mend(again, health) if again is not None else lambda: None,
        health,
        RelayLimits(limits.batch_max, limits.batch_bytes, max(1, rabbitmq.prefetch // 4)),
    )
    answered.append(relay.answered)
    return [Way(source, (source.run, sink.run), relay)]


def _kafka_relays(settings: Settings, clock: StoreClock, health: Health) -> list[Way]:
    """Two ways for each route of a house without a store, from its intake and from its levels: with a source and a sink
    of their own, so that a destination that is gone holds up nobody else."""
    from adapters.kafka.level_packing import LevelPacking, level_intakes, places
    from adapters.kafka.level_source import BoundedSource, LevelSource
    from adapters.kafka.levels import level_topics
    from adapters.kafka.setup import declare
    from adapters.kafka.sink import KafkaSink

    limits, rules = settings.limits, settings.kafka
    mend = Mend(partial(declare, settings), health) if settings.bridge.setup else lambda: None
    relay_limits = RelayLimits(limits.batch_max, limits.batch_bytes, rules.window)
    share = 2 * len(settings.routes)
    made = []
    for name in settings.routes:
        topics, lane = level_topics(settings, name), f"{name}.level"
        intakes, outs = _kafka_lane(settings, [name])
        levels = rules.model_copy(update={"group": topics.group})
        for source in (
            BoundedSource(rules, intakes, clock, limits.intake_bytes // share, health),
            LevelSource(levels, level_intakes(topics, lane), clock, limits.intake_bytes // share, health),
        ):
            answered: list[Answered] = []
            told = partial(_tell, answered)
            sink = KafkaSink(rules, places(topics, outs[name]), limits.window_bytes // share, told, health)
            relay = Relay(
                source,
                sink,
                clock,
                {name: level_rules(settings, name)},
                LevelPacking(topics, lane),
                _retries(settings),
                mend,
                health,
                relay_limits,
            )
            answered.append(relay.answered)
            made.append(Way(source, (source.run, sink.run), relay))
    return made


def _tell(whom: list[Answered], results: list[Result]) -> None:
    """A sink is made before those whom it tells."""
    for answered in whom:
        answered(results)


def _retries(settings: Settings) -> RetryRules:
    retry = settings.retry
    return RetryRules(retry.first, retry.factor, retry.max, retry.attempts)


def build_without_store(settings: Settings, health: Health) -> RelayService:
    """A service for one process without a store; ``settings`` are those of one house."""
    clock = StoreClock()
    relays = _kafka_relays if settings.broker == "kafka" else _rabbit_relays
    return RelayService(RelayParts(tuple(relays(settings, clock, health)), clock, settings.bridge.shutdown_grace))


def new_token() -> str:
    """What tells this process from every other, in names and in ids."""
    return new_instance()
