"""A restore right after a cancellation: the journal may not know of it yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.journal import UNDONE, JournalFilter
from bridge.pipeline.restore import RestoreOrder, Restorer
from tests.unit.house import HOUR_MS, SHARDS, House
from tests.unit.test_journal import WAITING, counted, delivered, opened, restored, waiting, written

pytestmark = pytest.mark.usefixtures("without_waiting")


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


async def cancelled(journal: MemoryJournal) -> House:
    """Return a house that has just cancelled its only message: the row still says that it waits."""
    house = await opened(journal)
    house.publish("a", HOUR_MS)
    await house.park()
    await written(house)
    await house.store.cancel([message_id for shard in house.memory.shards for message_id in shard.messages], True)
    assert await waiting(journal) == ["a"]
    return house


async def test_a_cancellation_is_undone_at_once_though_no_instance_has_carried_it(journal: MemoryJournal) -> None:
    house = await cancelled(journal)
    order = RestoreOrder(JournalFilter((*WAITING, *UNDONE)))
    assert await restored(house, journal, replace(order, dry_run=True)) == counted(1, parked=1)
    assert await restored(house, journal, order) == counted(1, parked=1)
    await written(house)
    assert (await waiting(journal), await delivered(house)) == (["a"], ["a"])


async def test_a_cancellation_counts_at_once_towards_how_many_may_be_undone(journal: MemoryJournal) -> None:
    house = await cancelled(journal)
    restorer = Restorer(house.store, MemoryDesk(house.store), journal, house.store)
    assert await restorer.count(JournalFilter(UNDONE)) == 1


async def test_an_instance_that_carries_a_cancellation_late_does_not_end_the_restored_message(
    journal: MemoryJournal,
) -> None:
    house = await cancelled(journal)
    read = [move for logged in (await house.store.read(range(SHARDS), 10)).values() for move in logged.moves]
    assert await restored(house, journal, RestoreOrder(JournalFilter(UNDONE))) == counted(1, parked=1)
    await journal.record(read)
    assert await waiting(journal) == ["a"]


async def test_a_message_that_leaves_during_a_restore_does_not_count_as_there(journal: MemoryJournal) -> None:
    house = await cancelled(journal)
    assert await restored(house, journal) == counted(1)
