"""JSON of messages and numbers, as the commands print it and the API answers it."""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from bridge.admin.desk import RouteStats, Row, Stats
from bridge.admin.leftovers import Intake, Place, Use
from bridge.admin.payload import Opened, text_of
from bridge.app.brokers import broker_of
from bridge.app.remote import ToldRow
from bridge.core.orders import RouteOrders, RouteState
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.settings import Settings, mask_url
from bridge.settings.names import dotted, is_secret, leaves, rule_of
from bridge.settings.plan import is_canary
from bridge.settings.urls import DOTS, Url

#: Bytes of a body that are shown, and of a payload that are read for it: routing key, properties (a frame), body.
BODY_BYTES = 4096
SHOWN_BYTES = 260 + 256 * 1024 + BODY_BYTES


def message(row: Row) -> dict[str, Any]:
    """Return the facts of a message as JSON values. Bytes that are not UTF-8 are written as ``\\xNN``."""
    if isinstance(row, ToldRow):
        return dict(row.facts)
    facts: dict[str, Any] = {
        "id": row.id.decode(),
        "state": row.state.value,
        "due": write_moment(row.due_ms),
        "due_ms": row.due_ms,
        "broker": row.broker or None,
        "route": row.route,
        **(broker_of(row.broker).origin_of(row) if row.broker else {}),
        "key": text_of(row.key) or None,
        "size": row.size,
        "tries": row.tries,
        "arrived": write_moment(row.arrived_ms),
        "arrived_ms": row.arrived_ms,
        "reason": row.reason or None,
        "held": row.held,
    }
    if row.state is State.PARKED and row.at_ms != row.due_ms:
        facts["next_try"] = write_moment(row.at_ms)
    elif row.state is State.CLAIMED:
        facts["lease_until"] = write_moment(row.at_ms) if row.at_ms else None
    elif row.state is State.DEAD:
        facts["died"] = write_moment(row.at_ms)
    if row.first:
        facts["first_copy"] = row.first.decode()
    return facts


def retry(settings: Settings, row: Row) -> dict[str, Any]:
    """Return which attempt of how many a message of a retry route waits for; nothing for other messages."""
    route = settings.routes.get(row.route)
    if route is None or not route.retries or not row.broker or isinstance(row, ToldRow):
        return {}
    try:
        failure = broker_of(row.broker).failure_of(settings, row.route, row.payload)
    except ValueError:
        return {}
    return {
        "retry": {
            "attempt": failure.attempt,
            "attempts": len(settings.schedule_of(row.route)),
            "reason": failure.reason or None,
            "first_failed": write_moment(row.arrived_ms if failure.first_ms is None else failure.first_ms),
        }
    }


def open_payload(row: Row) -> Opened:
    """Open what was read of a payload. Raises ``ValueError`` where that is too little."""
    if isinstance(row, ToldRow) and row.opened is not None:
        return row.opened
    if not row.broker:
        return Opened({}, {}, {}, row.payload, row.size)
    return broker_of(row.broker).open_payload(row)


def body(raw: bytes, size: int) -> dict[str, Any]:
    """Return a body as text where it is UTF-8, else in base64. ``raw`` is as much of ``size`` bytes as is shown."""
    truncated = len(raw) < size
    text = whole_text(raw, truncated)
    shown = {"text": text} if text is not None else {"base64": b64encode(raw).decode()}
    return {"size": size, "truncated": truncated, **shown}


def whole_text(raw: bytes, truncated: bool) -> str | None:
    """Return a body as text, or None where it is not UTF-8. A character that was cut at the end is dropped."""
    try:
        return getincrementaldecoder("utf-8")().decode(raw, not truncated)
    except UnicodeDecodeError:
        return None


def stats(found: Stats, orders: RouteOrders = MappingProxyType({})) -> dict[str, Any]:
    """Return the numbers of the store, and what was ordered for its routes."""
    return {
        "now": write_moment(found.now_ms),
        "parked": found.parked,
        "held": found.held,
        "claimed": found.claimed,
        "dead": found.dead,
        "overdue": found.overdue,
        "refused_waiting": found.refused,
        "oldest_overdue_ms": overdue_ms(found),
        "next_due": None if found.next_due_ms is None else write_moment(found.next_due_ms),
        "ever": dict(found.ever),
        "memory": [{"server": one.server, "used": one.used, "max": one.most or None} for one in found.memory],
        "bytes_per_message": found.bytes_each,
        "warnings": list(found.warnings),
        "routes": [route(name, found, orders) for name in route_names(found, orders)],
        "instances": instances(found),
    }


def route_names(found: Stats, orders: RouteOrders) -> list[str]:
    """Return the routes with messages or an order, without the canaries."""
    return sorted(name for name in found.by_route.keys() | orders.keys() if not is_canary(name))


def route(name: str, found: Stats, orders: RouteOrders) -> dict[str, Any]:
    """Return the numbers of a route, and its state."""
    counts, order = found.by_route.get(name, RouteStats()), orders.get(name)
    return {
        "name": name,
        "state": order.state.value if order else "full" if name in full_routes(found) else RouteState.RUNNING.value,
        "since": write_moment(order.since_ms) if order else None,
        "since_ms": order.since_ms if order else None,
        "by": order.by if order else None,
        "reason": (order.reason if order else "") or None,
        "parked": counts.parked,
        "held": counts.held,
        "dead": counts.dead,
        "overdue": counts.overdue,
        "oldest_overdue_ms": counts.oldest_overdue_ms,
        "next_due": None if counts.next_due_ms is None else write_moment(counts.next_due_ms),
        "next_due_ms": counts.next_due_ms,
    }


def full_routes(found: Stats) -> set[str]:
    """Return the routes of which a running instance says that they are full (``max_parked``)."""
    told = (report.get("full") for report in found.instances.values())
    return {str(route) for routes in told if isinstance(routes, list) for route in routes}


def instances(found: Stats) -> list[dict[str, Any]]:
    """Return the report of each running instance."""
    return [{"name": name, **report, **lateness(report)} for name, report in found.instances.items()]


def settings_view(settings: Settings) -> list[dict[str, Any]]:
    """Return every setting with its value as in a file, and where it was read from. Secrets are hidden."""
    found = []
    for path, field in leaves(settings.routes):
        table: Any = settings.routes[path[1]] if len(path) == 3 else getattr(settings, path[0])
        value = getattr(table, path[-1])
        name = dotted(path)
        source = settings.origin.sources.get(name, "default")
        found.append({"name": name, "value": _setting(field, value), "source": source, "secret": is_secret(field)})
    return found


def _setting(field: FieldInfo, value: Any) -> Any:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return mask_url(text) if isinstance(rule_of(field), Url) else DOTS if text else ""
    rule = rule_of(field)
    return value if rule is None or isinstance(value, bool | tuple) else rule.write(value)


def lateness(report: Mapping[str, object]) -> dict[str, object]:
    """Return an instance's lateness to a tenth of a millisecond, which is as exact as it is known."""
    late = report.get("lateness_ms")
    if not isinstance(late, dict):
        return {}
    numbers = {name: round(ms, 1) if isinstance(ms, int | float) else ms for name, ms in late.items()}
    return {"lateness_ms": numbers}


def overdue_ms(found: Stats) -> int:
    """Return for how long the oldest overdue message has been due; 0 for none."""
    return max(0, found.now_ms - found.next_due_ms) if found.next_due_ms is not None else 0


def level(one: Place, state: str, text: str) -> dict[str, Any]:
    """Return a queue or topic in which messages wait."""
    return {
        "route": one.route,
        "kind": one.kind,
        "name": one.name,
        "messages": one.messages,
        "state": str(state),
        "text": text,
        "is_dead": one.is_dead,
        "uncounted": one.uncounted,
    }


def intake(one: Intake) -> dict[str, Any]:
    """Return an intake."""
    state = "intake" if one.readers else "intake, no consumer"
    return level(Place(one.route, one.kind, one.name, one.messages, Use.IN_USE), state, "")
