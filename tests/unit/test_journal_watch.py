"""A watch notices what the store lost, and restores it where the settings say so."""

from __future__ import annotations

import asyncio

import pytest

from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import JournalEntry, JournalFilter
from bridge.core.ports import Loss
from bridge.parking.envelope import seal
from bridge.parking.identity import Ids
from bridge.pipeline.journal_watch import JournalWatch
from bridge.pipeline.restore import Restored, RestoreOrder, Restorer
from bridge.telemetry.health import WELL
from bridge.telemetry.subject import rendered
from tests.unit.house import HOUR_MS, House, turns
from tests.unit.test_journal import LOG, delivered, emptied, opened, restored, written

pytestmark = pytest.mark.usefixtures("without_waiting")


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


async def used(journal: MemoryJournal) -> House:
    """A house with a message that waits and one that was delivered."""
    house = await opened(journal)
    house.publish("a", HOUR_MS)
    house.publish("d", 0)
    await house.park()
    await house.deliver()
    return house


class TestWatch:
    def watch(self, house: House, journal: MemoryJournal, auto: bool = False) -> JournalWatch:
        desk = MemoryDesk(house.store)
        return JournalWatch(Restorer(house.store, desk, journal, house.store), desk, "bbbbbb", auto, house.health)

    async def lost(self, journal: MemoryJournal) -> House:
        """An instance on an emptied store, which was ``used``."""
        house = await used(journal)
        await written(house)
        return await emptied(house, journal)

    async def test_a_store_that_has_everything_is_well(self, journal: MemoryJournal) -> None:
        house = await used(journal)
        assert house.journaling is not None
        await house.journaling.flush()
        await self.watch(house, journal, auto=True).once()
        assert house.health.sentence() == WELL
        assert (house.parked(), house.memory.audit) == (1, [])

    async def test_a_loss_is_named_with_the_command_until_it_is_restored(self, journal: MemoryJournal) -> None:
        house = await self.lost(journal)
        watch = self.watch(house, journal)
        await watch.once()
        assert house.health.sentence() == (
            "Redis lacks messages that wait according to the journal. Run `postdate restore`."
        )
        assert house.parked() == 0
        house.memory.loss = Loss(1, 0, 0)
        await restored(house, journal, RestoreOrder(JournalFilter(due_from_ms=2 * HOUR_MS)))
        assert house.memory.loss is not None, "only a part of it was restored"
        await restored(house, journal)
        assert house.memory.loss is None
        await watch.once()
        assert house.health.sentence() == WELL

    @pytest.mark.parametrize("before", [None, Loss(1, 0, 0)])
    async def test_a_restore_does_not_end_a_loss_that_came_while_it_ran(
        self, journal: MemoryJournal, before: Loss | None
    ) -> None:
        house = await self.lost(journal)
        house.memory.loss, again = before, Loss(2, 0, 0)
        restorer = Restorer(house.store, MemoryDesk(house.store), journal, house.store)

        async def lose(_: Restored) -> None:
            house.memory.loss = again

        await restorer.run(RestoreOrder(), progress=lose)
        assert house.memory.loss is again, "what its first pages brought back may be lost again"
        await restorer.run(RestoreOrder())
        assert house.memory.loss is None
        house.memory.loss, journal.rows = again, {}
        await restorer.run(RestoreOrder())
        assert house.memory.loss is None, "a journal without a waiting message has nothing to bring back"

    async def test_a_restore_notes_that_it_is_under_way_before_it_has_put_anything_back(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house, noted = await self.lost(journal), list[int | None]()
        desk = MemoryDesk(house.store)

        async def note(messages: int | None = None) -> None:
            noted.append(messages)

        monkeypatch.setattr(desk, "note_restored", note)
        restorer = Restorer(house.store, desk, journal, house.store)
        await restorer.run(RestoreOrder(dry_run=True))
        assert noted == []
        await restorer.run(RestoreOrder())
        assert noted == [0, 1, None]

    async def test_a_journal_that_is_away_is_a_trouble_also_while_nothing_is_written(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = await opened(journal)
        watch, journal.away = self.watch(house, journal), "the journal's file a.db is missing. Move it back"
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await watch.once()
            assert rendered(house.health.troubles()) == {"journal": journal.away}
        journal.away, house.memory.away = "", "the store is away"
        house.publish("a", HOUR_MS)
        with pytest.raises(StoreUnavailable):
            await watch.once()
        assert house.health.sentence() == WELL, "the store has a trouble of its own"

    @pytest.mark.usefixtures("leaping_time")
    async def test_the_trouble_of_a_journal_that_is_back_ends_within_a_second(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        watch, journal.away = self.watch(house, journal), "the journal's file a.db is missing. Move it back"
        watching = asyncio.ensure_future(watch.run())
        await asyncio.sleep(0.1)
        assert rendered(house.health.troubles()) == {"journal": journal.away}
        journal.away = ""
        await asyncio.sleep(2.0)
        assert house.health.sentence() == WELL
        watching.cancel()

    async def test_what_an_outage_kept_from_being_parked_is_no_loss(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An instance tries again some seconds after the store is back, and the row is there."""
        for name, seconds in (("_SETTLE_S", 0.2), ("_LOOK_S", 0.01)):
            monkeypatch.setattr(f"bridge.pipeline.restore.{name}", seconds)
        house, now_ms = await opened(journal, before=True), 1_000
        envelope = seal(now_ms, now_ms, b"orders", b"", b"", b"a")
        await journal.propose([JournalEntry(Ids("aaaaaa").next(now_ms, 0), now_ms, envelope, (LOG, 0))])
        looking = asyncio.create_task(self.watch(house, journal).once())
        await turns()
        house.memory.away = "the store is away"
        with pytest.raises(StoreUnavailable):
            await looking
        assert house.health.sentence() == WELL

    async def test_the_instances_say_that_they_restore_where_they_do(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = await self.lost(journal)
        watch = self.watch(house, journal, auto=True)
        monkeypatch.setattr(watch, "_restore", turns)
        await watch.once()
        assert house.health.sentence().endswith("the journal. The instances restore them from the journal.")

    async def test_auto_restores_it_and_says_so_in_the_audit_log(self, journal: MemoryJournal) -> None:
        house = await self.lost(journal)
        await self.watch(house, journal, auto=True).once()
        assert house.health.sentence() == WELL
        (entry,) = house.memory.audit
        assert (entry.verb, entry.messages, str(entry.by)) == ("restore", 1, "postdate (journal.restore)")
        assert house.memory.restored == 1, "the sentence about the loss counts it down"
        assert await delivered(house) == ["a"]
