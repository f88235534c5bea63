"""RabbitMQ's part ``ends`` of ``bridge.app.brokers.Broker``: where messages come from and where they go."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from adapters.rabbitmq.connection import check_seams
from adapters.rabbitmq.failure import FAILED_GONE, FAILED_LOST, RETRY_HEADERS, back_exchange, failing_queue
from adapters.rabbitmq.intake_queue import IntakeQueue
from adapters.rabbitmq.levels.packing import RabbitPacking, RoutePacking, places
from adapters.rabbitmq.levels.waits import LEVEL_HEADER, plan_waits
from adapters.rabbitmq.management_watch import ManagementWatch
from adapters.rabbitmq.native_guard import timed_queue
from adapters.rabbitmq.outgoing import AUDIT_HEADERS, Out, Returning
from adapters.rabbitmq.probes import IntakeProbe, publish_probes
from adapters.rabbitmq.raw.amqp10 import SECTIONS
from adapters.rabbitmq.raw.properties import NATIVE_DELAY, dropped
from adapters.rabbitmq.sink import RabbitSink
from adapters.rabbitmq.source import RabbitSource
from adapters.rabbitmq.topology import declaring, rejections
from adapters.rabbitmq.topology.fronts import front_troubles
from adapters.rabbitmq.topology.route_topology import foreign, kept
from bridge.core.clock import StoreClock
from bridge.core.errors import Refused
from bridge.core.message import Claim
from bridge.core.ports import Link
from bridge.delay.header import NATIVE, OWN_HEADERS
from bridge.delay.seal import Seal
from bridge.pipeline.ends import Drains, Ends, LogReplay, RelayEnds
from bridge.pipeline.fan_out import Copy
from bridge.pipeline.relay import Carried
from bridge.settings import ProcessPlan, Settings, mask_url
from bridge.settings.own_names import own_queues
from bridge.telemetry.health import Health

#: Header entries that postdate and RabbitMQ add to a message which waits in levels: 28 steps, x-death and its like.
_ADDED_ENTRIES = 64
_GUARD_GONE = f"RabbitMQ holds messages with {NATIVE} in the intake queue, and a far moment stops it for good"
_GUARD_LOST = f"RabbitMQ held messages with {NATIVE} in the intake queue, and a far moment stops it for good"
_DUE_GONE = "messages that have waited stay in their level queues. Run `postdate levels setup`"


def address(settings: Settings) -> str:
    return mask_url(settings.rabbitmq.url.get_secret_value())


def open_ends(
    process: ProcessPlan, clock: StoreClock, health: Health, mend: Callable[[], None], secret: Callable[[], bytes]
) -> Ends:
    check_seams()
    live = process.settings
    limits, rabbitmq = live.limits, live.rabbitmq
    sink = RabbitSink[Claim | Copy](rabbitmq, _outs(process.delivering, secret), limits.window_bytes, health)
    if not live.routes:
        return Ends(None, sink, (sink.run,), rabbitmq.window, 0, lambda _: 0)
    intakes = [_intake(live, name, Seal(secret, name)) for name in live.routes]
    redeclare = (lambda: declaring.declare(live)) if live.bridge.setup else None
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, redeclare)
    links = (source.run, sink.run, *_watches(lambda: live, source, health))

    def follow(new: ProcessPlan) -> int:
        nonlocal live, intakes
        live, known = new.settings, {intake.route: intake for intake in intakes}
        intakes = [known.get(name) or _intake(live, name, Seal(secret, name)) for name in live.routes]
        sink.follow(_outs(new.delivering, secret))
        source.follow(intakes)
        return _taken_max(live, intakes)

    return Ends(source, sink, links, rabbitmq.window, _taken_max(live, intakes), follow)


def _outs(settings: Settings, secret: Callable[[], bytes]) -> dict[str, Out]:
    outs: dict[str, Out] = {}
    for name, route in settings.routes.items():
        if route.retries:
            outs[name] = out_of_retry(settings, name, Seal(secret, name))
            continue
        for lane, target in settings.lanes_of(name).items():
            outs[lane] = replace(out(settings, name), exchange=target)
    return outs


def _taken_max(settings: Settings, intakes: Sequence[IntakeQueue]) -> int:
    queues = sum(max(1, len(intake.native)) for intake in intakes)
    return settings.rabbitmq.prefetch * queues + settings.limits.batch_max


def open_relays(settings: Settings, clock: StoreClock, health: Health, mend: Callable[[], None]) -> list[RelayEnds]:
    """Make the ends of one relay for all routes without a store: from the intakes and the due queues."""
    check_seams()
    limits, rabbitmq = settings.limits, settings.rabbitmq
    packings = {name: _route_packing(settings, name) for name in settings.routes}
    due = {name: packing.waits.due for name, packing in packings.items() if packing.waits.due}
    level, most = frozenset({LEVEL_HEADER.encode(), NATIVE_DELAY}), limits.header_entries + _ADDED_ENTRIES
    intakes = [
        *(_intake(settings, name) for name in settings.routes),
        *(IntakeQueue(f"{name}.due", queue, level, (), _DUE_GONE, most) for name, queue in due.items()),
    ]
    redeclare = partial(declaring.declare, settings) if settings.bridge.setup else None
    source = RabbitSource(rabbitmq, intakes, clock, limits.intake_bytes, health, redeclare)
    sink = RabbitSink[Carried](rabbitmq, places(packings), limits.window_bytes, health)
    packing = RabbitPacking(packings, {f"{name}.due": name for name in due})
    links = (source.run, sink.run, *_watches(lambda: settings, source, health))
    return [RelayEnds(tuple(settings.routes), source, sink, links, packing, max(1, rabbitmq.prefetch // 4))]


def open_replay(settings: Settings, route: str, secret: Callable[[], bytes]) -> LogReplay:
    """Refuse: RabbitMQ deletes a message when postdate acknowledges it."""
    raise Refused(f"route {route} is of RabbitMQ, which keeps nothing that postdate has taken. Only Kafka can replay")


def open_drains(settings: Settings, clock: StoreClock, health: Health) -> Drains | None:
    """RabbitMQ empties the levels of routes that have a store now by itself."""
    return None


def _watches(live: Callable[[], Settings], source: RabbitSource, health: Health) -> tuple[Link, ...]:
    """Return the loops that report what keeps messages from postdate. ``live`` returns the settings in force."""
    rabbitmq = live().rabbitmq
    watches: tuple[Link, ...] = (IntakeProbe(source.consumed, health, partial(publish_probes, rabbitmq)).run,)
    if rabbitmq.management_url != "off":
        looks = {
            "bindings of front exchanges": lambda: front_troubles(live()),
            "redeliveries to consumers": lambda: rejections.redelivery_troubles(live()),
        }
        watches += tuple(ManagementWatch(what, look, health).run for what, look in looks.items())
    return watches


def out(settings: Settings, name: str) -> Out:
    """Return how a route's messages leave."""
    route, headers = settings.routes[name], settings.headers
    keep = headers.keep_cc, headers.keep_bcc, headers.keep_x_death, headers.keep_delivery_count
    delay_headers = {header.encode() for header in (*OWN_HEADERS, *route.dialects)}
    if headers.audit:
        delay_headers |= AUDIT_HEADERS
    return Out(
        exchange=route.target,
        drop=dropped(delay_headers, *keep),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        plugin=headers.compat == "plugin",
        # The default exchange sends to any queue; an exchange of the consumers' has been bound by them, with care.
        loops=None if route.target else _own_queues(settings),
        queues=settings.allowed_routing_keys_of(name),
        entries_max=settings.limits.header_entries,
    )


def out_of_retry(settings: Settings, name: str, seal: Seal | None = None) -> Out:
    """Return how a retry route's messages leave. Delay headers belong to the consumers, and stay, except on what leaves
    for ``then``: there they would delay it again, or cancel another message."""
    headers, entries_max = settings.headers, settings.limits.header_entries
    own = RETRY_HEADERS | AUDIT_HEADERS if headers.audit else RETRY_HEADERS
    back = Out(
        exchange=back_exchange(settings.queue_of(name)),
        drop=dropped(own, headers.keep_cc, headers.keep_bcc),
        drop_user_id=not headers.keep_user_id,
        audit=headers.audit,
        plugin=False,
        entries_max=entries_max,
        returning=Returning(failing_queue(settings, name), seal, len(settings.schedule_of(name))),
    )
    last = settings.routes[name].last_target
    if not last:
        return back
    assert back.returning is not None
    drop = back.drop | {header.encode() for header in OWN_HEADERS}
    ending = replace(back, exchange=last, drop=drop, returning=replace(back.returning, restores=False))
    return replace(back, returning=replace(back.returning, last=ending))


def _intake(settings: Settings, name: str, seal: Seal | None = None) -> IntakeQueue:
    retries = settings.routes[name].retries
    names = frozenset(() if retries else (*OWN_HEADERS, *settings.routes[name].dialects))
    # Only on the way to the default exchange does every message pass postdate; elsewhere RabbitMQ looks for a header.
    packed = not retries and not settings.routes[name].target
    bound = kept(settings, name, native=False).bound if settings.bridge.setup else ()
    intake = IntakeQueue(
        name,
        settings.queue_of(name),
        frozenset(header.encode() for header in names) | (SECTIONS if packed else frozenset()),
        bound,
        entries_max=settings.limits.header_entries,
        foreign=foreign(settings, name) if settings.bridge.setup else (),
        correlated=settings.routes[name].id_from == "correlation_id",
        prioritized=settings.routes[name].priority,
        packed=packed,
    )
    if retries:
        failing = replace(failing_queue(settings, name), seal=seal)
        return replace(intake, without=FAILED_GONE, meanwhile=FAILED_LOST, failing=failing)
    return replace(intake, native=_native(settings, name, intake))


def _native(settings: Settings, name: str, intake: IntakeQueue) -> tuple[IntakeQueue, ...]:
    """Return the intakes of a delay route where RabbitMQ delays by itself: the second has what it would delay."""
    bound, unbound = kept(settings, name, native=True) if settings.bridge.setup else ((), ())
    # RabbitMQ closes the channel of a binding whose queue is on a node that is down. The intake lives on.
    queue = timed_queue(intake.queue)
    own = tuple(binding for binding in bound if binding.queue == queue)
    timed = replace(
        intake,
        queue=queue,
        wanted=intake.wanted | {NATIVE_DELAY},
        bindings=own,
        foreign=(),
        without=_GUARD_GONE,
        meanwhile=_GUARD_LOST,
        guards=True,
    )
    others = tuple(binding for binding in bound if binding not in own)
    return replace(intake, bindings=others, unbound=unbound), timed


def _route_packing(settings: Settings, name: str) -> RoutePacking:
    headers, delay_headers = settings.headers, (*OWN_HEADERS, *settings.routes[name].dialects)
    drop = dropped(
        (header.encode() for header in delay_headers),
        headers.keep_cc,
        headers.keep_bcc,
        delivery_count=headers.keep_delivery_count,
    )
    most = settings.limits.header_entries + _ADDED_ENTRIES
    return RoutePacking(plan_waits(settings, name), replace(out(settings, name), drop=drop, entries_max=most))


def _own_queues(settings: Settings) -> re.Pattern[bytes]:
    """Return the routing keys that would lead a message to a queue of postdate's by the default exchange."""
    return re.compile(own_queues(settings).pattern.encode())
