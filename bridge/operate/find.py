"""Messages by criteria: pages with a cursor that look at a bounded number, and all that match."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import fsdecode
from sys import maxsize
from typing import Any, Generic, NamedTuple, TypeVar

from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.desk.past import PastCursor, PastFilter
from bridge.desk.protocol import Desk
from bridge.desk.rows import Cursor, Filter, Row
from bridge.operate.describe import SHOWN_BYTES, headers_in
from bridge.operate.moments import read_border_ms
from bridge.parking.history import HistoryRow
from bridge.parking.identity import shard_of

T = TypeVar("T")

#: What one page may look at: messages, and seconds. A page that stops there has a cursor to go on. It looks for longer
#: while it has found nothing.
LOOKED_MAX = 50_000
LOOK_S, LOOK_EMPTY_S = 0.15, 1.0
#: A look gives way to other work this often.
_TURN_S = 0.005


class Page(NamedTuple, Generic[T]):
    """Messages of a list, or entries of the history. ``after`` is where the next page begins, None at the end."""

    rows: list[T]
    after: Cursor | None
    looked_at: int


class Scan:
    """One pass through many messages: how many it has seen, and when it must stop."""

    def __init__(self) -> None:
        self.seen = 0
        self._began_s = self._turn_s = time.monotonic()

    def over(self, found: int) -> bool:
        """Return whether it has looked for long enough; at one message at least."""
        limit_s = LOOK_S if found else LOOK_EMPTY_S
        return self.seen >= LOOKED_MAX or (self.seen > 0 and time.monotonic() - self._began_s > limit_s)

    async def saw(self) -> None:
        """Count a message. Give way to other work where that is due: pages of rows come without a wait."""
        self.seen += 1
        if time.monotonic() - self._turn_s > _TURN_S:
            await asyncio.sleep(0)
            self._turn_s = time.monotonic()


@dataclass(frozen=True)
class Criteria:
    """A filter with what only an open payload tells. ``header`` is a name and a text, "" for any text.

    ``seen`` returns headers as the caller sees them: a filter must not tell what is hidden, by trial.
    """

    base: Filter = field(default_factory=Filter)
    header: tuple[str, str] | None = None
    seen: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

    def given(self) -> dict[str, Any]:
        """Return the criteria that restrict, as the API takes them."""
        base = self.base
        members = {
            "route": base.route,
            "key": fsdecode(base.key) if base.key else None,
            "due_after": _text(base.due_from_ms),
            "due_before": _text(base.due_before_ms),
            "reason": base.reason,
            "header": "=".join(filter(None, self.header)) if self.header else None,
            "min_size": base.min_size,
            "min_tries": base.min_tries,
            "parked_after": _text(base.parked_from_ms),
            "parked_before": _text(base.parked_before_ms),
        }
        return {name: value for name, value in members.items() if value}


def _text(ms: int | None) -> str | None:
    return None if ms is None else str(ms)


def as_an_option(name: str) -> str:
    """Return what a command calls a criterion."""
    return f"--{name.replace('_', '-')}"


def read_criteria(now_ms: int, word: Callable[[str], str], key: bytes | None, given: Mapping[str, Any]) -> Criteria:
    """Read the criteria of a list, ``given`` by the names of ``Criteria.given``. ``word`` is how errors call them: as
    they are (``str``) in the API.

    Raises ``SettingsError``.
    """

    def border_ms(name: str, back: bool = False) -> int | None:
        return read_border_ms(word(name), given.get(name), now_ms, back)

    base = Filter(
        given.get("route"),
        key,
        border_ms("due_after"),
        border_ms("due_before"),
        given.get("reason"),
        given.get("min_size", 0),
        given.get("min_tries", 0),
        border_ms("parked_after", back=True),
        border_ms("parked_before", back=True),
    )
    name, _, value = (given.get("header") or "").partition("=")
    return Criteria(base, (name, value) if name else None)


async def matching(
    desk: Desk, routes: Sequence[str], state: State, wanted: Criteria, after: Cursor | None = None
) -> AsyncIterator[tuple[Row, bool]]:
    """Iterate over the messages that are looked at, from the one that follows ``after``, and whether each matches."""
    listed = await with_key(desk, routes, state, wanted, after)
    if listed is not None:
        for row in listed.rows:
            yield row, True
        return
    scan = Scan()
    async for row in desk.rows(state, wanted.base.narrow, after):
        await scan.saw()
        yield row, await takes(desk, row, wanted)


async def page(desk: Desk, state: State, wanted: Criteria, after: Cursor | None, limit: int) -> Page[Row]:
    """Return the next messages of a list that match."""
    found = desk.rows(state, wanted.base.narrow, after)
    return await _page(found, _place, lambda row: takes(desk, row, wanted), limit)


async def past_page(desk: Desk, wanted: PastFilter, after: Cursor | None, limit: int) -> Page[HistoryRow]:
    """Return the next entries of the history that match, newest first. Those with a key the desk finds by itself; of
    others, a page looks at a bounded number."""
    if not desk.limits.most:
        return Page([], None, 0)
    narrow = wanted if wanted.key else PastFilter(from_ms=wanted.from_ms, before_ms=wanted.before_ms)

    async def fits(row: HistoryRow) -> bool:
        return wanted.takes(row)

    found = desk.history(narrow, PastCursor(after.at_ms, after.id) if after else None)
    return await _page(found, lambda row: Cursor(row.ended_ms, row.id), fits, limit)


async def _page(
    found: AsyncIterator[T], place: Callable[[T], Cursor], fits: Callable[[T], Awaitable[bool]], limit: int
) -> Page[T]:
    rows: list[T] = []
    scan = Scan()
    last: Cursor | None = None
    async for row in found:
        if len(rows) == limit or scan.over(len(rows)):
            return Page(rows, last, scan.seen)
        await scan.saw()
        last = place(row)
        if await fits(row):
            rows.append(row)
    return Page(rows, None, scan.seen)


async def with_key(
    desk: Desk, routes: Sequence[str], state: State, wanted: Criteria, after: Cursor | None = None, limit: int = maxsize
) -> Page[Row] | None:
    """Return the next messages of a list with a key, through the key index of its route, or of ``routes``; None where
    it does not list them."""
    key, route = wanted.base.key, wanted.base.route
    names = [route] if route is not None else routes
    if key is None or not names:
        return None
    ids: list[bytes] = []
    for name in names:
        found = await desk.find(name, key)
        if found.unlisted:
            return None
        ids += found.ids
    found_rows = await desk.look(ids, SHOWN_BYTES)
    rows = [row for row in found_rows if row.state is state and await takes(desk, row, wanted)]
    left = sorted((row for row in rows if after is None or _place(row) > after), key=_place)
    return Page(left[:limit], _place(left[limit - 1]) if len(left) > limit else None, len(ids))


def _place(row: Row) -> Cursor:
    return Cursor(row.at_ms, row.id)


async def takes(desk: Desk, row: Row, wanted: Criteria) -> bool:
    return wanted.base.takes(row) and await _has_header(desk, row, wanted)


async def _has_header(desk: Desk, row: Row, wanted: Criteria) -> bool:
    """Return whether a message has a header. One that has gone meanwhile has none."""
    header = wanted.header
    if header is None:
        return True
    try:
        headers = headers_in(row)
    except ValueError:
        whole = await desk.look([row.id], -1)
        headers = headers_in(whole[0]) if whole else ()
    name, text = header
    return any(
        given == name and (not text or str(wanted.seen({name: value})[name]) == text) for given, value in headers
    )


def write_cursor(after: Cursor | None) -> str | None:
    return None if after is None else f"{after.at_ms}-{after.id.decode()}"


def read_cursor(text: str | None) -> Cursor | None:
    """Read a cursor. Raises ``SettingsError`` for what is none."""
    if text is None:
        return None
    moment, _, message_id = text.rpartition("-")
    try:
        shard_of(message_id.encode())
        if not (moment.isascii() and moment.removeprefix("-").isdigit()) or len(moment) > 16:
            raise ValueError
        return Cursor(int(moment), message_id.encode())
    except ValueError:
        raise SettingsError("The cursor is not valid. Use the member next of the page before.") from None
