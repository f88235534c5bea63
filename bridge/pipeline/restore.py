"""Restore: put back what the journal says waits and the store does not have.

Safe to repeat, and beside running instances. A message that is missing in the store is lost, or it has just left: then
its move is in the log, because the store writes both in one step. So the log is carried into the journal before the
rows are believed, and before rows are chosen that were cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

from bridge.core.errors import StoreUnavailable
from bridge.core.journal import (
    START,
    UNDONE,
    Journal,
    JournalFilter,
    JournalMessage,
    MoveLog,
    Place,
    StoreMove,
    Written,
)
from bridge.core.ports import ParkingStore
from bridge.desk.protocol import Desk
from bridge.parking.envelope import contents, with_due
from bridge.parking.identity import arrived_ms_of, shard_of
from bridge.pipeline.move_tail import MoveTail
from bridge.pipeline.putback import BATCH, BATCH_BYTES, RATE, Fate, Overdue, Pace, PutBack, Restorable
from bridge.telemetry.reconnect import MAX_S

_EVERYTHING = JournalFilter()
#: A message may have its row before it is parked: the store is asked until this time has passed, in which an instance
#: tries a failed call again. It is asked each second, so that an outage in between is noticed. Where the journal
#: answers late, so may that instance: it gets this time again, so often.
_SETTLE_S, _LOOK_S, _STALLED_S, _STALLS = MAX_S + 1.0, 1.0, 1.0, 4
#: The last arrivals of which the highest id counts: ids go up, whatever the clock does, within one priority.
_NEWEST = 100
#: How long a restore that died keeps others waiting, and how often they ask.
_TURN_MS, _ASK_S = 30_000, 0.1


@dataclass(frozen=True)
class RestoreOrder:
    """What to restore. ``overdue``: what becomes of messages whose moment has passed. ``by`` is for the flow."""

    wanted: JournalFilter = _EVERYTHING
    overdue: Overdue = Overdue.DELIVER
    max_rate: int = RATE
    dry_run: bool = False
    by: str = ""


@dataclass
class Restored:
    """What became of the rows: by route and fate, and how many of those that were parked are due now. A message that
    left meanwhile has no fate. ``place`` is where a run that failed goes on. ``lost_ms``: when the last loss was, as
    seen at the first page (0: none); -1 without a page."""

    counts: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    overdue: int = 0
    looked_at: int = 0
    place: Place = START
    lost_ms: int = -1

    def total(self, fate: Fate) -> int:
        """Return the number over all routes."""
        return sum(number for (_, found), number in self.counts.items() if found is fate)


#: Is awaited after each page.
Progress = Callable[[Restored], Awaitable[None]]


class Restorer:
    """Restores one store from its journal."""

    def __init__(
        self,
        store: ParkingStore,
        desk: Desk,
        journal: Journal,
        moves: MoveLog,
        on_same_key: Callable[[str], str] = lambda _: "replace",
    ) -> None:
        """``on_same_key(route)``: the rule of a route."""
        self._store = store
        self._desk = desk
        self._journal = journal
        self._moves = moves
        self._tail = MoveTail(journal, moves)
        self._on_same_key = on_same_key
        self._name = secrets.token_hex(8)

    async def count(self, wanted: JournalFilter) -> int:
        await self._carry(wanted)
        return await self._journal.count(wanted)

    async def _carry(self, wanted: JournalFilter) -> None:
        """Let the journal know of the last cancellations, if they are wanted: an undo may follow at once, and where no
        instance runs, no other process carries them."""
        if any(state in UNDONE for state in wanted.states):
            await self._tail.catch_up(range(self._store.shards))

    async def run(
        self, order: RestoreOrder, restored: Restored | None = None, progress: Progress | None = None
    ) -> Restored:
        """Restore in pages, in the order of due moments. No page takes longer than a second of ``max_rate``. A
        run without a filter ends the trouble about the loss.

        Raises ``StoreUnavailable``; a call with the same ``restored`` goes on where that one failed. ``progress`` is
        awaited after each page, and may end the run by raising."""
        restored, began_s = restored or Restored(), time.monotonic()
        ways = order.overdue, Pace(order.max_rate), order.dry_run, self._on_same_key
        putback = PutBack(self._store, self._desk, *ways)
        # What comes later is no loss. After a step back of the store's clock, the last ones came later than now.
        arrived_ms = [arrived_ms_of(row.id) for row in await self._journal.newest(_NEWEST)]
        wanted = replace(order.wanted, arrived_until_ms=max([await self._desk.now_ms(), *arrived_ms]))
        await self._carry(wanted)
        asked_s = began_s
        while rows := await self._page(wanted, restored.place, min(BATCH, order.max_rate)):
            if time.monotonic() > asked_s + _STALLED_S:
                began_s = time.monotonic()
            async with self._turn(order, restored, progress):
                # A preview may count what is about to be parked; a restore would park it twice.
                hold = partial(self._take_turn, restored, progress)
                missing = await (self._absent(rows, False) if order.dry_run else self.missing(rows, began_s, hold))
                absent = {row.id for row in missing}
                if restored.place == START:
                    restored.lost_ms = await self._lost_ms()
                there = await self._moves.known([row.id for row in rows if row.id not in absent])
                now_ms = await self._desk.now_ms()
                if not order.dry_run:  # in the journal first: after a crash the next restore parks them
                    undone = [row.id for row in missing if row.state in UNDONE]
                    await self._note("restored", Written.WAITING, undone, now_ms, order.by)
                    await self._tail.pass_by([*rows, *missing])
                fates = await putback.put([_returning(row) for row in missing])
                if not order.dry_run:
                    await self._remember(missing, fates, now_ms, order.by)
                    await self._count_down(missing, fates)
            restored.looked_at += len(rows)
            restored.counts.update((row.route, Fate.THERE) for row in rows if row.id in there)
            restored.counts.update((row.route, fates[row.id]) for row in missing)
            late = {row.id for row in missing if row.due_ms <= now_ms}
            restored.overdue += sum(fates[message_id] is Fate.PARKED for message_id in late)
            restored.place = (rows[-1].due_ms, rows[-1].id)
            if progress is not None:
                await progress(restored)
            asked_s = time.monotonic()
        restored.place = START
        # A loss that came meanwhile took what the first pages had brought back.
        if order.wanted == _EVERYTHING and not order.dry_run and restored.lost_ms in (-1, await self._lost_ms()):
            await self._desk.note_restored()
        return restored

    async def _lost_ms(self) -> int:
        loss = await self._store.loss()
        return loss.at_ms if loss is not None else 0

    async def _page(self, wanted: JournalFilter, place: Place, limit: int) -> list[JournalMessage]:
        """Return the next rows; no more than ``BATCH_BYTES``, unless the first is larger."""
        while heads := await self._journal.page(wanted, place, limit, 1):
            sizes = accumulate(head.size for head in heads)
            fitting = sum(size <= BATCH_BYTES for size in sizes)
            if rows := await self._journal.page(wanted, place, max(1, fitting)):
                return rows
        return []

    @asynccontextmanager
    async def _turn(self, order: RestoreOrder, restored: Restored, progress: Progress | None) -> AsyncIterator[None]:
        """Wait until no other restore of this store is at a page. What it parks may leave at once: who had looked for
        it before would park it a second time."""
        if order.dry_run:
            yield
            return
        await self._take_turn(restored, progress)
        try:
            yield
        finally:
            with suppress(StoreUnavailable):
                await self._desk.lead("restore page", self._name, 0)

    async def _take_turn(self, restored: Restored, progress: Progress | None) -> None:
        while not await self._desk.lead("restore page", self._name, _TURN_MS):
            if progress is not None:
                await progress(restored)
            await asyncio.sleep(_ASK_S)
        await self._desk.note_restored(0)

    async def missing(
        self, rows: Sequence[JournalMessage], began_s: float, hold: Callable[[], Awaitable[None]] | None = None
    ) -> list[JournalMessage]:
        """Return those rows whose messages wait and are not in the store, as they are now.

        ``began_s`` (monotonic): when the caller began. Rows of messages that arrived before are parked soon after.
        ``hold`` is awaited before each further look: it extends the caller's turn, or takes another.
        """
        absent, stalls = list(rows), 0
        while True:
            asked_s = time.monotonic()
            settled = asked_s >= began_s + _SETTLE_S
            absent = await self._absent(absent, settled)
            now_s = time.monotonic()
            if now_s > asked_s + _STALLED_S and stalls < _STALLS:
                began_s, stalls, settled = now_s, stalls + 1, False
            # A row says that its message ended only after it was parked: no instance is about to park it.
            if settled or all(row.state.ended for row in absent):
                return absent
            await asyncio.sleep(max(0.0, min(_LOOK_S, began_s + _SETTLE_S - now_s)))
            if hold is not None:
                await hold()

    async def _absent(self, rows: Sequence[JournalMessage], settled: bool) -> list[JournalMessage]:
        known = await self._moves.known([row.id for row in rows])
        absent = [row for row in rows if row.id not in known]
        if not absent:
            return []
        await self._tail.catch_up({shard_of(row.id) for row in absent})
        now = await self._journal.look([row.id for row in absent])
        return await self._parked_once(
            [
                now[row.id]._replace(envelope=row.envelope)
                for row in absent
                if row.id in now and now[row.id].state is row.state
            ],
            settled,
        )

    async def _parked_once(self, rows: Sequence[JournalMessage], settled: bool) -> list[JournalMessage]:
        """Return the rows without those whose record was parked under another id. Delete these: their instance died
        before it could, or the store lost the message and the record was read again. Until the rows have ``settled``, a
        call may still delete either of two that wait, because the store skips its record: both stay."""
        pairs = await self._journal.rivals([row.id for row in rows if not row.state.ended])
        known = await self._moves.known([other.id for _, other in pairs]) if pairs else set()
        stale = {
            message_id
            for message_id, other in pairs
            if other.id in known
            or other.state not in (Written.WAITING, Written.DEAD)
            or (settled and other.id < message_id)
        }
        if stale:
            await self._journal.drop(list(stale))
        return [row for row in rows if row.id not in stale]

    async def lost(self, sample: int) -> int:
        """Return how many of the messages that are due next, and of those that arrived last, the store lacks."""
        rows = await self._journal.page(JournalFilter(), START, sample, 1)
        rows += await self._journal.newest(sample)
        return len(await self.missing(list({row.id: row for row in rows}.values()), time.monotonic()))

    async def _remember(
        self, rows: Sequence[JournalMessage], fates: Mapping[bytes, Fate], now_ms: int, by: str
    ) -> None:
        """Write down what became of rows that waited."""
        ids = {fate: [row.id for row in rows if fates.get(row.id) is fate] for fate in Fate}
        waited = {row.id for row in rows if row.state not in UNDONE}
        parked = [message_id for message_id in ids[Fate.PARKED] if message_id in waited]
        await self._note("restored", None, parked, now_ms, by)
        await self._note("skipped", Written.SKIPPED, ids[Fate.OVERDUE_SKIPPED], now_ms, by)
        await self._note("replaced", Written.REPLACED, ids[Fate.KEY_TAKEN], now_ms, by)

    async def _count_down(self, rows: Sequence[JournalMessage], fates: Mapping[bytes, Fate]) -> None:
        """Note how many of the lost messages are back: a number for people, so a failure does not repeat the page."""
        back = [row for row in rows if row.state not in UNDONE and fates.get(row.id) in (Fate.PARKED, Fate.DEAD)]
        if back:
            with suppress(StoreUnavailable):
                await self._desk.note_restored(len(back))

    async def _note(self, name: str, state: Written | None, ids: Sequence[bytes], now_ms: int, by: str) -> None:
        if ids:
            await self._journal.record([StoreMove(ids, 0, now_ms, name, state, by=by)])


def _returning(row: JournalMessage) -> Restorable:
    """Return a row as it is put back. Pure."""
    dead = (row.reason or "unknown") if row.state is Written.DEAD else ""
    envelope = with_due(row.envelope, row.due_ms)
    return Restorable(row.id, row.route.encode(), row.due_ms, row.due_ms, contents(row.envelope).key, envelope, dead)
