"""Edits a message of a route without a store for its next hop: a level, its destination, or the dead letters.

What this file drops and adds is the only difference from what the producer wrote. It always drops x-death: that would
list the level queues, and RabbitMQ 3 drops a message at a queue that x-death already lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from adapters.rabbitmq.levels.waits import LEVEL_HEADER, STEP_HEADERS, Waits
from adapters.rabbitmq.outgoing import AUDIT_HEADERS, Out
from adapters.rabbitmq.raw.expiration import (
    EXPIRATION_HEADER,
    expiration_of,
    put_aside,
    taken_last,
    with_expiration,
    without_expiration,
)
from adapters.rabbitmq.raw.fields import VOID, entry, long_entry, text_entry
from adapters.rabbitmq.raw.payload import pack, unpack
from adapters.rabbitmq.raw.properties import NATIVE_DELAY, TooManyEntries, UnreadableTable, edit
from bridge.core.message import Delivery
from bridge.core.reasons import Reason
from bridge.delay import ladder
from bridge.delay.header import NATIVE
from bridge.delay.levels import Bury, Hold, Move
from bridge.pipeline.relay import Owed, Packing, Parcel

REASON_HEADER = b"x-delay-reason"
_DUE = b"x-delay-due"
#: The header of a step in which a message waits.
_STEP = re.compile(rb"\x0fx-delay-step-(\d\d)V")
#: RabbitMQ's clock says when a message of mode native is due. It and postdate's may differ by this without harm.
_CLOCKS_DIFFER_MS = 1000
#: How a message leaves in which the sink changes nothing more.
_UNCHANGED = Out("", frozenset(), drop_user_id=False, audit=False, plugin=False)
_OURS = frozenset({EXPIRATION_HEADER, *STEP_HEADERS})


@dataclass(frozen=True)
class RoutePacking:
    """One route: its queues, and how its messages leave. The edits of ``out`` are made here, and not by the sink."""

    waits: Waits
    out: Out


def places(routes: Mapping[str, RoutePacking]) -> dict[str, Out]:
    """Return how a parcel leaves to each place."""
    found = {}
    for route, packing in routes.items():
        waits = packing.waits
        for exchange in (*waits.levels.values(), *waits.ladder, *filter(None, [waits.native]), waits.dead):
            found[exchange] = replace(_UNCHANGED, exchange=exchange)
        out = packing.out
        found[_target_of(route)] = replace(_UNCHANGED, exchange=out.exchange, loops=out.loops, queues=out.queues)
    return found


def _target_of(route: str) -> str:
    return f"target of {route}"


class RabbitPacking(Packing):
    """Packs the messages of routes without a store.

    ``routes`` are by name. ``due_routes`` gives the route of each ``Delivery.route`` that stands for a due queue.
    """

    def __init__(self, routes: Mapping[str, RoutePacking], due_routes: Mapping[str, str]) -> None:
        self._routes = routes
        self._due_routes = due_routes
        self._passed = {due: tuple(map(_noted, routes[name].waits.ladder)) for due, name in due_routes.items()}

    def route_of(self, delivery: Delivery) -> str:
        """Return the route of a delivery, whether from its intake or its due queue."""
        return self._due_routes.get(delivery.route, delivery.route)

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        """Return a delivery as it is sent on. Raises ``ValueError`` for unreadable properties."""
        route = self.route_of(delivery)
        routing_key, properties, body = unpack(delivery.payload)
        packing, waited = self._routes[route], delivery.route in self._due_routes
        match move:
            case Hold(wait_ms):
                place, headers = _waiting_place(packing.waits, wait_ms, due_ms)
                expiration = expiration_of(properties) or (_taken(properties, packing.waits) if waited else None)
                edited = _held(properties, packing, due_ms, headers, expiration)
            case Bury(None):
                place, edited = packing.waits.dead, properties
                with suppress(UnreadableTable):
                    edited = _dead(properties, b"", packing.out.entries_max)
            case Bury(Reason() as reason):
                place = packing.waits.dead
                text = str(reason).encode(errors="backslashreplace")[:2000]
                edited = _dead(properties, text_entry(REASON_HEADER, text), packing.out.entries_max)
            case _:
                if delivery.fault:
                    raise UnreadableTable(delivery.fault)
                place = _target_of(route)
                by_rabbitmq = waited and LEVEL_HEADER in delivery.headers
                expiration = _taken(properties, packing.waits) if by_rabbitmq else put_aside(properties)
                added_ms = None if waited else due_ms
                edited = _delivered(properties, packing, added_ms, waited and not by_rabbitmq, expiration)
        return Parcel(place, pack(routing_key, edited, body))

    def owed(self, delivery: Delivery) -> Owed | None:
        """Return the delay that a delivery still has to wait: a queue was missing, or its expiration ended it early."""
        native = self._routes[self.route_of(delivery)].waits.native  # in other modes the header is a producer's
        if left_ms := self._left_out(delivery) or (_too_early(delivery) if native else 0):
            return Owed(left_ms, queue_gone=True)
        cut_short_ms = self._cut_short(delivery)
        return None if cut_short_ms is None else Owed(cut_short_ms, queue_gone=False)

    def _cut_short(self, delivery: Delivery) -> int | None:
        """Return the wait (ms) that the message's own expiration ended early: it is still owed.

        Only what RabbitMQ alone brought to its level can have had an expiration. The level is the one whose queue it
        left, whatever its header says.
        """
        if LEVEL_HEADER not in delivery.headers:
            return None
        try:
            taken = taken_last(unpack(delivery.payload).properties)
        except UnreadableTable:  # ``parcel`` raises it
            return None
        if taken is None:
            return None
        queue, waited_ms = taken[0], int(taken[1])
        levels = self._routes[self.route_of(delivery)].waits.levels
        return next((ms for ms, name in levels.items() if name.encode() == queue and waited_ms < ms), None)

    def _left_out(self, delivery: Delivery) -> int:
        """Return the part of its wait (ms) that a delivery has not had, because one of its ladder queues was missing.

        A step whose queue is missing passes its messages on at once, and RabbitMQ does not list it in x-death.
        """
        passed = self._passed.get(delivery.route, ())
        if not passed:
            return 0
        properties = unpack(delivery.payload).properties
        named = {int(step) for step in _STEP.findall(properties)}
        missed = [step for step in named.intersection(range(len(passed))) if passed[step] not in properties]
        return sum(map(ladder.step_ms, missed))

    def may_go_back(self, delivery: Delivery) -> bool:
        """Return whether RabbitMQ keeps a delivery that it gets back.

        Not in a due queue: there it keeps its age and expires at once, and without a consumer RabbitMQ hides it.
        """
        return delivery.route not in self._due_routes


def _too_early(delivery: Delivery) -> int:
    """Return the part of its wait (ms) that RabbitMQ did not hold a delivery; 0 within what clocks may differ by.

    A cluster does not delay before its last node runs 4.4.
    """
    due_ms = delivery.headers.get(NATIVE)
    left_ms = due_ms - delivery.arrived_ms if isinstance(due_ms, int) else 0
    return left_ms if left_ms > _CLOCKS_DIFFER_MS else 0


def _noted(step: str) -> bytes:
    """Return how x-death lists the queue of a step: without its digest, which previous settings may differ in."""
    name = step.encode()
    return b"\x05queueS" + len(name).to_bytes(4, "big") + name[: name.rindex(b".") + 1]


def _dead(properties: bytes, reason: bytes, entries_max: int | None) -> bytes:
    """Return the properties as they came, without what would act again: a dead letter must not expire, be refused, or
    wait in RabbitMQ 4.4."""
    expiration = expiration_of(properties)
    added, drop = reason, frozenset({REASON_HEADER, NATIVE_DELAY})
    if expiration is not None:
        properties, drop = without_expiration(properties), drop | {EXPIRATION_HEADER}
        added += text_entry(EXPIRATION_HEADER, expiration)
    try:
        return edit(properties, drop, True, added, entries_max)
    except TooManyEntries:  # then keep the producer's headers of the same names; postdate's follow them
        return edit(properties, frozenset({NATIVE_DELAY}), True, added)


def _waiting_place(waits: Waits, wait_ms: int, due_ms: int) -> tuple[str, bytes]:
    """Return the exchange of a level, or of the highest step of a ladder with the headers that name all its steps, or
    of the queue that delays by itself with the header that names the moment."""
    if waits.native:
        return waits.native, long_entry(NATIVE_DELAY, due_ms)
    if waits.levels:
        return waits.levels[wait_ms], b""
    steps = ladder.steps(wait_ms // 1000)
    return waits.ladder[steps[0]], b"".join(entry(STEP_HEADERS[step], VOID, b"") for step in steps)


def _taken(properties: bytes, waits: Waits) -> bytes | None:
    """Return the expiration that a message had until RabbitMQ dead-lettered it from its level."""
    queue, expiration = taken_last(properties) or (b"", None)
    return expiration if queue.startswith(waits.level.encode()) else None


def _held(properties: bytes, packing: RoutePacking, due_ms: int, headers: bytes, expiration: bytes | None) -> bytes:
    """Return the properties without the delay, which would act again, and without an expiration, which is early."""
    if expiration is not None:
        headers += text_entry(EXPIRATION_HEADER, expiration)
        properties = without_expiration(properties)
    drop = packing.out.drop | _OURS
    if packing.out.audit:
        headers += long_entry(_DUE, due_ms)
        drop |= AUDIT_HEADERS
    return edit(properties, drop, packing.out.drop_user_id, headers, packing.out.entries_max)


def _delivered(
    properties: bytes, packing: RoutePacking, due_ms: int | None, keep_audit: bool, expiration: bytes | None
) -> bytes:
    """Return the properties as the producer wrote them, with their expiration.

    ``keep_audit``: postdate wrote x-delay-due when the message was held. It is not of an earlier delivery.
    """
    drop = packing.out.drop | _OURS
    if packing.out.audit and not keep_audit:
        drop |= AUDIT_HEADERS
    added = long_entry(_DUE, due_ms) if packing.out.audit and due_ms is not None else b""
    edited = edit(properties, drop, packing.out.drop_user_id, added, packing.out.entries_max)
    if expiration is not None and expiration_of(edited) is None:
        edited = with_expiration(edited, expiration)
    return edited
