"""A message as the command line shows it."""

from __future__ import annotations

from typing import Any

from bridge.admin.desk import Row
from bridge.admin.payload import text_of
from bridge.app.brokers import broker_of
from bridge.core.state import State
from bridge.delay.duration import write_duration, write_moment


def as_dict(row: Row) -> dict[str, Any]:
    """The facts of a message, in values that JSON has. Bytes that are not UTF-8 are written as ``\\xNN``."""
    facts: dict[str, Any] = {
        "id": row.id.decode(),
        "state": row.state.value,
        "due": write_moment(row.due_ms),
        "due_ms": row.due_ms,
        "route": row.route,
        **(broker_of(row.broker).origin_of(row) if row.broker else {}),
        "key": text_of(row.key) or None,
        "size": row.size,
        "tries": row.tries,
        "arrived": write_moment(row.arrived_ms),
        "reason": row.reason or None,
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


def wait(due_ms: int, now_ms: int) -> str:
    """How far a moment is, for people: "in 4m 12s", "3s ago"."""
    away = abs(due_ms - now_ms)
    rounded = write_duration(away if away < 10_000 else away // 1000 * 1000)
    return f"in {rounded}" if due_ms > now_ms else f"{rounded} ago"


def away(moment_ms: int, now_ms: int, past: str) -> str:
    """How far a moment is, as short as can be: two units at most. ``past`` is how it is said of one that has passed."""
    ms = abs(moment_ms - now_ms)
    short = " ".join(write_duration(ms if ms < 1000 else ms // 1000 * 1000).split()[:2])
    return f"in {short}" if moment_ms > now_ms else past.format(short)
