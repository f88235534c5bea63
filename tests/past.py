"""Look into the history of a line's store, as an operator does."""

from __future__ import annotations

from typing import Any

from bridge.desk.past import PastFilter, PastSlot
from bridge.desk.protocol import Desk
from bridge.operate.stores import at_desk
from bridge.parking.history import HistoryRow
from tests.bridge_line import BridgeLine
from tests.bridge_process import store_client
from tests.devstack.service import wait_for


def history(line: BridgeLine, **wanted: Any) -> list[HistoryRow]:
    """Return the entries of the history that match, newest first."""

    async def work(desk: Desk) -> list[HistoryRow]:
        return [row async for row in desk.history(PastFilter(**wanted))]

    return at_desk(line.loaded(), work)


def wait_history(line: BridgeLine, count: int = 1, **wanted: Any) -> list[HistoryRow]:
    """Wait until so many entries match."""
    wait_for(lambda: len(history(line, **wanted)) >= count, f"{count} entries of the history {wanted}", 15)
    return history(line, **wanted)


def slots(line: BridgeLine) -> list[PastSlot]:
    """Return the deliveries of the last hour by slots of 30 s."""

    async def work(desk: Desk) -> list[PastSlot]:
        now_ms = await desk.now_ms()
        return await desk.past(now_ms - 3_600_000, now_ms, 30_000)

    return at_desk(line.loaded(), work)


def keys_of_the_past(line: BridgeLine) -> list[str]:
    """Return the names of all keys about what was."""
    with store_client(line.store_url) as client:
        names = [name.decode() for name in client.scan_iter(match=f"*{line.name}*", count=1000)]
    return [name for name in names if any(word in name for word in (":history", ":slots", ":hours"))]


def judge_moments(row: HistoryRow) -> None:
    """Assert that the moments of a delivery come in their order."""
    assert row.claimed_ms is not None
    assert row.published_ms is not None
    assert row.received_ms <= row.claimed_ms <= row.published_ms <= row.ended_ms
    assert row.due_ms <= row.published_ms
    assert row.late_ms is not None
    assert row.late_ms >= 0
