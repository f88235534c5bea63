"""The desk of a store with a journal: its cold messages too, and what left it for as long as the journal has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast

from bridge.core.errors import StoreUnavailable
from bridge.core.journal import (
    START,
    FlowRow,
    Journal,
    JournalFilter,
    JournalMessage,
    JournalUnavailable,
    Place,
    Written,
)
from bridge.core.ports import Found
from bridge.core.state import State
from bridge.desk.numbers import Stats
from bridge.desk.past import PastCursor, PastFilter, newest_first
from bridge.desk.protocol import Desk, Desks
from bridge.desk.rows import HEAD_BYTES, Answer, Cursor, Filter, Row, Stored, row_of
from bridge.parking.envelope import as_loaded, with_due
from bridge.parking.history import HistoryRow, PastState
from bridge.pipeline.tiers import COLD, IDS_MAX, Loader

T = TypeVar("T")
_ENDED = (Written.DELIVERED, Written.CANCELLED, Written.REPLACED, Written.SKIPPED)
_STATES = {
    Written.DELIVERED: PastState.DELIVERED,
    Written.CANCELLED: PastState.CANCELLED,
    Written.REPLACED: PastState.REPLACED,
    Written.SKIPPED: PastState.CANCELLED,
}
#: Entries of one key.
_KEY_MAX = 50
#: Cold rows, and rows of the store, that a list reads at once; cold rows that an export reads at once.
_COLD_PAGE, _STORE_PAGE, _EXPORTED = 200, 1000, 50
#: How long numbers wait for the journal: they must not make the store seem away.
_PATIENCE_S = 0.5
#: What an envelope may have before its payload.
_ENVELOPE_HEAD = 800


class JournaledDesk(Desks):
    """One store, and its journal with the cold tier. For what is past, a journal that is away is passed over: the store
    has its own history. What needs cold messages raises ``StoreUnavailable``."""

    def __init__(self, desk: Desk, journal: Journal, broker: str, loader: Loader) -> None:
        super().__init__([desk])
        self._journal = journal
        self._broker = broker
        self._loader = loader
        self._asking: asyncio.Future[Any] | None = None

    # -- both tiers ---------------------------------------------------------------------------------------------------

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        if state is not State.PARKED or not await self._loader.begun():
            async for row in super().rows(state, wanted, after):
                yield row
            return
        more = True
        while more:
            found, after = await self._stretch(wanted, after)
            for row in found:
                yield row
            more = after is not None

    async def _stretch(self, wanted: Filter, after: Cursor | None) -> tuple[list[Row], Cursor | None]:
        """Return the messages of the next stretch of due moments, and its end; None at the end of all.

        A message may change its tier meanwhile. So cold rows are read before and after those of the store, and what was
        cold before is looked up once more.
        """
        before = await self._cold(wanted, after)
        end = _place(before[-1]) if len(before) == _COLD_PAGE else None
        stored: list[Row] = []
        async for row in super().rows(State.PARKED, wanted, after):
            if end is not None and _place(row) > end:
                break
            stored.append(row)
            if len(stored) == _STORE_PAGE:
                end = _place(row)
                break
        cold = await self._cold(wanted, after)
        if len(cold) == _COLD_PAGE:  # what became cold meanwhile may push what was cold before out of this look
            end = min(_place(cold[-1]), end or _place(cold[-1]))
        found = {row.id: row for row in [*cold, *stored] if end is None or _place(row) <= end}
        loaded = [row.id for row in before if row.id not in found and (end is None or _place(row) <= end)]
        found |= {row.id: row for row in await super().look(loaded, HEAD_BYTES) if row.state is State.PARKED}
        return sorted((row for row in found.values() if wanted.takes(row)), key=_place), end

    async def _cold(self, wanted: Filter, after: Cursor | None) -> list[Row]:
        key = wanted.key or None  # the journal keeps the id by which a message is found as its key
        limits = JournalFilter(COLD.states, wanted.route, key, None, wanted.due_from_ms, wanted.due_before_ms)
        place: Place = (after.at_ms, after.id) if after is not None else START
        found = await self._journal.page(limits, place, _COLD_PAGE, HEAD_BYTES + _ENVELOPE_HEAD)
        return [self._row(row, HEAD_BYTES) for row in found]

    def _row(self, row: JournalMessage, payload_bytes: int) -> Row:
        """Return a cold message as a row."""
        envelope, size = with_due(row.envelope, row.due_ms), row.size or len(row.envelope)
        found = row_of(self._broker, row.id, State.PARKED, row.due_ms, size, envelope, "")
        payload = found.payload if payload_bytes < 0 else found.payload[:payload_bytes]
        return replace(found, payload=payload, cold=True)

    async def stored(self) -> AsyncIterator[Stored]:
        """Iterate over both tiers: the store, the journal, and what was loaded meanwhile, whose envelopes tell that."""
        async for stored in super().stored():
            yield stored
        if not await self._loader.begun():
            return
        place: Place = START
        while rows := await self._journal.page(COLD, place, _EXPORTED):
            place = rows[-1].due_ms, rows[-1].id
            for cold in rows:
                yield Stored(self._row(cold, -1), with_due(cold.envelope, cold.due_ms))
        async for stored in super().stored():
            if stored.envelope == as_loaded(stored.row.id, stored.envelope):
                yield stored

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        found = {row.id: row for row in await super().look(ids, payload_bytes)}
        missing = [message_id for message_id in dict.fromkeys(ids) if message_id not in found]
        if missing and await self._loader.begun():
            head = payload_bytes + _ENVELOPE_HEAD if payload_bytes >= 0 else 0
            wanted = JournalFilter(COLD.states, ids=tuple(missing))
            if cold := await self._journal.page(wanted, START, len(missing), head):
                await self._loader.carry([row.id for row in cold])  # a producer may just have cancelled one
                cold = await self._journal.page(wanted, START, len(missing), head)
            found |= {row.id: self._row(row, payload_bytes) for row in cold}
            loaded = [message_id for message_id in missing if message_id not in found]
            found |= {row.id: row for row in await super().look(loaded, payload_bytes)}
        return [found[message_id] for message_id in ids if message_id in found]

    async def find(self, route: str, key: bytes) -> Found:
        found = await super().find(route, key)
        if found.unlisted or not await self._loader.begun():
            return found
        cold = await self._loader.look_up(route, key)
        again = await super().find(route, key)
        if len(cold) > IDS_MAX:
            return Found([], len(again.ids) + await self._journal.count(JournalFilter(COLD.states, route, key)))
        return Found(list(dict.fromkeys([*found.ids, *cold, *again.ids])), again.unlisted)

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        return await self._act(ids, lambda wanted: super(JournaledDesk, self).cancel(wanted, reason))

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        """Move messages of either tier. They stay in the store then."""
        return await self._act(ids, lambda wanted: super(JournaledDesk, self).reschedule(wanted, due_ms))

    async def _act(
        self, ids: Sequence[bytes], verb: Callable[[Sequence[bytes]], Awaitable[dict[bytes, Answer]]]
    ) -> dict[bytes, Answer]:
        """Let a verb act on messages of the store. Load those that it does not have, and act on these."""
        answers = await verb(ids)
        missing = [message_id for message_id, answer in answers.items() if answer is Answer.NONE]
        if waiting := await self._loader.ids(missing):
            answers |= await verb(waiting)
            await self._loader.settle(waiting)
        return answers

    async def stats(self) -> Stats:
        """Return the numbers of the store, which counts the cold messages, too."""
        found = await super().stats()
        if found.cold and found.next_due_ms is None:
            with suppress(StoreUnavailable):
                for row in await self._soon(self._journal.page(COLD, START, 1, 1)):
                    found = replace(found, next_due_ms=row.due_ms)
        return found

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        """Return the sums of both tiers; those of the store while the journal is away."""
        counts = await super().density(bounds_ms)
        if await self._loader.begun():
            with suppress(StoreUnavailable):
                cold = await self._soon(self._journal.density(bounds_ms))
                return [sum(both) for both in zip(counts, cold, strict=True)]
        return counts

    async def _soon(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what the journal answers. Raises ``JournalUnavailable`` if it takes longer; one such call is under way
        at a time, because to cancel it would take as long."""
        if self._asking is not None and not self._asking.done():
            call.close()
            raise JournalUnavailable("the journal has not answered yet")
        self._asking = asyncio.ensure_future(call)
        self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait([self._asking], timeout=_PATIENCE_S)
        if not done:
            raise JournalUnavailable("the journal has not answered yet")
        return cast("T", self._asking.result())

    # -- the past -----------------------------------------------------------------------------------------------------

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        """Iterate over the history of the store. For an id or a key the journal follows with what it knows more."""
        known, start = {after and after.id}, (-after.ended_ms, after.id) if after else (-(2**62), b"")
        async for row in super().history(wanted, after):
            known.add(row.id)
            yield row
        with suppress(StoreUnavailable):
            for row in await self._older(wanted):
                if row.id not in known and wanted.takes(row) and newest_first(row) > start:
                    yield row

    async def _older(self, wanted: PastFilter) -> list[HistoryRow]:
        if wanted.id is None and wanted.key is None:
            return []
        ids = None if wanted.id is None else (wanted.id,)
        matching = JournalFilter(_ENDED, wanted.route, wanted.key, ids)
        found = await self._journal.ended(matching, _KEY_MAX, _ENVELOPE_HEAD)
        if not found and wanted.id is not None:  # of a message without its envelope only the end is known
            found = [*(await self._journal.look([wanted.id])).values()]
        rows = [_past(row, self._broker) for row in found if row.state in _ENDED]
        return sorted(rows, key=lambda row: row.ended_ms, reverse=True)

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        with suppress(StoreUnavailable):
            return await self._journal.flow(message_id)
        return []


def _place(row: Row) -> Cursor:
    return Cursor(row.at_ms, row.id)


def _past(row: JournalMessage, broker: str) -> HistoryRow:
    """Return a row as an entry of the history. Pure."""
    reason = "overdue at a restore" if row.state is Written.SKIPPED else row.reason
    state, ended_ms = _STATES[row.state], row.ended_ms or 0
    size = row_of(broker, row.id, State.GONE, 0, row.size, row.envelope, "").size
    moments = row.arrived_ms, row.due_ms, None, None, ended_ms
    return HistoryRow(row.id, row.route, row.key, state, *moments, 0, size, reason, broker)
