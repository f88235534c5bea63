"""What a verb does to messages, and the result for each: its new state, or why nothing was done.

The commands and the API both act through this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from bridge.admin.desk import Desk, Row
from bridge.admin.where import ended, ends, not_seen
from bridge.core.errors import FINE, NOT_FOUND, REFUSED
from bridge.core.orders import RouteState, routes_that
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.delay.trust import is_cancellation
from bridge.parking.history import HistoryRow

BEING_SENT = "it is being sent now. Look again in a few seconds with `postdate show`"
UNKNOWN = "no message has this id"
#: Why the history says that a message was cancelled, where the operator gave no reason.
_BY_OPERATOR = "by an operator"
DEAD = "it is a dead letter. Use `postdate retry`"
_PARKED = "it is parked, not dead. `postdate deliver` makes it due now"
_CANCELLATION = (
    "it is a cancellation that was refused, and is never delivered. Delete it with `postdate cancel`, and cancel "
    "the message it meant with `postdate cancel --key`"
)


class MessageResult(NamedTuple):
    """One message: its state now, and why a verb refused it, with the exit code. State "gone": it left the store."""

    id: bytes
    state: str
    text: str = ""
    code: int = FINE
    due_ms: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {
            "id": self.id.decode(),
            "state": self.state,
            "due": None if self.due_ms is None else write_moment(self.due_ms),
            "due_ms": self.due_ms,
            "text": self.text,
            "code": self.code,
        }


async def cancel(desk: Desk, ids: Sequence[bytes], reason: str = "") -> list[MessageResult]:
    """Delete parked messages and dead letters. ``reason`` is for the history."""
    words = await desk.cancel(ids, reason or _BY_OPERATOR)
    gone = {"parked": "gone", "dead": "gone"}
    return await _explained(desk, [_judged(one, words[one], gone, {"claimed": BEING_SENT}) for one in ids])


async def reschedule(desk: Desk, ids: Sequence[bytes], due_ms: int) -> list[MessageResult]:
    """Move parked messages to a due time (Unix ms); 0 and the past mean now."""
    now = due_ms <= await desk.now_ms()
    words = await desk.reschedule(ids, 0 if now else due_ms)
    refused = {"claimed": BEING_SENT, "dead": DEAD}
    return await _read_again(desk, [_judged(one, words[one], {"parked": "parked"}, refused) for one in ids], now)


async def deliver(desk: Desk, ids: Sequence[bytes]) -> list[MessageResult]:
    """Make parked messages due now."""
    return await reschedule(desk, ids, 0)


async def retry(desk: Desk, ids: Sequence[bytes]) -> list[MessageResult]:
    """Park dead letters again, due now. Refused cancellations stay: they are never delivered."""
    rows = await desk.look(ids, 0)
    states = {row.id: row.state.value for row in rows}
    never = {row.id for row in rows if is_dead_cancellation(row)}
    await desk.retry([one for one in ids if states.get(one) == "dead" and one not in never])
    refused = {"claimed": BEING_SENT, "parked": _PARKED}
    results = [
        MessageResult(one, "dead", _CANCELLATION, REFUSED)
        if one in never
        else _judged(one, states.get(one, "none"), {"dead": "parked"}, refused)
        for one in ids
    ]
    return await _read_again(desk, results, True)


def is_dead_cancellation(row: Row) -> bool:
    """Return whether this is a cancellation that was refused. Pure."""
    return row.state is State.DEAD and is_cancellation(row.reason)


def _judged(one: bytes, word: str, done: Mapping[str, str], refused: Mapping[str, str]) -> MessageResult:
    """Return the result for the state that the store answered, ``word``. Pure.

    ``done`` maps it to the new state, ``refused`` to the reason why nothing was done.
    """
    if word in done:
        return MessageResult(one, done[word])
    if word == "none":
        return MessageResult(one, "none", UNKNOWN, NOT_FOUND)
    return MessageResult(one, word, refused[word], REFUSED)


async def _explained(desk: Desk, results: Sequence[MessageResult]) -> list[MessageResult]:
    """Say of messages that are not in the store what became of them, as far as the history tells."""
    missing = [one.id for one in results if one.state == "none"]
    if not missing:
        return list(results)
    known, unknown = await ends(desk, missing), f"{UNKNOWN}: {await not_seen(desk)}"
    return [_ended(one, known.get(one.id), unknown) if one.state == "none" else one for one in results]


def _ended(one: MessageResult, entry: HistoryRow | None, unknown: str) -> MessageResult:
    if entry is None:
        return one._replace(text=unknown)
    return one._replace(state=entry.state.value, text=ended(entry), code=REFUSED)


async def _read_again(desk: Desk, results: Sequence[MessageResult], due_now: bool) -> list[MessageResult]:
    """Read the parked ones again, so that the result shows what is stored: a message that became due now may be claimed
    or gone by then. One of a paused route waits until that is resumed."""
    rows = {row.id: row for row in await desk.look([one.id for one in results if one.state == "parked"], 0)}
    paused = routes_that(await desk.orders(), RouteState.PAUSED) if rows and due_now else frozenset()
    results = [_as_stored(one, rows.get(one.id), paused) if one.state == "parked" else one for one in results]
    return await _explained(desk, results)


def _as_stored(one: MessageResult, row: Row | None, paused: Set[str]) -> MessageResult:
    if row is None:
        return one._replace(state="gone")
    waits = row.state is State.PARKED and row.route in paused
    text = f"route {row.route} is paused, so it waits until `postdate resume {row.route}`" if waits else ""
    return one._replace(state=row.state.value, due_ms=row.due_ms, text=text)
