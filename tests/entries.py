"""Entries of the history as bytes, for tests that fill one by hand."""

from __future__ import annotations

from bridge.parking.history import HELD, STATES, HistoryRow, pack_head, pack_let_go, text_field


def pack_entry(row: HistoryRow) -> bytes:
    """Return an entry as the historian and the Lua scripts write it."""
    head = pack_head(
        STATES.index(row.state) if row.let_go_ms is None else HELD,
        row.tries,
        row.size,
        row.received_ms,
        row.due_ms,
        row.claimed_ms or 0,
        row.published_ms or 0,
        row.ended_ms,
        row.id,
    )
    end = text_field(row.reason.encode()) if row.let_go_ms is None else pack_let_go(row.let_go_ms)
    return b"".join((head, text_field(row.route.encode()), text_field(row.key), end))
