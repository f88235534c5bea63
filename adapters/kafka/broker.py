"""Kafka behind the face that every broker has: ``bridge.app.brokers.Broker`` says what each function promises."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from adapters.kafka import canary, diagnosis
from adapters.kafka.failure import RetryRouter, Returns, read_failure
from adapters.kafka.intake import PRIORITY, KafkaIntake
from adapters.kafka.levels import cleanup
from adapters.kafka.levels.packing import LevelPacking, level_intakes, places
from adapters.kafka.levels.plan import level_topics
from adapters.kafka.levels.source import BoundedSource, LevelSource
from adapters.kafka.outgoing import AUDIT_HEADERS, KafkaOut
from adapters.kafka.raw import record
from adapters.kafka.routing import Router
from adapters.kafka.sink import KafkaSink
from adapters.kafka.source import KafkaSource
from adapters.kafka.topology import setup
from adapters.kafka.topology.released import transactional_routes
from adapters.kafka.topology.topics import Topic
from adapters.kafka.transactional import Transactions
from bridge.admin.desk import Row
from bridge.admin.diagnosis import CheckResult
from bridge.admin.leftovers import Intake, Place, Use
from bridge.admin.payload import Draft, Opened, Packed, text_of
from bridge.admin.topology import Finding, Name, Part, Standing
from bridge.core.clock import StoreClock
from bridge.core.errors import SettingsError
from bridge.core.message import Failure
from bridge.delay.header import wanted
from bridge.delay.naming import Naming
from bridge.delay.trust import DESTINATION
from bridge.pipeline.derive import route_rules
from bridge.pipeline.ends import Drains, Ends, RelayEnds
from bridge.settings import ProcessPlan, Settings
from bridge.telemetry.health import Health

KEY_NAME = "record key"
#: The W3C trace headers, and where the producer's goes when it is replaced.
_TRACE = frozenset({b"traceparent", b"tracestate"})
_KEPT_TRACE = b"x-delay-traceparent"


def address(settings: Settings) -> str:
    """Return where the broker is, without secrets."""
    return settings.kafka.bootstrap_servers


# -- the pipeline's ends ----------------------------------------------------------------------------------------------


def open_ends(process: ProcessPlan, clock: StoreClock, health: Health, mend: Callable[[], None]) -> Ends:
    """Make source and sink of a process with a store, not connected yet. A record that is read again is known by its
    origin, so no crash makes it a copy."""
    settings, delivering = process.settings, process.delivering
    rules, limits = settings.kafka, settings.limits
    outs = {
        lane: _out(delivering, name, target)
        for name in delivering.routes
        for lane, target in delivering.lanes_of(name).items()
    }
    in_transactions = any(out.transactional for out in outs.values())
    transactions = Transactions(rules, settings.dispatch.lease, health, mend) if in_transactions else None
    sink = KafkaSink(rules, outs, limits.window_bytes, health, transactions)
    if not settings.routes:
        return Ends(None, sink, (sink.run,), rules.window, 0)
    intakes = [one for name in settings.routes for one in _intakes(settings, name)]
    source = KafkaSource(rules, intakes, clock, limits.intake_bytes, health, mend)
    return Ends(source, sink, (source.run, sink.run), rules.window, 0)


def open_relays(settings: Settings, clock: StoreClock, health: Health, mend: Callable[[], None]) -> list[RelayEnds]:
    """Make the ends of two relays for each route without a store: from its intake and from its levels. Each has its own
    source and sink, so that a missing destination delays no other route."""
    made = []
    for name in settings.routes:
        bytes_max = settings.limits.intake_bytes // (2 * len(settings.routes))
        intake_source = BoundedSource(settings.kafka, _intakes(settings, name), clock, bytes_max, health, mend)
        for source in (intake_source, _level_source(settings, name, clock, health, mend)):
            made.append(_relay_ends(settings, name, source, health))
    return made


def open_drains(settings: Settings, clock: StoreClock, health: Health) -> Drains | None:
    """Return how to empty the levels of routes that have a store now."""

    def drain(name: str) -> RelayEnds:
        return _relay_ends(settings, name, _level_source(settings, name, clock, health, lambda: None), health)

    return Drains(partial(cleanup.routes_with_levels_left, settings), drain)


def _headers(settings: Settings, name: str) -> frozenset[bytes]:
    """Return the headers that a route reads, which do not leave with the record. A retry route reads none."""
    if settings.routes[name].retries:
        return frozenset()
    more = (DESTINATION, PRIORITY) if settings.routes[name].priority else (DESTINATION,)
    return frozenset(header.encode() for header in (*wanted(route_rules(settings, name).headers), *more))


def _intakes(settings: Settings, name: str) -> list[KafkaIntake]:
    route, headers = settings.routes[name], _headers(settings, name)
    keyed, most = route.tombstones == "cancel", settings.limits.header_entries
    spread = route.order == "none" and route.mode == "redis"
    return [
        KafkaIntake(name, naming, headers, keyed, spread, most, route.retries, route.priority)
        for naming in route.namings()
    ]


def _out(settings: Settings, name: str, target: str) -> KafkaOut:
    """Return how a route's records leave for one of its destinations."""
    route, headers, audit = settings.routes[name], _headers(settings, name), settings.headers.audit
    taken = [(other, naming) for other, one in settings.routes.items() for naming in one.namings()]
    namings = (Naming(route.intercept, target), *route.namings()[1:])
    router = Router(name, namings, route.allow_to, taken)
    drop = headers | AUDIT_HEADERS if audit else headers
    most, once = settings.limits.header_entries, name in transactional_routes(settings)
    if not route.retries:
        return KafkaOut(router, drop, audit, headers_max=most, transactional=once)
    returns = Returns(len(settings.schedule_of(name)), route.last_target)
    return KafkaOut(RetryRouter(router, returns), drop, audit, headers_max=most, transactional=once, returns=returns)


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
    sink = KafkaSink(
        settings.kafka, places(topics, _out(settings, name, settings.routes[name].target)), window_bytes, health
    )
    packing = LevelPacking(topics, _lane(name), name)
    return RelayEnds((name,), source, sink, (source.run, sink.run), packing, settings.kafka.window)


# -- topology ---------------------------------------------------------------------------------------------------------


def plan(settings: Settings) -> list[Part]:
    """Return what `setup` creates. Pure."""
    return [_part(one) for one in setup.plan(settings)]


def verify(settings: Settings) -> list[Finding]:
    """Compare every topic with the broker's. Blocking. Raises ``BrokerUnavailable``."""
    return [Finding(_part(one.topic), one.state, one.text) for one in setup.verify(settings)]


def declare(settings: Settings) -> tuple[list[Finding], list[str]]:
    """Create what is missing. Blocking. Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``."""
    made, warnings = setup.declare(settings)
    states = (Standing.WAITS if one.waits else Standing.MADE if one.new else Standing.THERE for one in made)
    return [Finding(_part(one.topic), state) for one, state in zip(made, states, strict=True)], warnings


def redeclare(settings: Settings) -> None:
    """Create again the topics that someone deleted while postdate runs. Blocking. Raises as ``declare``."""
    setup.redeclare(settings)


def judge_policies(settings: Settings) -> list[tuple[str, str]]:
    """Kafka has no policies on topics."""
    return []


def judge_consumers(settings: Settings, change: bool = False) -> list[Finding]:
    """Kafka's error handlers write to a topic of their own accord."""
    return []


def diagnose(settings: Settings) -> list[CheckResult]:
    """Return what else the broker tells of itself. Blocking."""
    return diagnosis.diagnose(settings)


def declare_canary(settings: Settings) -> None:
    """Declare the canary's route and what it delivers to. Blocking. Raises as ``declare``."""
    canary.declare_canary(settings)


def round_trip(settings: Settings, delay_ms: int, wait_s: float) -> float | None:
    """Send a canary. Return how late (s) it came back, or None. Blocking."""
    return canary.round_trip(settings, delay_ms, wait_s)


def open_fronts(settings: Settings, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """On Kafka a missing intake topic refuses records; it passes none on."""
    return []


def _part(topic: Topic) -> Part:
    arguments = {"partitions": topic.partitions, "replication": topic.replicas} if topic.partitions else {}
    return Part(Name("topic", topic.name), topic.route, topic.ours, arguments)


# -- messages that wait in the broker ---------------------------------------------------------------------------------


def levels_at(settings: Settings, before: Sequence[Settings]) -> list[Settings]:
    """Return what to ask for levels: the settings' own Kafka with its routes; where no route uses one, the Kafka that
    the settings name and those of previous settings. Kafka lists all topics of a group."""
    if names := settings.routes_of("kafka"):
        return [settings.only(names)]
    named = [settings.only(())] if settings.is_set("kafka.bootstrap_servers") else []
    asked = [*named, *(old.only(()) for old in before if old.routes_of("kafka"))]
    return list({(one.kafka.bootstrap_servers, one.kafka.group): one for one in reversed(asked)}.values())


def unknown_hint(settings: Settings) -> str:
    """Return the advice for a Kafka that no route uses and that does not answer."""
    if not settings.is_set("kafka.bootstrap_servers"):
        return ""
    return ". If no route ever used Kafka, remove kafka.bootstrap_servers"


def looks_at_start(settings: Settings) -> list[str]:
    """Return the routes whose stale levels a starting process looks for: all."""
    return settings.routes_of("kafka")


def count_levels(settings: Settings, before: Sequence[Settings]) -> list[Place]:
    """Count the records in the level topics of the routes, and in stale ones. Blocking."""
    return [_place(one) for one in cleanup.count(settings)]


def remove_levels(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[Place]:
    """Delete stale, empty level topics. Return every candidate with the reason it was kept. Blocking. Raises
    ``BrokerUnavailable``, ``Refused``."""
    names = settings.routes_of("kafka")
    if not names:
        return []
    return [_place(one) for one in cleanup.remove(settings.only(names), everything, force, dry_run)]


def remaining_exchanges(settings: Settings, before: Sequence[Settings]) -> dict[str, str]:
    """Kafka has nothing beside topics."""
    return {}


def works_alone(settings: Settings) -> list[str]:
    """Kafka moves no record by itself."""
    return []


def _place(one: cleanup.LevelTopic) -> Place:
    use = Use.OLD if one.old else Use.MISSING if one.messages is None else Use.IN_USE
    return Place(
        one.route, "topic", one.name, one.messages, use if one.routed else Use.NO_ROUTE, one.is_dead, kept=one.kept
    )


def count_intakes(settings: Settings) -> list[Intake]:
    """Count the records and readers of the intake topics. Blocking. Raises ``BrokerUnavailable``."""
    return cleanup.intakes(settings)


def stalled_intakes(settings: Settings) -> list[Intake]:
    """Kafka gives a partition to another consumer by itself."""
    return []


# -- payloads ---------------------------------------------------------------------------------------------------------


def pack(settings: Settings, route: str, draft: Draft) -> Packed:
    """Pack a record made here, as if it had come on an intake topic of the route. Raises ``SettingsError`` for options
    that Kafka does not have."""
    if strange := draft.given("routing_key", "content_type", "message_id"):
        raise SettingsError(
            f"Options for RabbitMQ routes only: {strange}. On Kafka, {draft.word('record_key')} sets the key."
        )
    topic = _intake_topic(settings, route, draft.topic)
    key = None if draft.record_key is None else os.fsencode(draft.record_key)
    named = [(os.fsencode(name), os.fsencode(text)) for name, text in draft.headers.items()]
    return Packed(key or b"", record.pack(-1, -1, key, draft.body, named, topic.encode()))


def open_payload(row: Row) -> Opened:
    """Open a stored record. Raises ``ValueError`` where too little of it was read."""
    unpacked = record.unpack(row.payload)
    described = record.describe(unpacked, record.topic_of(row.payload))
    other = {name: value for name, value in described.items() if name not in ("topic", "partition", "key")}
    origin = {
        "topic": described.get("topic"),
        "partition": described["partition"],
        "record_key": described["key"],
    }
    body = unpacked.value or b""
    return Opened(described, origin, other, body, len(body))


def failure_of(settings: Settings, route: str, payload: bytes) -> Failure:
    """Return how the consumers of a retry route failed. Raises ``ValueError``."""
    return read_failure(record.unpack(payload).headers)


def trace_headers(payload: bytes) -> dict[str, str]:
    """Return the W3C trace headers of a payload. Raises ``ValueError``."""
    headers = record.unpack(payload).headers
    return {name.decode(): value.decode() for name, value in headers if name in _TRACE and value is not None}


def with_traceparent(payload: bytes, traceparent: str) -> bytes:
    """Return the payload with this ``traceparent``. Raises ``ValueError``."""
    found = record.unpack(payload)
    kept = [one for one in found.headers if one[0] not in _TRACE and one[0] != _KEPT_TRACE]
    kept.append((b"traceparent", traceparent.encode()))
    if before := trace_headers(payload).get("traceparent"):
        kept.append((_KEPT_TRACE, before.encode()))
    return record.pack(found.partition, found.timestamp, found.key, found.value, kept, record.topic_of(payload))


def body_of(payload: bytes) -> bytes:
    """Return the value of a whole stored record."""
    return record.unpack(payload).value or b""


def origin_of(row: Row) -> dict[str, object]:
    """Return topic, partition and record key, as far as the first bytes of the payload tell; None where it cannot be
    opened."""
    try:
        topic, partition, key = record.head_of(row.payload)
    except ValueError:
        return {"topic": None, "partition": None, "record_key": None}
    return {
        "topic": text_of(topic) or None,
        "partition": partition,
        "record_key": None if key is None else text_of(key),
    }


def _intake_topic(settings: Settings, route: str, topic: str | None) -> str:
    namings = settings.routes[route].namings()
    if topic is None:
        if len(namings) > 1 or namings[0].is_rule:
            raise SettingsError(f"Route {route!r} has several intake topics. Name one with --topic.")
        return namings[0].intercept
    if all(naming.target(topic) is None for naming in namings):
        taken = ", ".join(naming.intercept for naming in namings)
        raise SettingsError(f"Route {route!r} has no intake topic {topic!r}. Its intake topics: {taken}.")
    return topic
