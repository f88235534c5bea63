"""The way into the journal: a store whose parked messages are in the journal, too.

``write = "before"``: a call has succeeded when both have the messages. Messages without an origin go to the store
first: after a crash in between the broker delivers them again, and they are parked under their first id. Those with an
origin go to the journal first, because the store would skip them the second time.
``write = "behind"``: the store alone decides, and ``JournalWriter`` writes the rows within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import Journal, JournalEntry, MoveLog
from bridge.core.message import Origin
from bridge.core.ports import Batch, DeadBatch, Parked, ParkingStore
from bridge.parking.envelope import route_in
from bridge.pipeline.journal_writer import JournalWriter
from bridge.pipeline.move_tail import MoveTail
from bridge.pipeline.tiers import Tiering
from bridge.telemetry.health import Health


@dataclass(frozen=True)
class Journaling:
    """What a process does for its journal. ``writer`` is None where rows are written before a message is accepted."""

    store: JournaledStore
    writer: JournalWriter | None
    tail: MoveTail
    keep_ms: int
    tiering: Tiering | None = None

    def loops(
        self, shards: Callable[[], Collection[int]], able: Callable[[], bool], health: Health
    ) -> list[Coroutine[None, None, None]]:
        """Return the loops. The process drains ``shards``, and carries their moves. A process that is not ``able`` to
        deliver drains none, and perhaps no other drains any. It carries the moves of all shards then, because operators
        and producers still cancel."""

        def carried() -> Collection[int]:
            return shards() or (() if able() else range(self.store.shards))

        writing = [self.writer.run()] if self.writer is not None else []
        tiering = self.tiering.loops(shards, self.store.clock) if self.tiering is not None else []
        return [*writing, *tiering, self.tail.run(carried, self.store.shards, self.store.clock, self.keep_ms, health)]

    def numbers(self) -> dict[str, float]:
        """Return the numbers of a snapshot."""
        writer, tail = self.writer, self.tail
        return {
            "unwritten": writer.unwritten if writer is not None else 0,
            "unwritten_s": round(writer.oldest_s(), 3) if writer is not None else 0.0,
            "dropped": writer.dropped if writer is not None else 0,
            **({} if tail.unknown else {"behind_s": tail.behind_ms(self.store.clock) / 1000}),
            "loader_s": self.tiering.behind_ms(self.store.clock.now_ms()) / 1000 if self.tiering is not None else 0.0,
            "errors": tail.errors + self.store.errors + (writer.errors if writer is not None else 0),
        }

    async def flush(self) -> None:
        """Write what was accepted and has no row yet. Raises ``StoreUnavailable``."""
        if self.writer is not None:
            await self.writer.flush()


def journaling(
    store: ParkingStore,
    journal: Journal,
    moves: MoveLog,
    before: bool,
    keep_ms: int,
    health: Health,
    skips: Callable[[str], bool],
    tiering: Tiering | None = None,
) -> Journaling:
    """Return the parts for a process. ``before``: rows are written before a message is accepted."""
    writer = None if before else JournalWriter(journal, health)
    tail = MoveTail(journal, moves, writer)
    journaled = JournaledStore(store, journal, None if before else tail, skips)
    return Journaling(journaled, writer, tail, keep_ms, tiering)


class JournaledStore:
    """``ParkingStore`` with a journal. ``tail`` is None where rows are written before a message is accepted."""

    def __init__(
        self,
        store: ParkingStore,
        journal: Journal,
        tail: MoveTail | None = None,
        skips: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``skips(route)``: a route whose messages are of no interest."""
        self._store = store
        self._journal = journal
        self._tail = tail
        self._writer = tail.writer if tail is not None else None
        self._skips = skips
        #: Calls that failed because of the journal.
        self.errors = 0
        self.shards: int = store.shards
        self.clock: StoreClock = store.clock
        self.done, self.firsts, self.mark_done, self.line_up = store.done, store.firsts, store.mark_done, store.line_up
        self.recent, self.new_token, self.loss = store.recent, store.new_token, store.loss
        self.find, self.parked, self.cancel = store.find, store.parked, store.cancel

    async def park(self, batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        """Park, and write the rows. A shard whose rows could not be written has not parked."""
        for batch in batches.values():
            # Its rows may be there before it: those of records, or of a call whose reply was lost.
            batch.again = not batch.once and (batch.logs > 0 or (self._writer is None and bool(batch.origins)))
            batch.logs = 1 if self._writer is None else 2
        before = self._writer is None
        records = {shard: self._entries(batch) for shard, batch in batches.items() if before and batch.origins}
        if records:
            try:
                rivals = await self._write_new(records)
                for shard in records:
                    batches[shard].rivals |= rivals
            except StoreUnavailable as error:
                self.errors += 1
                return dict.fromkeys(batches, error)
        called_ms = self.clock.now_ms()
        replies = await self._store.park(batches)
        rows: list[JournalEntry] = []
        unparked: list[bytes] = []
        earlier: list[int] = []
        for shard, reply in replies.items():
            if isinstance(reply, StoreUnavailable):
                continue
            # A message that is put back and is there gets a row, too: it waited before there was a journal.
            gone = reply.before if batches[shard].origins or not batches[shard].once else ()
            earlier += [shard] if gone else []
            left_out = {*reply.kept, *reply.rejected, *gone}
            entries = self._entries(batches[shard])
            parked = [entry for position, entry in enumerate(entries, 1) if position not in left_out]
            if before and batches[shard].origins:
                handled = [entry for position, entry in enumerate(entries, 1) if position not in reply.before]
                unparked += _unparked(entries, parked, batches[shard].rivals, handled)
            rows += parked
        if self._writer is not None:
            self._writer.add(self._wanted(rows))
            for shard in earlier:
                try:
                    await self._add_earlier(shard, called_ms)
                except StoreUnavailable as error:
                    replies[shard] = error
            return replies
        try:
            await self._journal.write([entry for entry in self._wanted(rows) if entry.origin is None])
            if unparked:
                await self._journal.drop(unparked)
        except StoreUnavailable as error:
            self.errors += 1
            return dict.fromkeys(batches, error)
        return replies

    async def reject(self, shard: int, dead: DeadBatch) -> tuple[int, ...]:
        origins = dead.origins
        rows = [
            JournalEntry(message_id, 0, envelope, origins[n] if origins else None, reason)
            for n, (message_id, envelope, reason) in enumerate(dead.messages)
        ]
        rivals = await self._write_new({shard: rows}) if self._writer is None and origins else {}
        called_ms = self.clock.now_ms()
        before = await self._store.reject(shard, dead)
        kept = [entry for position, entry in enumerate(rows, 1) if position not in before]
        if self._writer is not None:
            self._writer.add(self._wanted(kept))
            if before:
                await self._add_earlier(shard, called_ms)
        elif not origins:
            await self._journal.write(self._wanted(rows))  # also of those that are there, as in ``park``
        elif unparked := _unparked(rows, kept, rivals, kept):
            await self._journal.drop(unparked)
        return before

    async def _add_earlier(self, shard: int, called_ms: int) -> None:
        """Let messages have rows that a shard handled before a call. Where the reply to that call was lost, its process
        wrote none. The store does not name them, so all are taken that were parked of late."""
        assert self._tail is not None
        assert self._writer is not None
        async for entries in self._tail.parked_since(shard, called_ms):
            self._writer.add(self._wanted(entries))

    async def _write_new(self, rows: Mapping[int, Sequence[JournalEntry]]) -> dict[bytes, bytes]:
        """Write rows of records that the store has not handled: of the others it has another row. Return rivals.

        All shards in one transaction: a row waits for the others before its message is parked."""
        new: list[JournalEntry] = []
        for shard, entries in rows.items():
            done = await self._store.done(shard, [entry.origin for entry in entries if entry.origin is not None])
            new += self._wanted(entry for entry in entries if entry.origin not in done)
        return await self._journal.propose(new) if new else {}

    def _entries(self, batch: Batch) -> list[JournalEntry]:
        origins: Sequence[Origin | None] = batch.origins or [None] * len(batch.messages)
        return [
            JournalEntry(message_id, due_ms, envelope, origin)
            for (message_id, due_ms, envelope), origin in zip(batch.messages, origins, strict=True)
        ]

    def _wanted(self, rows: Iterable[JournalEntry]) -> list[JournalEntry]:
        return [entry for entry in rows if not self._skips(route_in(entry.envelope).decode("utf-8", "replace"))]


def _unparked(
    entries: Iterable[JournalEntry],
    parked: Iterable[JournalEntry],
    rivals: Mapping[bytes, bytes],
    handled: Iterable[JournalEntry],
) -> list[bytes]:
    """Return the ids of rows whose messages the store does not have: of two for one record, it has parked one at most.
    ``handled``: it met their records for the first time. Pure."""
    there, new = ({entry.id for entry in rows} for rows in (parked, handled))
    ours = [entry.id for entry in entries if entry.origin is not None and entry.id not in there]
    return ours + [rival for rival, message_id in rivals.items() if message_id in new]
