"""The desk of a store with a journal: what left the store is known for as long as the journal keeps it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from bridge.core.errors import StoreUnavailable
from bridge.core.journal import START, FlowRow, Journal, JournalFilter, JournalMessage, Written
from bridge.desk.past import PastCursor, PastFilter
from bridge.desk.protocol import Desk, Desks
from bridge.parking.history import HistoryRow, PastState

_ENDED = (Written.DELIVERED, Written.CANCELLED, Written.REPLACED, Written.SKIPPED)
_STATES = {
    Written.DELIVERED: PastState.DELIVERED,
    Written.CANCELLED: PastState.CANCELLED,
    Written.REPLACED: PastState.REPLACED,
    Written.SKIPPED: PastState.CANCELLED,
}
#: Entries of one key.
_KEY_MAX = 50


class JournaledDesk(Desks):
    """One store, and its journal. A journal that is away is passed over: the store has its own history."""

    def __init__(self, desk: Desk, journal: Journal, broker: str) -> None:
        super().__init__([desk])
        self._journal = journal
        self._broker = broker

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        """Iterate over the history of the store. For an id or a key the journal follows with what it knows more."""
        known = set()
        async for row in super().history(wanted, after):
            known.add(row.id)
            yield row
        with suppress(StoreUnavailable):
            for row in await self._older(wanted):
                if row.id not in known and wanted.takes(row):
                    yield row

    async def _older(self, wanted: PastFilter) -> list[HistoryRow]:
        if wanted.id is not None:
            found = [*(await self._journal.look([wanted.id])).values()]
        elif wanted.key is not None:
            matching = JournalFilter(_ENDED, wanted.route, wanted.key)
            found = await self._journal.page(matching, START, _KEY_MAX)
        else:
            return []
        rows = [_past(row, self._broker) for row in found if row.state in _ENDED]
        return sorted(rows, key=lambda row: row.ended_ms, reverse=True)

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return what the journal knows; nothing while it is away."""
        with suppress(StoreUnavailable):
            return await self._journal.flow(message_id)
        return []


def _past(row: JournalMessage, broker: str) -> HistoryRow:
    """Return a row as an entry of the history. Pure."""
    reason = "overdue at a restore" if row.state is Written.SKIPPED else row.reason
    state, ended_ms, size = _STATES[row.state], row.ended_ms or 0, len(row.envelope)
    moments = row.arrived_ms, row.due_ms, None, None, ended_ms
    return HistoryRow(row.id, row.route, row.key, state, *moments, 0, size, reason, broker)
