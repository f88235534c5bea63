"""What the store, the history and the brokers know, as documents. Pure, but for the brokers' readers of payloads."""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from bridge.app.brokers import broker_of
from bridge.core.journal import FlowRow
from bridge.core.orders import RouteOrder, RouteState
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.desk.leftovers import Intake, Place, Use
from bridge.desk.numbers import RouteStats, Stats
from bridge.desk.past import AuditEntry
from bridge.desk.payload import Opened, text_of
from bridge.desk.rows import Row
from bridge.operate import documents as doc
from bridge.operate.verbs import VERBS
from bridge.operate.verdict import shown_overdue, slow_routes, troubles_among
from bridge.operate.where import ended
from bridge.parking.history import HistoryRow, PastState
from bridge.settings import Settings
from bridge.settings.process_plan import is_canary

#: Bytes of a body that are shown, and of a payload that are read for it: routing key, properties (a frame), body.
BODY_BYTES = 4096
SHOWN_BYTES = 260 + 256 * 1024 + BODY_BYTES
#: What ended the life of a message.
_ENDED = {
    PastState.DELIVERED: "confirmed",
    PastState.CANCELLED: "cancelled",
    PastState.REPLACED: "replaced",
    PastState.DEAD: "dead",
}

# -- messages ---------------------------------------------------------------------------------------------------------


def message_of(row: Row, settings: Settings | None = None) -> doc.MessageFacts:
    """Return the facts of a message. Bytes that are not UTF-8 are written as ``\\xNN``.

    With ``settings``, and the payload as ``SHOWN_BYTES`` reads it, also which attempt of a retry route it waits for.
    """
    facts = {**_facts_of(row, row.arrived_ms), "held": row.held, "tier": "cold" if row.cold else "redis"}
    if row.broker:
        facts |= broker_of(row.broker).payloads.origin_of(row)
    if row.state is State.PARKED and row.at_ms != row.due_ms:
        facts["next_try"] = write_moment(row.at_ms)
    elif row.state is State.CLAIMED:
        facts["lease_until"] = write_moment(row.at_ms) if row.at_ms else None
    elif row.state is State.DEAD:
        facts["died"] = write_moment(row.at_ms)
    if row.first:
        facts["first_copy"] = row.first.decode()
    if settings is not None and (retry := _retry_of(settings, row)):
        facts["retry"] = retry
    return doc.MessageFacts(**facts)


def _facts_of(message: Row | HistoryRow, arrived_ms: int) -> dict[str, Any]:
    """Return what the store and the history both know of a message."""
    return {
        "id": message.id.decode(),
        "state": message.state.value,
        "due": write_moment(message.due_ms),
        "due_ms": message.due_ms,
        "broker": message.broker or None,
        "route": message.route,
        "key": text_of(message.key) or None,
        "size": message.size,
        "tries": message.tries,
        "arrived": write_moment(arrived_ms),
        "arrived_ms": arrived_ms,
        "reason": message.reason or None,
    }


def _retry_of(settings: Settings, row: Row) -> doc.RetryFacts | None:
    """Return which attempt of how many a message of a retry route waits for; None for other messages."""
    route = settings.routes.get(row.route)
    if route is None or not route.retries or not row.broker:
        return None
    try:
        failure = broker_of(row.broker).payloads.failure_of(settings, row.route, row.payload)
    except ValueError:
        return None
    return doc.RetryFacts(
        attempt=failure.attempt,
        attempts=len(settings.schedule_of(row.route)),
        reason=failure.reason or None,
        id=text_of(failure.id or row.first or row.id),
        first_failed=write_moment(row.arrived_ms if failure.first_ms is None else failure.first_ms),
    )


def past_of(entry: HistoryRow) -> doc.PastMessage:
    return doc.PastMessage(
        **_facts_of(entry, entry.received_ms),
        ended=write_moment(entry.ended_ms),
        ended_ms=entry.ended_ms,
        late_ms=entry.late_ms,
        life=life_of(entry),
    )


def life_of(entry: HistoryRow) -> list[doc.LifeEvent]:
    """Return the moments of a message that are known, in their order."""
    moments = [
        ("received", entry.received_ms or None),
        ("due", entry.due_ms or None),
        ("let go", entry.let_go_ms),
        ("claimed", entry.claimed_ms),
        ("published", entry.published_ms),
        (_ENDED[entry.state], entry.ended_ms),
    ]
    known = [(at_ms, place, what) for place, (what, at_ms) in enumerate(moments) if at_ms is not None]
    return [doc.LifeEvent(what=what, at_ms=at_ms) for at_ms, _, what in sorted(known)]


def with_flow(life: Sequence[doc.LifeEvent], flow: Sequence[FlowRow]) -> list[doc.LifeEvent]:
    """Return a life with what the journal knows of the time between, in the order of the moments. Pure."""
    ends = {event.at_ms for event in life if event.what not in ("received", "due")}
    events = [*life]
    for row in flow:
        if row.at_ms not in ends:
            to = f" to {write_moment(row.due_ms)}" if row.due_ms is not None else ""
            by = f" by {row.by}" if row.by else ""
            events.append(doc.LifeEvent(what=f"{row.move}{to}{by}", at_ms=row.at_ms))
    return sorted(events, key=lambda event: event.at_ms)


def life_in_store(row: Row, past: HistoryRow | None) -> list[doc.LifeEvent]:
    """Return the known moments of a message that is in the store."""
    if row.state is State.DEAD and past is not None:
        return life_of(past)
    life = [doc.LifeEvent(what="received", at_ms=row.arrived_ms), doc.LifeEvent(what="due", at_ms=row.due_ms)]
    if row.state is State.DEAD:
        life.append(doc.LifeEvent(what="dead", at_ms=row.at_ms))
    return sorted(life, key=lambda event: event.at_ms)


def departed(entry: HistoryRow, flow: Sequence[FlowRow]) -> doc.MessageDetails:
    hidden = f"the message is no longer in the store: {ended(entry)}"
    return doc.MessageDetails(
        message=past_of(entry),
        properties=None,
        headers=None,
        origin={},
        body=doc.Body(size=entry.size, text=None, truncated=False, hidden=hidden),
        life=with_flow(life_of(entry), flow),
        commands={"show": f"postdate show {entry.id.decode()}"},
    )


def commands_for(row: Row) -> dict[str, str]:
    """Return the commands that do the same as the API, for a person to copy."""
    fit = [verb for verb in VERBS if row.state in verb.states]
    options = {**{str(verb.name): " --in 5m" if verb.takes_due else "" for verb in fit}, "show": ""}
    return {name: f"postdate {name} {row.id.decode()}{option}" for name, option in options.items()}


# -- payloads ---------------------------------------------------------------------------------------------------------


def open_payload(row: Row) -> Opened:
    """Open what was read of a payload. A whole one that its broker's reader refuses is a body as it is, with the
    fault. Raises ``ValueError`` where too little was read."""
    fault: dict[str, object] = {}
    if row.broker:
        try:
            return broker_of(row.broker).payloads.open_payload(row)
        except ValueError as error:
            if len(row.payload) < row.size:
                raise
            fault = {"unreadable": str(error)}
    return Opened({}, {}, fault, row.payload, row.size)


def headers_in(row: Row) -> Iterable[tuple[str, object]]:
    """Iterate over the headers of what was read of a payload. Raises ``ValueError`` where that is too little."""
    try:
        return broker_of(row.broker).payloads.headers_of(row.payload) if row.broker else ()
    except ValueError:
        if len(row.payload) < row.size:
            raise
        return ()


def headers_of(properties: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the headers by name, and the other properties. A repeated name gets `` #2``."""
    rest = {name: value for name, value in properties.items() if name != "headers"}
    given = properties.get("headers") or {}
    if isinstance(given, dict):
        return given, rest
    found: dict[str, Any] = {}
    seen: Counter[str] = Counter()
    for header in given:
        label = name = str(header["name"])
        while label in found:  # counting from 1 for each of thousands of equal names would take seconds
            seen[name] += 1
            label = f"{name} #{seen[name] + 1}"
        found[label] = header["value"]
    return found, rest


def body_of(raw: bytes, size: int) -> doc.Body:
    """Return a body as text where it is UTF-8, else in base64. ``raw`` is as much of ``size`` bytes as is shown."""
    truncated = len(raw) < size
    text = whole_text(raw, truncated)
    coded = None if text is not None else b64encode(raw).decode()
    return doc.Body(size=size, text=text, base64=coded, truncated=truncated, hidden="")


def whole_text(raw: bytes, truncated: bool) -> str | None:
    """Return a body as text, or None where it is not UTF-8. A character that was cut at the end is dropped."""
    try:
        return getincrementaldecoder("utf-8")().decode(raw, not truncated)
    except UnicodeDecodeError:
        return None


# -- numbers ----------------------------------------------------------------------------------------------------------


def stats_of(
    found: Stats,
    well: bool,
    sentence: str,
    without_store: Iterable[str] = (),
    rates: Mapping[str, float] = MappingProxyType({}),
) -> doc.StatsFacts:
    """Return the numbers of the store with the verdict, and what was ordered for its routes. ``rates``: ``max_rate`` of
    the routes that have a limit."""
    late, oldest_ms = shown_overdue(found)
    named = found.by_route.keys() | found.orders.keys()
    return doc.StatsFacts(
        well=well,
        sentence=sentence,
        now=write_moment(found.now_ms),
        parked=found.waiting,
        held=found.held,
        claimed=found.claimed,
        dead=found.dead,
        overdue=late,
        unconfirmed=max(0, late - found.overdue),
        refused_waiting=found.refused,
        cold=found.cold,
        oldest_overdue_ms=oldest_ms,
        next_due=None if found.next_ms is None else write_moment(found.next_ms),
        ever=dict(found.ever),
        memory=memory_of(found),
        bytes_per_message=found.bytes_each,
        refuses_writes=found.refuses_writes,
        warnings=[*found.all_warnings, *slow_routes(found, rates)],
        troubles=troubles_among(found),
        routes=[counts_of(name, found) for name in sorted(named) if not is_canary(name)],
        instances=instances_of(found),
        silent=dict(found.silent),
        without_store=list(without_store),
    )


def memory_of(found: Stats) -> list[doc.MemoryFacts]:
    return [doc.MemoryFacts(server=memory.server, used=memory.used, max=memory.most or None) for memory in found.memory]


def counts_of(name: str, found: Stats) -> doc.RouteCounts:
    """Return the numbers of a route, and its state."""
    counts, order = found.by_route.get(name, RouteStats()), found.orders.get(name)
    state: Any = order.state.value if order else "full" if name in full_routes(found) else RouteState.RUNNING.value
    return doc.RouteCounts(
        name=name,
        state=state,
        **_ordered(order),
        next_due=None if counts.next_due_ms is None else write_moment(counts.next_due_ms),
        **asdict(counts),
    )


def _ordered(order: RouteOrder | None) -> dict[str, Any]:
    """Return who ordered the state of a route, when and why."""
    if order is None:
        return dict.fromkeys(("since", "since_ms", "by", "who", "via", "reason"))
    when = {"since": write_moment(order.since_ms), "since_ms": order.since_ms}
    return {**when, "by": str(order.by), **asdict(order.by), "reason": order.reason or None}


def full_routes(found: Stats) -> set[str]:
    """Return the routes of which a running instance says that they are full (``max_parked``)."""
    reported = (report.get("full") for report in found.instances.values())
    return {str(route) for routes in reported if isinstance(routes, list) for route in routes}


def instances_of(found: Stats) -> list[dict[str, Any]]:
    """Return the report of each running instance. Its lateness is known to a tenth of a millisecond."""
    return [{"name": name, **report, **_lateness(report)} for name, report in found.instances.items()]


def _lateness(report: Mapping[str, object]) -> dict[str, object]:
    late = report.get("lateness_ms")
    if not isinstance(late, dict):
        return {}
    numbers = {name: round(ms, 1) if isinstance(ms, int | float) else ms for name, ms in late.items()}
    return {"lateness_ms": numbers}


def audit_of(entry: AuditEntry) -> doc.AuditFacts:
    return doc.AuditFacts(**entry.as_dict(), at=write_moment(entry.at_ms))


# -- levels -----------------------------------------------------------------------------------------------------------


def level_of(place: Place, state: str, text: str) -> doc.LevelFacts:
    facts = {name: value for name, value in asdict(place).items() if name not in ("use", "kept")}
    return doc.LevelFacts(**facts, state=str(state), text=text)


def intake_of(intake: Intake) -> doc.LevelFacts:
    state = "intake" if intake.readers else "intake, no consumer"
    return level_of(Place(intake.route, intake.kind, intake.name, intake.messages, Use.IN_USE), state, "")
