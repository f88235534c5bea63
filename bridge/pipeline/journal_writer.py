"""The writer of the journal: rows of messages that were accepted before (``write = "behind"``).

A row follows its message within a second. What became of the message until then is written with it: so a short delay
costs a single write. While the database is away rows wait here, within bounds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

import structlog

from bridge.core.errors import StoreUnavailable
from bridge.core.journal import Journal, JournalEntry, StoreMove
from bridge.telemetry.health import Health
from bridge.telemetry.printable import as_sentence
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

JOURNAL_WRITE = Subject("journal", "write")
#: How long rows wait for the moves of their messages. While the database is away, it is asked once in ``_AGAIN_S``.
_GATHER_S, _AGAIN_S = 0.75, 1.0
#: What one transaction writes, and what waits while the database is away.
_ROWS_MAX, _BYTES_MAX = 5000, 4 * 1024 * 1024
_WAITING_MAX, _WAITING_BYTES_MAX = 200_000, 256 * 1024 * 1024
#: The ids of what was written are known for this time, and for up to twice as long.
_KNOWN_S = 5.0


class JournalWriter:
    """Writes rows some moments after their messages were accepted."""

    def __init__(self, journal: Journal, health: Health) -> None:
        self._journal = journal
        self._health = health
        self._turn = asyncio.Lock()
        self._waiting: deque[JournalEntry] = deque()
        self._bytes = 0
        #: The rows that have left ``_waiting``; by call of ``add``, its moment, and that number once its last has left.
        self._left = 0
        self._calls: deque[tuple[float, int]] = deque()
        #: Ids of what was written, and of what was written before that.
        self._known: tuple[set[bytes], set[bytes]] = set(), set()
        self._known_s = 0.0
        #: Messages that will never have a row, and transactions that failed.
        self.dropped = self.errors = 0

    @property
    def unwritten(self) -> int:
        """How many accepted messages have no row yet."""
        return len(self._waiting)

    def oldest_s(self) -> float:
        """Return for how long the oldest of them has waited."""
        return time.monotonic() - self._calls[0][0] if self._calls else 0.0

    def unknown(self, ids: Iterable[bytes]) -> list[bytes]:
        """Return the ids without those that were written some moments ago."""
        return list(set(ids).difference(*self._known))

    def lacking(self, ids: Iterable[bytes]) -> list[bytes]:
        """Return those of the ``unknown`` ids whose rows do not wait here either."""
        unknown = self.unknown(ids)
        return list(set(unknown).difference([row.id for row in self._waiting])) if unknown else []

    def add(self, entries: Sequence[JournalEntry]) -> None:
        """Take rows to be written. The oldest are dropped where there are too many."""
        if not entries:
            return
        self._waiting.extend(entries)
        self._calls.append((time.monotonic(), self._left + len(self._waiting)))
        self._bytes += sum([len(entry.envelope) for entry in entries])
        while len(self._waiting) > _WAITING_MAX or self._bytes > _WAITING_BYTES_MAX:
            self._leave(1)
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled what the tail of moves leaves, and report what was dropped."""
        dropped = 0
        while True:
            await asyncio.sleep(_GATHER_S / 3)
            if self.oldest_s() > _GATHER_S:
                try:
                    await self.flush()
                except StoreUnavailable:
                    await asyncio.sleep(_AGAIN_S)
            if self.dropped > dropped:
                log.error("journal rows dropped", messages=self.dropped - dropped, reason="the buffer is full")
                dropped = self.dropped

    async def flush(self, moves: Sequence[StoreMove] = ()) -> None:
        """Write the rows that wait now, and moves with the last of them. Rows of a failed transaction stay.

        Raises ``StoreUnavailable``."""
        try:
            async with self._turn:  # two at once would write the same rows, and each would take rows away
                end = self._left + len(self._waiting)
                while moves or self._left < end:
                    moves = await self._write_some(end, moves)
        except StoreUnavailable as error:
            self.errors += 1
            why = as_sentence(str(error)).removesuffix(".")
            text = (
                f"the journal lacks accepted messages: {self.unwritten}, delivered ones included. "
                f"A restore would miss them. Check the database. {why}"
            )
            self._health.say(JOURNAL_WRITE, text if self._waiting else "", cause=str(error))
            raise
        self._health.say(JOURNAL_WRITE, "")

    async def _write_some(self, end: int, moves: Sequence[StoreMove]) -> Sequence[StoreMove]:
        """Write one transaction. Return the moves, if rows are left for another one."""
        rows = list(islice(self._waiting, max(0, min(_ROWS_MAX, end - self._left))))
        while len(rows) > 1 and sum([len(row.envelope) for row in rows]) > _BYTES_MAX:
            del rows[len(rows) // 2 :]
        dropped, is_last = self.dropped, self._left + len(rows) >= end
        await self._journal.write(rows, moves if is_last else ())
        # What was dropped meanwhile was at the front, too.
        self._leave(max(0, len(rows) - (self.dropped - dropped)))
        self._remember(rows)
        return () if is_last else moves

    def _leave(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= len(self._waiting.popleft().envelope)
        self._left += count
        while self._calls and self._calls[0][1] <= self._left:
            self._calls.popleft()

    def _remember(self, rows: Sequence[JournalEntry]) -> None:
        now_s = time.monotonic()
        if now_s - self._known_s > _KNOWN_S:
            self._known, self._known_s = (set(), self._known[0]), now_s
        self._known[0].update([row.id for row in rows])
