"""Planted mistakes of the writer, the tail, the loader and restore, as in ``mutations``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from adapters.memory.memory_journal import MemoryJournal
from adapters.memory.memory_tiers import TieredShard
from adapters.memory.shard import Shard
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import JournalFilter, JournalMessage
from bridge.core.ports import Found
from bridge.parking.envelope import with_due
from bridge.pipeline import journaled, restore, tiers
from bridge.pipeline.journal_writer import JournalWriter
from bridge.pipeline.move_tail import MoveTail
from bridge.pipeline.putback import Restorable
from bridge.pipeline.restore import Restorer
from bridge.pipeline.tiers import Loader, TieredStore, Tiering
from tests.simulation import journal
from tests.simulation.plan import COLD_AFTER_MS

_Patch = AbstractContextManager[Any]

# -- the writer -------------------------------------------------------------------------------------------------------


def writes_behind_what_is_promised_before() -> _Patch:
    def planted(store: Any, rows: Any, moves: Any, _: bool, *rest: Any) -> Any:
        return journaled.journaling(store, rows, moves, False, *rest)

    return patch.object(journal, "journaling", planted)


def drops_rows_of_a_failed_write() -> _Patch:
    write = JournalWriter._write_some

    async def planted(self: JournalWriter, *what: Any) -> Any:
        try:
            return await write(self, *what)
        except StoreUnavailable:
            self._leave(len(self._waiting))
            raise

    return patch.object(JournalWriter, "_write_some", planted)


def flushes_twice_at_once() -> _Patch:
    async def planted(self: JournalWriter, moves: Any = ()) -> None:
        while self._waiting or moves:
            moves = await self._write_some(self._left + len(self._waiting), moves)

    return patch.object(JournalWriter, "flush", planted)


def replaces_the_row_of_another_instance() -> _Patch:
    async def planted(self: MemoryJournal, entries: Any) -> dict[bytes, bytes]:
        await self.write(entries)
        return {}

    return patch.object(journal.SimulatedJournal, "propose", _over_the_wire(planted))


def _over_the_wire(plain: Any) -> Any:
    async def call(self: journal.SimulatedJournal, *args: Any) -> Any:
        return await self._remote(lambda: plain(self._server.memory, *args))

    return call


# -- the log ----------------------------------------------------------------------------------------------------------


def begins_no_log() -> _Patch:
    return patch.object(Shard, "_begin_logs", lambda self, logs: None)


def forgets_moves_before_they_are_written() -> _Patch:
    async def planted(self: MoveTail, shards: Iterable[int]) -> None:
        for shard, entries in (await self._moves.read(list(shards), 20)).items():
            await self._moves.forget(shard, entries.names)
            await self._journal.record(entries.moves)

    return patch.object(MoveTail, "catch_up", planted)


def never_adopts() -> _Patch:
    async def planted(self: MoveTail, shards: Iterable[int], ends: Any = None) -> None:
        pass

    return patch.object(MoveTail, "adopt", planted)


# -- the loader -------------------------------------------------------------------------------------------------------


def unloads_what_has_no_row() -> _Patch:
    shift = MemoryJournal.shift

    async def planted(self: MemoryJournal, ids: Sequence[bytes], *states: Any) -> list[bytes]:
        await shift(self, ids, *states)
        return list(ids)

    return patch.object(journal.SimulatedJournal, "shift", _over_the_wire(planted))


def loads_what_is_due_from_now_on() -> _Patch:
    def planted(*states: Any, **limits: Any) -> JournalFilter:
        if until_ms := limits.get("due_before_ms"):
            limits["due_from_ms"] = until_ms - COLD_AFTER_MS // 2
        return JournalFilter(*states, **limits)

    return patch.object(tiers, "JournalFilter", planted)


def loads_without_a_fence() -> _Patch:
    load = TieredShard.load
    return patch.object(TieredShard, "load", lambda self, _, *messages: load(self, self.mark, *messages))


def loads_before_the_log_is_carried() -> _Patch:
    async def planted(self: Loader, ids: Sequence[bytes]) -> None:
        pass

    return patch.object(Loader, "carry", planted)


def never_counts_again() -> _Patch:
    async def planted(self: Tiering) -> None:
        pass

    return patch.object(Tiering, "count", planted)


def counts_what_is_in_both_tiers() -> _Patch:
    async def planted(self: Loader, *_: Any) -> Counter[str]:
        return Counter()

    return patch.object(Loader, "_in_both", planted)


def finds_keys_in_one_tier() -> _Patch:
    async def planted(self: TieredStore, fields: Sequence[bytes]) -> dict[bytes, Found]:
        return await self._store.find(fields)

    return patch.object(TieredStore, "find", planted)


# -- restore ----------------------------------------------------------------------------------------------------------


def restores_what_has_left() -> _Patch:
    class Idle(MoveTail):
        async def catch_up(self, shards: Iterable[int]) -> None:
            pass

    return patch.object(restore, "MoveTail", Idle)


def restores_at_once() -> _Patch:
    returning = restore._returning

    def planted(row: JournalMessage) -> Restorable:
        message = returning(row)
        return message._replace(due_ms=1, at_ms=1, envelope=with_due(message.envelope, 1))

    return patch.object(restore, "_returning", planted)


def leaves_out_the_last_row_of_a_page() -> _Patch:
    missing = Restorer.missing

    async def planted(self: Restorer, rows: Sequence[JournalMessage], *how: Any) -> list[JournalMessage]:
        return await missing(self, rows[:-1], *how)

    return patch.object(Restorer, "missing", planted)


def takes_no_turns() -> _Patch:
    async def planted(*_: Any) -> None:
        pass

    return patch.object(Restorer, "_take_turn", planted)
