"""Two instances may take one record, so the journal may have two rows for it: one comes back, whichever is deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from adapters.memory.memory_journal import MemoryJournal
from bridge.core.journal import START, JournalEntry, JournalFilter, JournalMessage
from bridge.parking.identity import Ids
from tests.unit.house import HOUR_MS, House
from tests.unit.test_journal import LOG, counted, emptied, opened, restored, waiting

pytestmark = pytest.mark.usefixtures("without_waiting")


async def parked_once(journal: MemoryJournal, other: str) -> tuple[House, bytes]:
    """A record that is parked, and has another row, with the id of this instance. Return that id."""
    house = await opened(journal, before=True)
    second = Ids(other).next(house.clock.now_ms(), 0)
    house.source.feed(b"a", {"x-delay": HOUR_MS}, order_key=LOG, origin=(LOG, 0))
    await house.park()
    (row,) = await journal.page(JournalFilter(), START, 10)
    await journal.propose([JournalEntry(second, row.due_ms, row.envelope, (LOG, 0))])
    assert await waiting(journal) == ["a", "a"]
    return house, second


@pytest.mark.parametrize("lost", [False, True])
async def test_a_row_whose_record_was_parked_under_another_id_is_no_loss(lost: bool) -> None:
    """An instance died before it could delete the row, and two rows of one record are left."""
    journal = MemoryJournal()
    house, _ = await parked_once(journal, "bbbbbb")
    if lost:
        house = await emptied(house, journal, before=True)
    await restored(house, journal)
    assert await waiting(journal) == ["a"]
    assert house.parked() == 1


@pytest.mark.parametrize("other", ["000000", "bbbbbb"], ids=["of the older row", "of the younger row"])
async def test_of_two_rows_one_comes_back_though_a_call_deletes_the_other_meanwhile(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The store, which lost the message, skipped the record of that call, so the call deletes its own row."""
    monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.05)
    journal = MemoryJournal()
    house, second = await parked_once(journal, other)
    fresh, found = await emptied(house, journal, before=True), journal.rivals

    async def rivals(ids: Sequence[bytes]) -> list[tuple[bytes, JournalMessage]]:
        pairs = await found(ids)
        await journal.drop([second])
        return pairs

    monkeypatch.setattr(journal, "rivals", rivals)
    assert await restored(fresh, journal) == counted(looked_at=2, parked=1)
    assert await waiting(journal) == ["a"]
