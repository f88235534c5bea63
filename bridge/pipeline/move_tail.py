"""The way out of the journal: carry the log of the store's moves into it, and delete rows of messages long gone.

The instance that drains a shard reads its log. What is in the journal is deleted from the log, so the log is the
checkpoint: a crash in between repeats a write that changes nothing. A delivery costs no transaction of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import Journal, JournalEntry, JournalMessage, JournalUnavailable, MoveLog, StoreMove
from bridge.delay.duration import write_age
from bridge.parking.identity import shard_of
from bridge.pipeline.journal_writer import JournalWriter
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

JOURNAL_MOVES = Subject("journal", "moves")
_EVERY_S = 0.5
#: Entries of a shard in one reading. An entry has the messages of one call.
_ENTRIES_MAX = 100
#: Entries of a shard in the reading for records that were parked before. ``adopt`` leaves a few seconds of them.
_PARKED_MAX = 10_000
#: Messages of one transaction, unless a move has more: after an outage, all would take longer than a transaction may.
#: Envelopes, which may be large, that are read at once.
_IDS_MAX, _ENVELOPES_MAX = 20_000, 50
#: From this age on, a move that is not in the journal is a trouble.
_BEHIND_MS = 30_000
#: The writer has written what was parked so long ago, unless the database is away.
_WRITTEN_S = 3.0
#: The pause between two passes (s), how long a pass deletes rows (s), and the most rows of one transaction: they go
#: faster than they can come.
_PRUNE_EVERY_S, _PRUNE_S, _PRUNED_MAX = 60.0, 0.25, 1000


class MoveTail:
    """Carries moves into the journal."""

    def __init__(self, journal: Journal, moves: MoveLog, writer: JournalWriter | None = None) -> None:
        """``writer``: it writes rows after their messages were accepted."""
        self.writer = writer
        self._journal = journal
        self._moves = moves
        #: The moment of the oldest move that the last pass read (Unix ms); 0 where there was none.
        self.oldest_ms = 0
        #: Since when this process knows moves that are not in the journal, by the monotonic clock (s).
        self._waiting_s: float | None = None
        #: Whether the store does not answer. How far the journal is behind is not known then: nothing new may be there.
        self.unknown = False
        self.errors = 0
        #: The shards of the last pass; None before the first one.
        self._shards: frozenset[int] | None = None
        #: Where the logs of parks ended at the last passes, by the monotonic clock.
        self._ends: deque[tuple[float, Mapping[int, bytes]]] = deque()

    async def catch_up(self, shards: Iterable[int]) -> None:
        """Write all moves of these shards. Raises ``StoreUnavailable``."""
        left = list(shards)
        while left:
            logged = await self._moves.read(left, _ENTRIES_MAX)
            found = [move for entries in logged.values() for move in entries.moves]
            self.oldest_ms = min((move.at_ms for move in found), default=0)
            self._waiting_s = (self._waiting_s or time.monotonic()) if found else None
            for moves in _portions(found):
                if self.writer is not None:
                    await self.writer.flush(moves)
                elif moves:
                    await self._journal.record(moves)
            for shard, entries in logged.items():
                await self._moves.forget(shard, entries.names)
            self._waiting_s = None
            left = [shard for shard, entries in logged.items() if len(entries.names) >= _ENTRIES_MAX]

    async def pass_by(self, rows: Iterable[JournalMessage]) -> None:
        """Let later moves of these messages count, because their places are higher than those that the rows have.

        They would be lower where the store lost its log and its clock was set back. A shard without a log, which would
        lose the moves, gets a new log. Raises ``StoreUnavailable``.
        """
        places: dict[int, int] = {}
        for row in rows:
            shard = shard_of(row.id)
            places[shard] = max(places.get(shard, 1), row.changed)
        await self._moves.pass_by(places)

    async def adopt_old(self, shards: Iterable[int], every: int) -> None:
        """Write rows that the writers of other instances should have written. Raises ``StoreUnavailable``.

        Where this process begins to drain a shard, another one may just have been killed; before its first pass in
        ``every`` shard. Elsewhere the writers have ``_WRITTEN_S``, by the clock of this process: after a step back of
        its clock, Redis gives all that is parked the moment of the last entry before."""
        drained = frozenset(shards)
        await self.adopt(range(every) if self._shards is None else drained - self._shards)
        self._shards = drained
        ends = await self._moves.ends(drained)
        self._ends.append((time.monotonic(), ends))
        until_s = self._ends[-1][0] - _WRITTEN_S
        while len(self._ends) > 1 and self._ends[1][0] <= until_s:
            self._ends.popleft()
        if self._ends[0][0] <= until_s:
            old = self._ends[0][1]
            await self.adopt(ends.keys() & old.keys(), old)

    async def adopt(self, shards: Iterable[int], ends: Mapping[int, bytes] | None = None) -> None:
        """Write rows of messages that were parked, up to the ``ends`` of the logs, and have none: their instance died
        with its buffer. Raises ``StoreUnavailable``."""
        unknown = list if self.writer is None else self.writer.unknown
        left = list(shards)
        while left:
            found = await self._moves.read(left, _ENTRIES_MAX, parks=True, ends=ends)
            left = []
            for shard, logged in found.items():
                ids = unknown(message_id for move in logged.moves for message_id in move.ids)
                lacking = await self._journal.lacking(ids) if ids else []
                for at in range(0, len(lacking), _ENVELOPES_MAX):
                    if entries := await self._moves.envelopes(lacking[at : at + _ENVELOPES_MAX]):
                        await self._journal.write(entries)
                await self._moves.forget(shard, logged.names, parks=True)
                left += [shard] if len(logged.names) >= _ENTRIES_MAX else []

    async def parked_since(self, shard: int, at_ms: int) -> AsyncIterator[list[JournalEntry]]:
        """Iterate over messages that were parked around a moment or later, and that the ``writer`` does not know.

        ``adopt`` has written those that were parked long before, unless the database is away. Raises
        ``StoreUnavailable``."""
        assert self.writer is not None
        found = await self._moves.read([shard], _PARKED_MAX, parks=True, from_ms=max(0, at_ms - _BEHIND_MS))
        moves = found[shard].moves if shard in found else ()
        ids = self.writer.lacking(message_id for move in moves for message_id in move.ids)
        for at in range(0, len(ids), _ENVELOPES_MAX):
            yield await self._moves.envelopes(ids[at : at + _ENVELOPES_MAX])

    async def prune(self, before_ms: int) -> bool:
        """Delete rows of messages that ended before a moment, for a while. Return whether none is left. Raises
        ``StoreUnavailable``."""
        until_s, pruned = time.monotonic() + _PRUNE_S, _PRUNED_MAX
        while pruned == _PRUNED_MAX and time.monotonic() < until_s:
            pruned = await self._journal.prune(before_ms, _PRUNED_MAX)
        return pruned < _PRUNED_MAX

    async def run(
        self, shards: Callable[[], Iterable[int]], every: int, clock: StoreClock, keep_ms: int, health: Health
    ) -> None:
        """Carry moves of the ``shards`` of this instance until cancelled, and delete rows after ``keep_ms``.

        The store has ``every`` shard.
        """
        pruned_s = 0.0
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.catch_up(shards())
                if self.writer is not None:
                    await self.adopt_old(shards(), every)
                if time.monotonic() - pruned_s > _PRUNE_EVERY_S and await self.prune(clock.now_ms() - keep_ms):
                    pruned_s = time.monotonic()
                self.unknown = False
                health.say(JOURNAL_MOVES, "")
            except JournalUnavailable as error:
                self.unknown = False
                self.errors += 1
                behind_ms = self.behind_ms(clock)
                if behind_ms > _BEHIND_MS:
                    text = f"the journal is {write_age(behind_ms)} behind the store: {error}"
                    health.say(JOURNAL_MOVES, text, cause=str(error))
            except StoreUnavailable:
                self.unknown = True  # the store has a trouble of its own

    def behind_ms(self, clock: StoreClock) -> int:
        """Return the age of the oldest move that is not in the journal, also after a step back of Redis's clock."""
        waiting_s = 0.0 if self._waiting_s is None else time.monotonic() - self._waiting_s
        return max(int(waiting_s * 1000), clock.now_ms() - self.oldest_ms) if self.oldest_ms else 0


def _portions(moves: Sequence[StoreMove]) -> Iterator[Sequence[StoreMove]]:
    """Iterate over the moves in portions for one transaction each, at least one. Pure."""
    begin = count = 0
    for place, move in enumerate(moves):
        if count and count + len(move.ids) > _IDS_MAX:
            yield moves[begin:place]
            begin, count = place, 0
        count += len(move.ids)
    yield moves[begin:]
