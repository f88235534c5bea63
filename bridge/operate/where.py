"""Where is my message? Answers for an id or a key over what the store holds and what left it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from bridge.core.ports import Found
from bridge.delay.duration import write_moment
from bridge.desk.past import PastFilter
from bridge.desk.protocol import Desk
from bridge.desk.rows import Row
from bridge.parking.history import HistoryRow, PastState
from bridge.parking.identity import shard_of

#: Bytes of a payload that are read for a search result, and the most messages that a search by key returns.
_READ_BYTES, _FOUND_MAX = 1024, 50
#: Ids of one command whose end is looked up.
_EXPLAINED_MAX = 20
_TOO_MANY = "the key of too many messages to show here: {}. `postdate list --key KEY` lists them"
_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


class Whereabouts(NamedTuple):
    """What is known: messages in the store, entries of the history (newest first), and a text: where both are empty, or
    where too many messages have the key."""

    rows: list[Row]
    past: list[HistoryRow]
    text: str = ""


async def where_is(desk: Desk, routes: Iterable[str], wanted: bytes) -> Whereabouts:
    """Find messages by id, and by key on these routes. The history is searched on all routes."""
    rows: dict[bytes, Row] = {}
    past: list[HistoryRow] = []
    unlisted = 0
    with suppress(ValueError):
        shard_of(wanted)
        rows = {row.id: row for row in await desk.look([wanted], _READ_BYTES)}
        past = await past_entries(desk, PastFilter(id=wanted))
    if not rows and not past:
        ids, unlisted = Found.merged([await desk.find(route, wanted) for route in routes])
        rows = {row.id: row for row in await desk.look(ids[:_FOUND_MAX], _READ_BYTES)}
        past = await past_entries(desk, PastFilter(key=wanted))
    past = [entry for entry in past if entry.id not in rows or entry.state is not PastState.DEAD]
    text = _TOO_MANY.format(unlisted) if unlisted else "" if rows or past else await not_seen(desk)
    return Whereabouts(list(rows.values()), past, text)


async def past_entries(desk: Desk, wanted: PastFilter) -> list[HistoryRow]:
    """Return entries of the history, newest first, at most 50."""
    if not desk.limits.most:
        return []
    found: list[HistoryRow] = []
    async for entry in desk.history(wanted):
        found.append(entry)
        if len(found) == _FOUND_MAX:
            break
    return found


async def ends(desk: Desk, ids: Sequence[bytes]) -> dict[bytes, HistoryRow]:
    """Return the last entry of the history for each of these ids that has one. Only the first 20 ids are looked up."""
    found = {}
    for message_id in ids[:_EXPLAINED_MAX]:
        for entry in (await past_entries(desk, PastFilter(id=message_id)))[:1]:
            found[message_id] = entry
    return found


async def not_seen(desk: Desk) -> str:
    """Return how far back a message is not known, without a full stop."""
    if not desk.limits.most:
        return "the history is switched off (history.max = 0), so nothing is known about messages that left the store"
    # In this order: a clock that is read first would make the history seem a little shorter than history.keep.
    since_ms, now_ms = await desk.history_since_ms(), await desk.now_ms()
    if now_ms - since_ms >= desk.limits.keep_ms:
        return f"not seen in the last {_span(desk.limits.keep_ms)}"
    begin = "The history begins there (history.max, or Redis was emptied)"
    return f"not seen since {write_moment(since_ms)}. {begin}"


def _span(ms: int) -> str:
    """Return a time in whole hours or minutes. Pure."""
    if ms >= _HOUR_MS:
        return f"{ms // _HOUR_MS} h"
    return f"{max(1, ms // _MINUTE_MS)} min"


def ended(entry: HistoryRow) -> str:
    """Return what became of a message, without a full stop. Pure."""
    at = write_moment(entry.ended_ms)
    match entry.state:
        case PastState.DELIVERED:
            return f"it was delivered at {at}"
        case PastState.REPLACED:
            return f"it was replaced at {at} by a message with the same key"
        case PastState.CANCELLED:
            return f"it was cancelled at {at}{f' ({entry.reason})' if entry.reason else ''}"
        case PastState.DEAD:
            return f"it became a dead letter at {at}"
