"""RabbitMQ behind the face that every broker has: ``bridge.app.brokers.Broker`` says what each function promises."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from adapters.rabbitmq import canary, diagnosis
from adapters.rabbitmq.connection import check_seams
from adapters.rabbitmq.failure import RETRY_HEADERS, FailingQueue, back_exchange, read_rejected
from adapters.rabbitmq.levels import cleanup
from adapters.rabbitmq.levels.packing import RabbitPacking, RoutePacking, places
from adapters.rabbitmq.levels.plan import LEVEL_HEADER, plan_waits
from adapters.rabbitmq.outgoing import AUDIT_HEADERS, Out, Returning
from adapters.rabbitmq.raw import payload as stored
from adapters.rabbitmq.raw.fields import text_entry
from adapters.rabbitmq.raw.properties import DropRules, edit, read
from adapters.rabbitmq.raw.values import build, describe
from adapters.rabbitmq.sink import RabbitSink
from adapters.rabbitmq.source import IntakeQueue, RabbitSource
from adapters.rabbitmq.topology import policies, rejections, setup
from adapters.rabbitmq.topology.declarations import Binding, Declaration, Exchange
from adapters.rabbitmq.topology.findings import is_ours
from adapters.rabbitmq.topology.plan import foreign, guarded, last_exchange
from adapters.rabbitmq.topology.plan import plan as plan_routes
from bridge.admin.desk import Row
from bridge.admin.diagnosis import CheckResult
from bridge.admin.leftovers import Intake as IntakeCount
from bridge.admin.leftovers import Place, Use
from bridge.admin.payload import Draft, Opened, Packed, text_of
from bridge.admin.topology import Finding, Name, Part, Standing
from bridge.core.clock import StoreClock
from bridge.core.errors import BrokerUnavailable, Refused, SettingsError
from bridge.core.message import Failure
from bridge.delay.header import OWN_HEADERS, wanted
from bridge.delay.trust import no_such_queue
from bridge.pipeline.derive import route_rules
from bridge.pipeline.ends import Drains, Ends, RelayEnds
from bridge.settings import ProcessPlan, Settings, mask_url
from bridge.settings.own_names import own_queues
from bridge.telemetry.health import Health

#: Header entries that postdate and RabbitMQ add to a message which waits in levels: 28 steps, x-death and its like.
_ADDED_ENTRIES = 64
_DUE_GONE = "messages that have waited stay in their level queues. Run `postdate levels setup`"
_FAILED_GONE = "RabbitMQ drops rejected messages, except from queues with at-least-once dead-lettering, which keep them"
_KEY_MAX = 255
KEY_NAME = "routing key"
#: The W3C trace headers, and where the producer's goes when it is replaced.
_TRACE = frozenset({b"traceparent", b"tracestate"})
_KEPT_TRACE = b"x-delay-traceparent"


def address(settings: Settings) -> str:
    """Return where the broker is, without secrets."""
    return mask_url(settings.rabbitmq.url.get_secret_value())


# -- the pipeline's ends ----------------------------------------------------------------------------------------------


def open_ends(process: ProcessPlan, clock: StoreClock, health: Health, mend: Callable[[], None]) -> Ends:
    """Make source and sink of a process with a store, not connected yet."""
    check_seams()
    settings, delivering = process.settings, process.delivering
    limits, rabbitmq = settings.limits, settings.rabbitmq
    outs: dict[str, Out] = {}
    for name, route in delivering.routes.items():
        if route.retries:
            outs[name] = out_of_retry(delivering, name)
            continue
        for lane, target in delivering.lanes_of(name).items():
            outs[lane] = replace(out(delivering, name), exchange=target)
    sink = RabbitSink(rabbitmq, outs, limits.window_bytes, health)
    if not settings.routes:
        return Ends(None, sink, (sink.run,), rabbitmq.window, 0)
    intakes = [_intake(settings, name) for name in settings.routes]
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, _redeclare(settings))
    taken_max = rabbitmq.prefetch * len(settings.routes) + limits.batch_max
    return Ends(source, sink, (source.run, sink.run), rabbitmq.window, taken_max)


def open_relays(settings: Settings, clock: StoreClock, health: Health, mend: Callable[[], None]) -> list[RelayEnds]:
    """Make the ends of one relay for all routes without a store: from the intakes and the due queues."""
    check_seams()
    limits, rabbitmq = settings.limits, settings.rabbitmq
    packings = {name: _route_packing(settings, name) for name in settings.routes}
    due = {name: packing.waits.due for name, packing in packings.items() if packing.waits.due}
    level, most = frozenset({LEVEL_HEADER.encode()}), limits.header_entries + _ADDED_ENTRIES
    intakes = [
        *(_intake(settings, name) for name in settings.routes),
        *(IntakeQueue(f"{name}.due", queue, level, (), _DUE_GONE, most) for name, queue in due.items()),
    ]
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, _redeclare(settings))
    sink = RabbitSink(rabbitmq, places(packings), limits.window_bytes, health)
    packing = RabbitPacking(packings, {f"{name}.due": name for name in due})
    links = (source.run, sink.run)
    return [RelayEnds(tuple(settings.routes), source, sink, links, packing, max(1, rabbitmq.prefetch // 4))]


def open_drains(settings: Settings, clock: StoreClock, health: Health) -> Drains | None:
    """RabbitMQ empties the levels of routes that have a store now by itself."""
    return None


def out(settings: Settings, name: str) -> Out:
    """Return how a route's messages leave."""
    route, headers = settings.routes[name], settings.headers
    rules = DropRules(
        headers.keep_user_id, headers.keep_cc, headers.keep_bcc, headers.keep_x_death, headers.keep_delivery_count
    )
    delay_headers = {header.encode() for header in (*OWN_HEADERS, *route.dialects)}
    if headers.audit:
        delay_headers |= AUDIT_HEADERS
    return Out(
        exchange=route.target,
        drop=rules.names(delay_headers),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        plugin=headers.compat == "plugin",
        # The default exchange sends to any queue; an exchange of the consumers' has been bound by them, with care.
        loops=None if route.target else _own_queues(settings),
        queues=settings.allow_list_of(name),
        entries_max=settings.limits.header_entries,
    )


def out_of_retry(settings: Settings, name: str) -> Out:
    """Return how a retry route's messages leave. Delay headers belong to the consumers, and stay."""
    headers, entries_max = settings.headers, settings.limits.header_entries
    rules = DropRules(headers.keep_user_id, headers.keep_cc, headers.keep_bcc)
    back = Out(
        exchange=back_exchange(settings.queue_of(name)),
        drop=rules.names(RETRY_HEADERS | AUDIT_HEADERS if headers.audit else RETRY_HEADERS),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        plugin=False,
        entries_max=entries_max,
        returning=Returning(failing_queue(settings, name), len(settings.schedule_of(name))),
    )
    last = last_exchange(settings.routes[name])
    if not last:
        return back
    assert back.returning is not None
    ending = replace(back, exchange=last, returning=replace(back.returning, restores=False))
    return replace(back, returning=replace(back.returning, last=ending))


def failing_queue(settings: Settings, name: str) -> FailingQueue:
    """Return the consumers' queue of a retry route."""
    return FailingQueue(settings.routes[name].queue.encode(), back_exchange(settings.queue_of(name)).encode())


def _redeclare(settings: Settings) -> Callable[[], object] | None:
    return partial(setup.declare, settings) if settings.bridge.setup else None


def _intake(settings: Settings, name: str) -> IntakeQueue:
    retries = settings.routes[name].retries
    names = frozenset(() if retries else (one.encode() for one in wanted(route_rules(settings, name).headers)))
    bindings, theirs = (guarded(settings, name), foreign(settings, name)) if settings.bridge.setup else ((), ())
    intake = IntakeQueue(
        name,
        settings.queue_of(name),
        names,
        bindings,
        entries_max=settings.limits.header_entries,
        foreign=theirs,
        correlated=settings.routes[name].id_from == "correlation_id",
        prioritized=settings.routes[name].priority,
    )
    return replace(intake, without=_FAILED_GONE, failing=failing_queue(settings, name)) if retries else intake


def _route_packing(settings: Settings, name: str) -> RoutePacking:
    route, headers = settings.routes[name], settings.headers
    rules = DropRules(
        keep_cc=headers.keep_cc, keep_bcc=headers.keep_bcc, keep_delivery_count=headers.keep_delivery_count
    )
    return RoutePacking(
        waits=plan_waits(settings, name),
        target=route.target,
        drop=rules.names(header.encode() for header in (*OWN_HEADERS, *route.dialects)),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        loops=None if route.target else _own_queues(settings),
        queues=settings.allow_list_of(name),
        entries_max=settings.limits.header_entries + _ADDED_ENTRIES,
    )


def _own_queues(settings: Settings) -> re.Pattern[bytes]:
    """Return the routing keys that would lead a message to a queue of postdate's by the default exchange."""
    return re.compile(own_queues(settings).pattern.encode())


# -- topology ---------------------------------------------------------------------------------------------------------


def plan(settings: Settings) -> list[Part]:
    """Return what `setup` declares. Pure."""
    return [_part(one.route, what) for one in plan_routes(settings) for what in one.declarations()]


def verify(settings: Settings) -> list[Finding]:
    """Compare every exchange and queue with the broker's. Blocking. Raises ``BrokerUnavailable``."""
    return [Finding(_part(one.route, one.declaration), one.state, one.text) for one in setup.verify(settings)]


def declare(settings: Settings) -> tuple[list[Finding], list[str]]:
    """Declare what is missing. Blocking. Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``."""
    made, warnings = setup.declare(settings)
    found = [Finding(_part(one.route, one.declaration), Standing.MADE if one.new else Standing.THERE) for one in made]
    return found, warnings


def redeclare(settings: Settings) -> None:
    """Declare again what someone deleted while postdate runs. Blocking. Raises as ``declare``."""
    setup.declare(settings)


def judge_policies(settings: Settings) -> list[tuple[str, str]]:
    """Compare policies with postdate's queues. Blocking. Raises ``BrokerUnavailable`` where the settings name a
    management API and it does not answer; one that they do not name need not exist."""
    if settings.rabbitmq.management_url == "off":
        return []
    try:
        found = policies.judge_policies(settings)
    except BrokerUnavailable:
        if settings.rabbitmq.management_url:
            raise
        return []
    return [(one.route, one.text) for one in found]


def judge_consumers(settings: Settings, change: bool = False) -> list[Finding]:
    """Return whether the queues of the retry routes dead-letter to postdate. ``change``: set a policy where it is
    missing and possible. Blocking."""
    return rejections.judge_all(settings, change)


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
    """Return a route and a sentence for each front exchange without its intake queue, which delivers delayed
    messages at once or loses rejected ones. Pure."""
    found = []
    states = {(one.part.route, one.part.name): one.state for one in findings if one.part.ours}
    for topology in plan_routes(settings):
        route, target = topology.route, settings.routes[topology.route].target
        intake = states.get((route, Name("queue", topology.intake.name)))
        front = states.get((route, Name("exchange", topology.front.name)))
        if intake is Standing.MISSING and front in (Standing.SAME, Standing.DIFFERENT):
            fate = "delayed messages are delivered at once" if target else "messages are lost"
            if topology.back:
                fate = _FAILED_GONE
            found.append((route, f"the intake queue is missing, so {fate}. Run `postdate setup`"))
    return found


def _part(route: str, declaration: Declaration) -> Part:
    arguments = dict(declaration.arguments)
    if isinstance(declaration, Binding):
        kind = "exchange" if declaration.to_exchange else "queue"
        ends = (Name("exchange", declaration.exchange), Name(kind, declaration.queue))
        name = f"{declaration.exchange} -> {declaration.queue}"
        if declaration.key:
            arguments = {"routing key": declaration.key, **arguments}
        return Part(Name("binding", name), route, True, arguments, ends)
    if isinstance(declaration, Exchange):
        arguments = {"type": declaration.type, **arguments}
        return Part(Name("exchange", declaration.name), route, is_ours(declaration), arguments)
    return Part(Name("queue", declaration.name), route, declaration.ours, arguments)


# -- messages that wait in the broker ---------------------------------------------------------------------------------


def levels_at(settings: Settings, before: Sequence[Settings]) -> list[Settings]:
    """Return what to ask for levels: the settings' own RabbitMQ with its routes; where no route uses one, those that
    previous settings have a route of. AMQP lists no queues, so without previous settings there is nothing to ask for.
    """
    if names := settings.routes_of("rabbitmq"):
        return [settings.only(names)]
    olds = [old for old in before if old.routes_of("rabbitmq")]
    if settings.is_set("rabbitmq.url"):
        return [settings.only(())] if olds else []
    return list({old.rabbitmq.url: old.only(()) for old in reversed(olds)}.values())


def unknown_hint(settings: Settings) -> str:
    """Return the advice for a RabbitMQ that no route uses and that does not answer."""
    return ""


def looks_at_start(settings: Settings) -> list[str]:
    """Return the routes whose stale levels a starting process looks for. Not those without a store: that takes a
    hundred questions, and `setup` reports a changed list of levels."""
    return [name for name, one in settings.routes.items() if one.broker == "rabbitmq" and one.mode == "redis"]


def count_levels(settings: Settings, before: Sequence[Settings]) -> list[Place]:
    """Count the level queues of the routes, and stale ones. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    return [_place(one) for one in cleanup.count(settings, before)]


def remove_levels(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[Place]:
    """Delete stale, empty level queues. Return every candidate with the reason it was kept. Blocking. Raises as
    ``count_levels``."""
    found: list[Place] = []
    for asked in levels_at(settings, before):
        found += [_place(one) for one in cleanup.remove(asked, before, everything, force, dry_run)]
    return found


def remaining_exchanges(settings: Settings, before: Sequence[Settings]) -> dict[str, str]:
    """Return, for each removed route of previous settings without a store, what `levels remove` never deletes. Pure."""
    fronts = {settings.routes[name].intercept for name in settings.routes_of("rabbitmq")}
    queues = {settings.queue_of(name) for name in settings.routes_of("rabbitmq")}
    found = {}
    for old in before:
        for name in old.routes_of("rabbitmq"):
            front, queue = old.routes[name].intercept, old.queue_of(name)
            parts = [f"front exchange '{front}'"] * (front not in fronts)
            parts += [f"intake queue '{queue}' and the exchanges '{queue}.…'"] * (queue not in queues)
            if parts and name not in settings.routes and old.routes[name].mode != "redis":
                found[name] = (
                    f"postdate does not delete these of the removed route {name}: {', '.join(parts)}. Delete the front "
                    "first, when no producer uses it, then the queue, when it is empty"
                )
    return found


def works_alone(settings: Settings) -> list[str]:
    """Return the routes on which a message with x-delay-level needs no postdate."""
    return [name for name in settings.routes_of("rabbitmq") if settings.routes[name].mode == "levels"]


def _place(one: cleanup.LevelQueue) -> Place:
    use = Use.OLD if one.old else Use.MISSING if one.messages is None else Use.IN_USE
    return Place(one.route, "queue", one.name, one.messages, use, one.is_dead, one.uncounted, one.kept)


def count_intakes(settings: Settings) -> list[IntakeCount]:
    """Count the messages and consumers of the intake queues. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    return cleanup.count_intakes(settings)


def stalled_intakes(settings: Settings) -> list[IntakeCount]:
    """Return intake queues in which messages wait and none is taken. Blocking, two seconds. Raises as above."""
    return cleanup.stalled_intakes(settings)


# -- payloads ---------------------------------------------------------------------------------------------------------


def pack(settings: Settings, route: str, draft: Draft) -> Packed:
    """Pack a message made here. Raises ``SettingsError`` for options that RabbitMQ does not have or AMQP cannot carry,
    ``Refused`` for a routing key with which it would become a dead letter."""
    if strange := draft.given("record_key", "topic"):
        raise SettingsError(
            f"Options for Kafka routes only: {strange}. RabbitMQ route {route!r} needs {draft.word('routing_key')}."
        )
    if draft.routing_key is None:
        # It may be empty but not forgotten: without the right one no queue takes the message.
        raise SettingsError(
            f"{draft.word('routing_key')} is missing. Give the consumers' routing key, or '' for an empty one."
        )
    key, allowed = os.fsencode(draft.routing_key), settings.allow_list_of(route)
    if allowed is not None and key not in allowed:
        raise Refused(f"Nothing was sent: {no_such_queue(key).sentence}.")
    if len(key) > _KEY_MAX:
        raise SettingsError(f"The routing key has {len(key)} bytes. AMQP allows {_KEY_MAX}.")
    try:
        properties = build(draft.headers or None, content_type=draft.content_type, message_id=draft.message_id)
    except ValueError as error:
        raise SettingsError(f"This cannot be sent: {error}.") from None
    return Packed(key, stored.pack(key, properties, draft.body))


def open_payload(row: Row) -> Opened:
    """Open a stored message. Raises ``ValueError`` where too little of it was read."""
    _, properties, body = stored.unpack(row.payload)
    described = describe(properties)
    return Opened(described, {}, described, body, row.size - len(row.payload) + len(body))


def failure_of(settings: Settings, route: str, payload: bytes) -> Failure:
    """Return how the consumers of a retry route failed. Raises ``ValueError``."""
    return read_rejected(stored.unpack(payload).properties, failing_queue(settings, route)).failure


def trace_headers(payload: bytes) -> dict[str, str]:
    """Return the W3C trace headers of a payload. Raises ``ValueError``."""
    found = read(stored.unpack(payload).properties, _TRACE).headers
    return {name: value for name, value in found.items() if isinstance(value, str)}


def with_traceparent(payload: bytes, traceparent: str) -> bytes:
    """Return the payload with this ``traceparent``. Raises ``ValueError``."""
    routing_key, properties, body = stored.unpack(payload)
    added = text_entry(b"traceparent", traceparent.encode())
    if before := trace_headers(payload).get("traceparent"):
        added += text_entry(_KEPT_TRACE, before.encode())
    return stored.pack(routing_key, edit(properties, _TRACE | {_KEPT_TRACE}, False, added), body)


def body_of(payload: bytes) -> bytes:
    """Return the body of a whole stored message."""
    return stored.unpack(payload).body


def origin_of(row: Row) -> dict[str, object]:
    """Return the routing key, as far as the first bytes of the payload tell."""
    return {"routing_key": text_of(stored.routing_key(row.payload))}
