"""What the journal does at once has bounds, and nothing that was carried late is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.journal import UNDONE, JournalEntry, JournalMessage, Written
from bridge.pipeline.restore import Restorer
from tests.unit.house import HOUR_MS, SHARDS, House, turns
from tests.unit.test_journal import counted, delivered, emptied, opened, restored, waiting, written

pytestmark = pytest.mark.usefixtures("without_waiting")


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


async def test_what_is_adopted_and_restored_never_comes_into_memory_at_once(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.pipeline.move_tail._ENVELOPES_MAX", 2)
    monkeypatch.setattr("bridge.pipeline.restore.BATCH_BYTES", 2500)
    house = await opened(journal, order="route")
    await house.store.read(range(SHARDS), 1, parks=True)
    for number in range(7):
        house.publish("x" * 999 + f"{number}", HOUR_MS)
    await house.park()
    other, read = House(house.memory, "bbbbbb", journal=journal), list[int]()

    async def noted(ids: Any, envelopes: Any = other.store.envelopes) -> list[JournalEntry]:
        read.append(len(ids))
        found: list[JournalEntry] = await envelopes(ids)
        return found

    async def noted_page(*wanted: Any, page: Any = journal.page) -> list[JournalMessage]:
        rows: list[JournalMessage] = await page(*wanted)
        read.append(sum(len(row.envelope) > 500 for row in rows))
        return rows

    monkeypatch.setattr(other.store, "envelopes", noted)
    monkeypatch.setattr(journal, "page", noted_page)
    assert other.journaling is not None
    await other.journaling.tail.adopt(range(SHARDS))
    assert sum(read) == 7
    again = await emptied(house, journal)
    assert await Restorer(again.store, MemoryDesk(again.store), journal, again.store).lost(100) == 7
    assert sum(read) == 7, "a sample needs no envelopes"
    assert await restored(again, journal) == counted(looked_at=7, parked=7)
    assert (sum(read), max(read)) == (14, 2)
    assert sorted(body[-1] for body in await delivered(again)) == list("0123456")


async def test_after_an_outage_no_transaction_has_all_moves(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take longer than a transaction may, again and again."""
    monkeypatch.setattr("bridge.pipeline.move_tail._IDS_MAX", 3)
    house = await opened(journal)
    for number in range(10):
        house.publish(f"{number}", 0, order_key=f"{number}")
    await house.park()
    await house.deliver()
    written_at_once = list[int]()

    async def noted(entries: Any, moves: Any = (), write: Any = journal.write) -> None:
        written_at_once.append(sum(len(move.ids) for move in moves))
        await write(entries, moves)

    monkeypatch.setattr(journal, "write", noted)
    await written(house)
    assert (sum(written_at_once), max(written_at_once)) == (10, 3)
    assert len(await waiting(journal, (Written.DELIVERED,))) == 10


async def test_a_pass_deletes_more_rows_than_one_transaction(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 2,000 rows a second the journal of a busy store would grow for ever."""
    monkeypatch.setattr("bridge.pipeline.move_tail._PRUNED_MAX", 2)
    monkeypatch.setattr("bridge.pipeline.move_tail._PRUNE_S", 60)
    house = await opened(journal)
    for number in range(5):
        house.publish(f"{number}", 0)
    await house.park()
    await house.deliver()
    await written(house)
    house.clock.advance(1)
    assert house.journaling is not None
    assert await house.journaling.tail.prune(house.memory.now_ms())
    assert journal.rows == {}


async def test_while_the_broker_is_away_and_nobody_drains_a_shard_moves_are_carried(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what is cancelled meanwhile would come back if Redis lost its data."""
    monkeypatch.setattr("bridge.pipeline.move_tail._EVERY_S", 0.0)
    house = await opened(journal, before=True)
    house.source.feed(b"c", {"x-delay": HOUR_MS, "x-delay-key": "c"})
    await house.park()
    house.source.feed(b"", {"x-delay-cancel": "c"})
    await house.park()
    house.leases.take_over(frozenset())
    assert house.journaling is not None
    loops = house.journaling.loops(house.leases.shards, lambda: False, house.health)
    running = [asyncio.create_task(loop) for loop in loops]
    await turns(100)
    for task in running:
        task.cancel()
    assert await waiting(journal, UNDONE) == ["c"]
