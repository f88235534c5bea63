"""Pages of messages: filtered, with a cursor, and bounded in what they look at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.admin.desk import Cursor, Desk, Filter, Row
from bridge.admin.past import PastCursor, PastFilter
from bridge.app.views import SHOWN_BYTES, open_payload
from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.parking.history import HistoryRow
from bridge.parking.identity import shard_of

#: What one page may look at: messages, and seconds. A page that stops there has a cursor to go on.
LOOKED_MAX = 50_000
LOOK_S = 0.15


class Page(NamedTuple):
    """Messages of a list. ``after`` is where the next page begins, None at the end of the list."""

    rows: list[Row]
    after: Cursor | None
    looked_at: int


@dataclass(frozen=True)
class Wanted:
    """A filter with what only an open payload tells. ``header`` is a name and a text, "" for any text."""

    base: Filter = field(default_factory=Filter)
    header: tuple[str, str] | None = None


async def page(desk: Desk, state: State, wanted: Wanted, after: Cursor | None, limit: int) -> Page:
    """Return the next messages of a list that match."""
    rows: list[Row] = []
    looked_at, until = 0, time.monotonic() + LOOK_S
    last: Cursor | None = None
    async for row in desk.rows(state, wanted.base.narrow, after):
        if len(rows) == limit or looked_at >= LOOKED_MAX or ((rows or looked_at > 1000) and time.monotonic() > until):
            return Page(rows, last, looked_at)
        looked_at += 1
        last = Cursor(row.at_ms, row.id)
        if await takes(desk, row, wanted):
            rows.append(row)
    return Page(rows, None, looked_at)


class PastPage(NamedTuple):
    """Entries of the history. ``after`` is where the next page begins, None at its end."""

    rows: list[HistoryRow]
    after: Cursor | None
    looked_at: int


async def past_page(desk: Desk, wanted: PastFilter, after: Cursor | None, limit: int) -> PastPage:
    """Return the next entries of the history that match, newest first."""
    rows: list[HistoryRow] = []
    looked_at, until = 0, time.monotonic() + LOOK_S
    last: Cursor | None = None
    if not desk.limits.most:
        return PastPage(rows, None, 0)
    narrow = PastFilter(from_ms=wanted.from_ms, before_ms=wanted.before_ms)
    async for row in desk.history(narrow, PastCursor(after.at_ms, after.id) if after else None):
        if len(rows) == limit or looked_at >= LOOKED_MAX or ((rows or looked_at > 1000) and time.monotonic() > until):
            return PastPage(rows, last, looked_at)
        looked_at += 1
        last = Cursor(row.ended_ms, row.id)
        if wanted.takes(row):
            rows.append(row)
    return PastPage(rows, None, looked_at)


async def with_key(desk: Desk, routes: Sequence[str], state: State, wanted: Wanted) -> Page | None:
    """Return the messages of a list with a key, through the key index; None where it does not list them."""
    key, route = wanted.base.key, wanted.base.route
    if key is None:
        return None
    ids: list[bytes] = []
    for name in [route] if route is not None else routes:
        found = await desk.find(name, key)
        if found.unlisted:
            return None
        ids += found.ids
    looked = await desk.look(ids, SHOWN_BYTES)
    rows = [row for row in looked if row.state is state and await takes(desk, row, wanted)]
    return Page(sorted(rows, key=lambda row: (row.at_ms, row.id)), None, len(ids))


async def takes(desk: Desk, row: Row, wanted: Wanted) -> bool:
    """Return whether a message matches."""
    return wanted.base.takes(row) and await _has_header(desk, row, wanted.header)


async def _has_header(desk: Desk, row: Row, header: tuple[str, str] | None) -> bool:
    """Return whether a message has a header. One that has gone meanwhile has none."""
    if header is None:
        return True
    try:
        properties = open_payload(row).properties
    except ValueError:
        whole = await desk.look([row.id], -1)
        properties = open_payload(whole[0]).properties if whole else {}
    headers = properties.get("headers")
    if not isinstance(headers, dict) or header[0] not in headers:
        return False
    value = headers[header[0]]
    return not header[1] or (value if isinstance(value, str) else str(value)) == header[1]


def write_cursor(after: Cursor | None) -> str | None:
    """Return a cursor as text."""
    return None if after is None else f"{after.at_ms}-{after.id.decode()}"


def read_cursor(text: str | None) -> Cursor | None:
    """Read a cursor. Raises ``SettingsError`` for what is none."""
    if text is None:
        return None
    moment, _, one = text.rpartition("-")
    try:
        shard_of(one.encode())
        if not (moment.isascii() and moment.removeprefix("-").isdigit()) or len(moment) > 16:
            raise ValueError
        return Cursor(int(moment), one.encode())
    except ValueError:
        raise SettingsError("The cursor is not valid. Use the member next of the page before.") from None
