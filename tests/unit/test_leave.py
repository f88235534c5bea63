"""How a process with a store leaves: whatever is away, it writes what only it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adapters.memory.memory_journal import MemoryJournal
from bridge.core.journal import JournalFilter
from bridge.process.service import Service
from tests.unit.house import HOUR_MS, House


@pytest.mark.parametrize("away", ["the store", "the journal", "neither"])
async def test_a_process_writes_its_last_journal_rows_although_the_store_is_away(away: str) -> None:
    journal = MemoryJournal()
    house = House(journal=journal)
    house.publish("body", HOUR_MS)
    await house.park()
    house.memory.away = "connection refused" if away == "the store" else ""
    journal.away = "connection refused" if away == "the journal" else ""
    parts: Any = SimpleNamespace(
        stages=house.stages, members=house.members(), journaling=house.journaling, grace_ms=1000
    )
    assert await Service(parts).leave() == 0
    journal.away = ""
    assert await journal.count(JournalFilter()) == (away != "the journal")
