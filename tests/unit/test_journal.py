"""The journal: every accepted message has a row, and what waits comes back when the store has lost it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from adapters.memory import Memory
from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import START, UNDONE, JournalEntry, JournalFilter, JournalMessage, Written
from bridge.core.message import HeaderValue, Origin
from bridge.desk.past import PastFilter
from bridge.operate.describe import life_of, with_flow
from bridge.parking.envelope import seal
from bridge.parking.identity import Ids
from bridge.pipeline.journaled import JournaledStore
from bridge.pipeline.putback import OVERDUE, Fate, Overdue, Pace, PutBack, Restorable
from bridge.pipeline.restore import RestoreOrder, Restorer
from tests.unit.house import HOUR_MS, SHARDS, House, turns

pytestmark = pytest.mark.usefixtures("without_waiting")

WAITING = (Written.WAITING, Written.DEAD)
EVERYTHING = RestoreOrder()
LOG = b"orders.delay-0"


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


async def opened(journal: MemoryJournal, before: bool = False, **how: Any) -> House:
    """A house with this journal, whose store writes its moves down."""
    house = House(journal=journal, before=before, **how)
    await house.store.read(range(SHARDS), 1)
    return house


async def written(house: House) -> None:
    """The journal has all that happened so far."""
    assert house.journaling is not None
    await house.journaling.flush()
    await house.journaling.tail.catch_up(range(SHARDS))


def counted(looked_at: int = 0, **numbers: int) -> dict[str, int]:
    """What a restore says: the numbers that are not 0."""
    return {name: number for name, number in {"looked_at": looked_at, **numbers}.items() if number}


async def restored(
    house: House, journal: MemoryJournal, order: RestoreOrder = EVERYTHING, mode: str = "replace"
) -> dict[str, int]:
    """Restore what this order names. Return the numbers that are not 0."""
    desk = MemoryDesk(house.store)
    found = await Restorer(house.store, desk, journal, house.store, lambda _: mode).run(order)
    return counted(found.looked_at, overdue=found.overdue, **{fate.value: found.total(fate) for fate in Fate})


async def waiting(journal: MemoryJournal, states: tuple[Written, ...] = WAITING) -> list[str]:
    """The bodies of the rows in these states, by due moment."""
    rows = await journal.page(JournalFilter(states), START, 1000)
    return [row.envelope[-1:].decode() for row in rows]


async def emptied(house: House, journal: MemoryJournal, **how: Any) -> House:
    """The store lost everything. Another instance starts on the empty one."""
    memory = Memory(SHARDS, house.clock)
    return await opened(journal, memory=memory, instance="bbbbbb", **how)


async def delivered(house: House) -> list[str]:
    """What is delivered within two hours."""
    house.clock.advance(2 * HOUR_MS)
    while await house.deliver():
        pass
    return house.bodies()


class TestBehind:
    async def test_what_is_parked_gets_a_row_after_it_was_accepted(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", HOUR_MS)
        await house.park()
        assert house.source.left() == 0
        assert await waiting(journal) == []
        await written(house)
        assert await waiting(journal) == ["a"]

    async def test_while_the_database_is_away_everything_is_accepted_and_written_later(
        self, journal: MemoryJournal
    ) -> None:
        house = await opened(journal)
        journal.away = "the database is away"
        for body in "abc":
            house.publish(body, HOUR_MS)
        await house.park()
        assert house.source.left() == 0
        assert house.journaling is not None
        assert house.journaling.writer is not None
        with pytest.raises(StoreUnavailable, match="is away"):
            await house.journaling.flush()
        assert house.journaling.writer.unwritten == 3
        assert (
            "messages: 3, delivered ones included. A restore would miss them. Check the database. "
            in house.health.sentence()
        )
        journal.away = ""
        await written(house)
        assert sorted(await waiting(journal)) == ["a", "b", "c"]
        assert house.journaling.writer.unwritten == 0

    async def test_a_lost_reply_of_the_database_writes_no_second_row(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", HOUR_MS)
        await house.park()
        journal.replies_to_lose = 1
        with pytest.raises(StoreUnavailable, match="reply was lost"):
            await written(house)
        await written(house)
        assert await waiting(journal) == ["a"]

    async def test_the_oldest_rows_are_dropped_where_too_many_wait_counted_and_written_later(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bridge.pipeline.journal_writer._WAITING_MAX", 2)
        house = await opened(journal, order="route")
        await house.store.read(range(SHARDS), 1, parks=True)
        for body in "abc":
            house.publish(body, HOUR_MS)
        await house.park()
        await written(house)
        assert await waiting(journal) == ["b", "c"]
        assert house.journaling is not None
        assert house.journaling.writer is not None
        assert house.journaling.writer.dropped == 1
        await house.journaling.tail.adopt(range(SHARDS))
        assert sorted(await waiting(journal)) == ["a", "b", "c"]

    async def test_two_flushes_at_once_write_every_row(self, journal: MemoryJournal) -> None:
        house = await opened(journal, order="route")
        house.publish("a", HOUR_MS)
        await house.park()
        assert house.journaling is not None
        writing, go = asyncio.Event(), asyncio.Event()

        async def slow(entries: Any, moves: Any = (), write: Any = journal.write) -> None:
            writing.set()
            await go.wait()
            await write(entries, moves)

        journal.write = slow  # type: ignore[method-assign]
        first = asyncio.create_task(house.journaling.flush())
        await writing.wait()
        second = asyncio.create_task(house.journaling.flush())  # as an instance that leaves
        await turns()
        house.publish("b", HOUR_MS)
        await house.park()
        go.set()
        await asyncio.gather(first, second)
        assert sorted(await waiting(journal)) == ["a", "b"]

    async def test_a_message_that_left_before_its_row_was_written_waits_no_more(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", 0)
        await house.park()
        await house.deliver()
        assert house.journaling is not None
        await house.journaling.tail.catch_up(range(SHARDS))
        await house.journaling.flush()
        assert await waiting(journal) == []

    async def test_only_rows_of_another_instance_are_looked_up_in_the_journal(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = await opened(journal)
        await house.store.read(range(SHARDS), 1, parks=True)
        for body in "ab":
            house.publish(body, HOUR_MS)
        await house.park()
        await written(house)
        asked: list[int] = []
        lacking = journal.lacking

        async def counting(ids: Sequence[bytes]) -> list[bytes]:
            asked.append(len(ids))
            return await lacking(ids)

        monkeypatch.setattr(journal, "lacking", counting)
        other = House(house.memory, "bbbbbb", journal=journal)
        for looking in (house, other):
            assert looking.journaling is not None
            await looking.journaling.tail.adopt(range(SHARDS))
            await house.store.read(range(SHARDS), 1, parks=True)
        assert asked == []
        house.publish("c", HOUR_MS)
        await house.park()
        await written(house)
        assert other.journaling is not None
        await other.journaling.tail.adopt(range(SHARDS))
        assert asked == [1]

    async def test_what_an_instance_had_not_written_when_it_died_gets_its_row_from_another(
        self, journal: MemoryJournal
    ) -> None:
        house = await opened(journal)
        await house.store.read(range(SHARDS), 1, parks=True)
        house.publish("a", HOUR_MS)
        house.source.feed(b"x", {"x-delay": "soon"})
        await house.park()
        other = House(house.memory, "bbbbbb", journal=journal)
        assert other.journaling is not None
        await other.journaling.tail.catch_up(range(SHARDS))
        await other.journaling.tail.adopt(range(SHARDS))
        assert sorted(await waiting(journal)) == ["a", "x"]
        assert await waiting(journal, (Written.DEAD,)) == ["x"]
        assert await house.store.read(range(SHARDS), 9, parks=True) == {}

    @pytest.mark.parametrize("origin", [(LOG, 0), None], ids=["a record", "a message of a queue"])
    async def test_what_was_parked_by_a_call_without_a_reply_has_a_row_once_it_is_accepted(
        self, journal: MemoryJournal, origin: Origin | None
    ) -> None:
        """The store froze, and parked at its thaw. By then the connection to the broker was another one."""
        house = await opened(journal)
        await house.store.read(range(SHARDS), 1, parks=True)
        house.source.feed(b"a", {"x-delay": HOUR_MS}, order_key=LOG, origin=origin)

        async def unanswered(batches: Any, park: Any = house.store.park) -> Any:
            house.store.park = park  # type: ignore[method-assign]
            await park(batches)
            house.source.lose_connection()
            raise StoreUnavailable("no answer in time")

        house.store.park = unanswered  # type: ignore[method-assign]
        await house.park()
        await house.park()
        assert house.source.left() == 0
        assert house.journaling is not None
        await house.journaling.flush()
        assert await waiting(journal) == ["a"]
        again = await emptied(house, journal)
        assert (await restored(again, journal))["looked_at"] == 1

    async def test_a_call_for_something_new_asks_for_no_log(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = await opened(journal)
        monkeypatch.setattr(house.store, "read", None)
        house.source.feed(b"a", {"x-delay": HOUR_MS}, order_key=LOG, origin=(LOG, 0))
        await house.park()
        assert (house.parked(), house.source.left()) == (1, 0)


class TestBefore:
    async def test_nothing_is_accepted_until_the_database_has_it(self, journal: MemoryJournal) -> None:
        house = await opened(journal, before=True)
        journal.away = "the database is away"
        house.publish("a", HOUR_MS)
        assert house.journaling is not None
        calls = 0

        async def back_at_the_third(entries: Any, moves: Any = (), write: Any = journal.write) -> None:
            nonlocal calls
            calls += 1
            journal.away = journal.away if calls < 3 else ""
            assert house.source.accepted == []
            await write(entries, moves)

        journal.write = back_at_the_third  # type: ignore[method-assign]
        await house.park()
        assert calls == 3
        assert (await waiting(journal), house.parked(), house.count("parked")) == (["a"], 1, 1)
        assert house.source.left() == 0

    async def test_a_lost_reply_of_the_store_writes_one_row_and_parks_once(self, journal: MemoryJournal) -> None:
        house = await opened(journal, before=True)
        house.publish("a", HOUR_MS)
        house.store.lose_reply()
        await house.park()
        assert (await waiting(journal), house.count("parked")) == (["a"], 1)

    async def test_a_record_that_is_read_again_has_one_row_whatever_was_killed_between(
        self, journal: MemoryJournal
    ) -> None:
        house = await opened(journal, before=True)
        house.source.feed(b"a", {"x-delay": HOUR_MS}, order_key=LOG, origin=(LOG, 0))
        house.memory.away = "killed before it parked"
        task = house.parker.once(await house.source.take(10, 1 << 20))
        with pytest.raises(TimeoutError):
            await _for_a_moment(task)
        house.memory.away = ""
        house.source.replay(LOG, 0)
        await house.park()
        await written(house)
        assert (await waiting(journal), house.parked()) == (["a"], 1)
        house.source.replay(LOG, 0)
        await house.park()
        assert (await waiting(journal), house.parked()) == (["a"], 1)

    @pytest.mark.parametrize("slow_one_parks", [True, False])
    @pytest.mark.parametrize("header", [HOUR_MS, "soon"], ids=["parked", "a dead letter"])
    async def test_a_record_that_two_instances_take_at_once_keeps_the_row_of_the_message_that_is_parked(
        self, journal: MemoryJournal, slow_one_parks: bool, header: HeaderValue
    ) -> None:
        """The journal answers the first one so late that its partition is another instance's meanwhile."""
        houses = [await opened(journal, before=True)]
        houses.append(House(houses[0].memory, "bbbbbb", journal=journal, before=True))
        go, writing = asyncio.Event(), asyncio.Event()

        async def late(entries: Any, propose: Any = journal.propose) -> Any:
            journal.propose = propose  # type: ignore[method-assign]
            rivals = await propose(entries) if slow_one_parks else None
            writing.set()
            await go.wait()
            return await propose(entries) if rivals is None else rivals

        journal.propose = late  # type: ignore[method-assign]
        for house in houses:
            house.source.feed(b"a", {"x-delay": header}, order_key=LOG, origin=(LOG, 0))
        first = asyncio.create_task(houses[0].park())
        await writing.wait()
        await houses[1].park()
        go.set()
        await first
        stored = [key for shard in houses[0].memory.shards for key in shard.messages]
        rows = await journal.page(JournalFilter(), START, 10)
        assert [row.id for row in rows] == stored
        assert len(stored) == 1

    async def test_a_record_that_is_kept_out_leaves_no_row_though_its_first_instance_died(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = await opened(journal, before=True, on_same_key="keep")
        other = House(house.memory, "bbbbbb", journal=journal, before=True, on_same_key="keep")

        async def killed(_: Any) -> Any:
            raise KeyboardInterrupt

        headers: dict[str, HeaderValue] = {"x-delay": HOUR_MS, "x-delay-key": "k"}
        house.source.feed(b"a", headers, order_key=LOG, origin=(LOG, 0))
        await house.park()
        monkeypatch.setattr(house.store, "park", killed)
        for each in (house, other):
            each.source.feed(b"b", headers, order_key=LOG, origin=(LOG, 1))
        with pytest.raises(KeyboardInterrupt):
            await house.park()
        await other.park()
        await written(other)
        assert (await waiting(journal), await restored(other, journal)) == (["a"], counted(1, there=1))

    async def test_a_key_that_is_taken_leaves_one_row_a_dead_letter(self, journal: MemoryJournal) -> None:
        house = await opened(journal, before=True, on_same_key="reject")
        for number, body in enumerate("ab"):
            headers: dict[str, HeaderValue] = {"x-delay": HOUR_MS, "x-delay-key": "k"}
            house.source.feed(body.encode(), headers, order_key=LOG, origin=(LOG, number))
            await house.park()
        await written(house)
        assert sorted(await waiting(journal)) == ["a", "b"]
        assert await waiting(journal, (Written.DEAD,)) == ["b"]


class TestMoves:
    async def test_delivered_cancelled_and_replaced_ones_wait_no_more(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("d", 0)
        house.source.feed(b"r", {"x-delay": HOUR_MS, "x-delay-key": "k"})
        house.source.feed(b"c", {"x-delay": HOUR_MS, "x-delay-key": "c"})
        await house.park()
        house.source.feed(b"n", {"x-delay": HOUR_MS, "x-delay-key": "k"})
        house.source.feed(b"", {"x-delay-cancel": "c"})
        await house.park()
        await house.deliver()
        await written(house)
        assert await waiting(journal) == ["n"]
        assert sorted(await waiting(journal, UNDONE)) == ["c", "r"]
        assert await waiting(journal, (Written.DELIVERED,)) == ["d"]

    async def test_a_crash_after_the_write_repeats_it_without_a_change(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", 0)
        await house.park()
        await house.deliver()
        journal.replies_to_lose = 1
        with pytest.raises(StoreUnavailable, match="reply was lost"):
            await written(house)
        await written(house)
        await written(house)
        assert await waiting(journal) == []

    async def test_rows_of_messages_long_gone_are_deleted(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", 0)
        await house.park()
        await house.deliver()
        await written(house)
        assert await journal.prune(house.memory.now_ms(), 10) == 0
        house.clock.advance(1)
        assert await journal.prune(house.memory.now_ms(), 10) == 1


class TestRestore:
    async def test_a_step_back_of_the_stores_clock_hides_no_message(self, journal: MemoryJournal) -> None:
        """As after a failover to a machine whose clock is behind."""
        house = await opened(journal)
        for body in "ab":
            house.publish(body, HOUR_MS)
            await house.park()
            house.clock.advance(1000)
        await written(house)
        house.clock.step(-30_000)
        house = await emptied(house, journal)
        assert await restored(house, journal) == counted(looked_at=2, parked=2)

    @pytest.mark.usefixtures("leaping_time")
    async def test_a_row_that_was_written_while_the_journal_stood_still_is_no_loss(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is written before its message is parked, and the question for it was asked long before."""
        monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.1)
        monkeypatch.setattr("bridge.pipeline.restore._STALLED_S", 0.1)
        house = await opened(journal, before=True)
        house.source.feed(b"a", {"x-delay": HOUR_MS}, order_key=LOG, origin=(LOG, 0))
        park, page, parking = house.store.park, journal.page, list[asyncio.Task[None]]()

        async def park_late(batches: Any) -> Any:
            await asyncio.sleep(0.05)
            return await park(batches)

        async def page_late(*wanted: Any) -> Any:
            journal.page = page  # type: ignore[method-assign]
            await asyncio.sleep(0.2)
            parking.append(asyncio.create_task(house.park()))
            await turns()
            return await page(*wanted)

        monkeypatch.setattr(house.store, "park", park_late)
        monkeypatch.setattr(journal, "page", page_late)
        assert await restored(house, journal) == counted(looked_at=1, there=1)
        await parking[0]
        assert house.count("parked") == 1

    async def test_what_leaves_an_emptied_store_at_once_does_not_come_back(self, journal: MemoryJournal) -> None:
        """Before an instance reads the log of an emptied store, messages come and leave."""
        house = await opened(journal, before=True)
        for shard in house.memory.shards:
            shard.moved = None
        house.publish("a", 0)
        house.publish("b", HOUR_MS)
        await house.park()
        assert await house.deliver() == 1
        assert await restored(house, journal) == counted(looked_at=2, there=1)
        assert await waiting(journal) == ["b"]

    async def test_an_emptied_store_gets_back_what_waited_byte_for_byte_and_nothing_else(
        self, journal: MemoryJournal
    ) -> None:
        house = await opened(journal)
        house.publish("d", 0)
        for body in "abc":
            house.publish(body, HOUR_MS)
        await house.park()
        await house.deliver()
        await written(house)
        before = {key: row for shard in house.memory.shards for key, row in shard.messages.items()}
        again = await emptied(house, journal)
        assert await restored(again, journal, RestoreOrder(dry_run=True)) == counted(looked_at=3, parked=3)
        assert again.parked() == 0
        assert await restored(again, journal) == counted(looked_at=3, parked=3)
        assert {key: row for shard in again.memory.shards for key, row in shard.messages.items()} == before
        assert await restored(again, journal) == counted(looked_at=3, there=3)
        assert sorted(await delivered(again)) == ["a", "b", "c"]

    async def test_beside_running_instances_nothing_comes_twice(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", 0)
        house.publish("b", HOUR_MS)
        await house.park()
        assert house.journaling is not None
        await house.journaling.flush()
        await house.deliver()  # and the journal does not know it yet
        assert await restored(house, journal) == counted(looked_at=2, there=1)
        assert await delivered(house) == ["a", "b"]

    async def test_a_restore_that_was_interrupted_goes_on(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bridge.pipeline.restore.BATCH", 2)
        house = await opened(journal)
        for body in "abcde":
            house.publish(body, HOUR_MS)
        await house.park()
        await written(house)
        again = await emptied(house, journal)
        journal.replies_to_lose = 1
        with pytest.raises(StoreUnavailable):
            await restored(again, journal)
        assert await restored(again, journal) == counted(5, parked=5)
        assert sorted(await delivered(again)) == ["a", "b", "c", "d", "e"]

    @pytest.mark.parametrize(
        ("overdue", "counts", "left"),
        [
            ("deliver", counted(2, parked=2, overdue=1), ["a", "b"]),
            ("skip", counted(2, parked=1, overdue_skipped=1), ["b"]),
            ("dead", counted(2, parked=1, dead=1), ["b"]),
        ],
    )
    async def test_the_operator_chooses_what_becomes_of_overdue_messages(
        self, journal: MemoryJournal, overdue: Any, counts: dict[str, int], left: list[str]
    ) -> None:
        house = await opened(journal)
        house.publish("a", 1000)
        house.publish("b", HOUR_MS)
        await house.park()
        await written(house)
        house.clock.advance(2000)
        again = await emptied(house, journal)
        assert await restored(again, journal, RestoreOrder(overdue=Overdue(overdue))) == counts
        assert again.dead() == ([str(OVERDUE)] if overdue == "dead" else [])
        assert (await MemoryDesk(again.store).stats()).ever.get("dead", 0) == (overdue == "dead"), "it is a new one"
        assert await delivered(again) == left
        await written(again)
        assert await restored(again, journal) == (counted(1, there=1) if overdue == "dead" else {})

    async def test_a_rescheduled_message_comes_back_at_its_last_moment(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", 1000)
        await house.park()
        (message_id,) = (message_id for shard in house.memory.shards for message_id in shard.messages)
        await house.store.reschedule([message_id], house.memory.now_ms() + HOUR_MS)
        await written(house)
        again = await emptied(house, journal)
        await restored(again, journal)
        again.clock.advance(HOUR_MS - 1)
        assert await again.deliver() == 0
        again.clock.advance(1)
        assert await again.deliver() == 1

    async def test_dead_letters_come_back_as_dead_letters(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.source.feed(b"x", {"x-delay": "soon"})
        await house.park()
        await written(house)
        again = await emptied(house, journal)
        assert await restored(again, journal) == counted(1, dead=1)
        assert (again.dead(), again.parked()) == (house.dead(), 0)
        ever = (await MemoryDesk(again.store).stats()).ever
        assert (ever.get("dead", 0), ever.get("rejected", 0), ever["restored"]) == (0, 0, 1), "it is no new one"

    async def test_what_waited_before_there_was_a_journal_is_restored_after_an_import_of_all(
        self, journal: MemoryJournal
    ) -> None:
        house = House()
        house.publish("a", HOUR_MS)
        house.source.feed(b"x", {"x-delay": "soon"})
        await house.park()
        rows = [pair for shard in house.memory.shards for pair in shard.messages.items()]
        dead = {message_id for shard in house.memory.shards for message_id in shard.dead}
        due_ms = house.memory.now_ms() + HOUR_MS
        messages = [
            Restorable(key, b"orders", due_ms, due_ms, b"", row, "bad_header" * (key in dead)) for key, row in rows
        ]
        later = House(house.memory, "bbbbbb", journal=journal)
        store = JournaledStore(later.store, journal)
        fates = await PutBack(store, MemoryDesk(later.store), Overdue.DELIVER, Pace()).put(messages)
        assert set(fates.values()) == {Fate.THERE}
        await written(later)
        again = await emptied(later, journal)
        assert await restored(again, journal) == counted(2, parked=1, dead=1)
        assert await delivered(again) == ["a"]

    async def test_what_was_cancelled_and_then_imported_is_restored_as_any_other(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.publish("a", HOUR_MS)
        await house.park()
        ((message_id, row),) = (pair for shard in house.memory.shards for pair in shard.messages.items())
        await house.store.cancel([message_id], False)
        await written(house)
        assert house.journaling is not None
        importing = PutBack(house.journaling.store, MemoryDesk(house.store), Overdue.DELIVER, Pace())
        due_ms = house.memory.now_ms() + HOUR_MS
        fates = await importing.put([Restorable(message_id, b"orders", due_ms, due_ms, b"", row)])
        assert fates == {message_id: Fate.PARKED}
        await written(house)
        again = await emptied(house, journal)
        assert (await restored(again, journal))["parked"] == 1
        assert await delivered(again) == ["a"]

    async def test_a_bulk_cancel_is_undone_by_its_filter(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        for body in "ab":
            house.publish(body, HOUR_MS)
        await house.park()
        ids = [message_id for shard in house.memory.shards for message_id in shard.messages]
        await house.store.cancel(ids, True, reason="a mistake")
        assert await restored(house, journal) == counted()
        await written(house)
        order = RestoreOrder(JournalFilter((*WAITING, *UNDONE), route="orders"), by="anna (cli)")
        assert await restored(house, journal, order) == counted(2, parked=2)
        assert await restored(house, journal, order) == counted(2, there=2)
        assert (await journal.flow(ids[0]))[-1][1:3] == ("restored", "anna (cli)")
        assert sorted(await delivered(house)) == ["a", "b"]

    async def test_an_undo_does_not_wait(self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch) -> None:
        """A row that ended was parked before: no instance is about to park it."""
        house = await opened(journal)
        house.publish("a", HOUR_MS)
        await house.park()
        (message_id,) = (message_id for shard in house.memory.shards for message_id in shard.messages)
        await house.store.cancel([message_id], True)
        await written(house)
        monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 3600.0)
        order = RestoreOrder(JournalFilter((*WAITING, *UNDONE), ids=(message_id,)))
        async with asyncio.timeout(10):
            assert await restored(house, journal, order) == counted(1, parked=1)
        assert await delivered(house) == ["a"]

    async def test_beside_an_undo_it_waits(self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch) -> None:
        house = await opened(journal)
        for body in "ab":
            house.publish(body, HOUR_MS)
        await house.park()
        await written(house)
        await house.store.cancel([(await journal.page(JournalFilter(), START, 1))[0].id], True)
        await written(house)
        fresh, began_s = await emptied(house, journal), asyncio.get_running_loop().time()
        monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.05)
        order = RestoreOrder(JournalFilter((*WAITING, *UNDONE)))
        assert await restored(fresh, journal, order) == counted(2, parked=2)
        assert asyncio.get_running_loop().time() - began_s >= 0.05

    async def test_the_youngest_message_of_a_key_wins(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.source.feed(b"o", {"x-delay": HOUR_MS, "x-delay-key": "k"})
        await house.park()
        await written(house)
        again = await emptied(house, journal)
        again.clock.advance(10)
        again.source.feed(b"n", {"x-delay": HOUR_MS, "x-delay-key": "k"})
        await again.park()
        assert await restored(again, journal) == counted(1, key_taken=1)
        assert await delivered(again) == ["n"]

    @pytest.mark.parametrize("page", [1, 100])
    @pytest.mark.parametrize(("mode", "left"), [("replace", ["n"]), ("keep", ["o"])])
    async def test_of_two_messages_with_a_key_one_comes_back_though_the_log_of_moves_was_lost(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, mode: str, left: list[str], page: int
    ) -> None:
        """The row of the other one waits: it was replaced shortly before the loss, or its instance died."""
        monkeypatch.setattr("bridge.pipeline.restore.BATCH", page)
        house = await opened(journal, before=True)
        for body, delay_ms in (("o", HOUR_MS), ("n", 2 * HOUR_MS)):
            house.source.feed(body.encode(), {"x-delay": delay_ms, "x-delay-key": "k"})
            await house.park()
            house.clock.advance(10)
        assert await waiting(journal) == ["o", "n"]
        again = await emptied(house, journal)
        await restored(again, journal, mode=mode)
        assert await delivered(again) == left
        await written(again)
        assert await waiting(journal) == []

    async def test_a_restored_key_cancels_and_replaces_as_before(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.source.feed(b"a", {"x-delay": HOUR_MS, "x-delay-key": "k"})
        house.source.feed(b"b", {"x-delay": HOUR_MS}, message_id=b"m-1")
        await house.park()
        await written(house)
        again = await emptied(house, journal)
        await restored(again, journal)
        again.source.feed(b"", {"x-delay-cancel": "k"})
        again.source.feed(b"", {"x-delay-cancel": "m-1"})
        await again.park()
        assert again.parked() == 0

    async def test_two_restores_at_once_deliver_no_message_twice(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The slow restore has found a message missing when the other one parks it and it leaves."""
        put, looked, go_on = PutBack.put, asyncio.Event(), asyncio.Event()

        async def slowly(self: PutBack, messages: Sequence[Restorable]) -> dict[bytes, Fate]:
            if not looked.is_set():
                looked.set()
                await go_on.wait()
            return await put(self, messages)

        monkeypatch.setattr(PutBack, "put", slowly)
        house = await opened(journal)
        house.publish("a", HOUR_MS)
        await house.park()
        await written(house)
        fresh = await emptied(house, journal)
        fresh.clock.advance(2 * HOUR_MS)
        slow = asyncio.ensure_future(restored(fresh, journal))
        await looked.wait()
        other = asyncio.ensure_future(restored(fresh, journal))
        await asyncio.wait([other], timeout=0.05)
        await fresh.deliver()
        go_on.set()
        found = await asyncio.gather(slow, other)
        assert sorted(each.get("parked", 0) for each in found) == [0, 1]
        assert await delivered(fresh) == ["a"]

    async def test_no_other_restore_has_its_turn_while_one_looks_again(
        self, journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks, look = 0, Restorer._absent

        async def slowly(self: Restorer, rows: Sequence[JournalMessage], settled: bool) -> list[JournalMessage]:
            nonlocal looks
            looks += 1
            fresh.clock.advance(20_000)
            assert not await self._desk.lead("restore page", "another", 1000)
            return await look(self, rows, settled)

        house = await opened(journal)
        house.publish("a", HOUR_MS)
        await house.park()
        await written(house)
        fresh = await emptied(house, journal)
        monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.05)
        monkeypatch.setattr(Restorer, "_absent", slowly)
        assert (await restored(fresh, journal))["parked"] == 1
        assert looks >= 2


class TestHistory:
    async def test_it_reaches_back_as_far_as_the_journal_and_tells_the_whole_flow(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.source.feed(b"a", {"x-delay": HOUR_MS, "x-delay-key": "k"})
        await house.park()
        (message_id,) = (message_id for shard in house.memory.shards for message_id in shard.messages)
        due_ms = house.memory.now_ms() + 2 * HOUR_MS
        await house.store.reschedule([message_id], due_ms)
        house.clock.advance(5)
        await house.store.cancel([message_id], True, reason="a mistake")
        await written(house)
        for shard in house.memory.shards:
            shard.history.clear()
        desk = house.desk
        for wanted in (PastFilter(id=message_id), PastFilter(key=b"k")):
            (row,) = [row async for row in desk.history(wanted)]
            assert (row.id, row.state, row.due_ms, row.reason) == (message_id, "cancelled", due_ms, "a mistake")
        life = with_flow(life_of(row), await desk.flow(message_id))
        assert [event.what.partition(" ")[0] for event in life] == ["received", "rescheduled", "cancelled", "due"]

    async def test_what_the_store_knows_comes_once_and_without_a_database_alone(self, journal: MemoryJournal) -> None:
        house = await opened(journal)
        house.source.feed(b"a", {"x-delay": HOUR_MS})
        await house.park()
        (message_id,) = (message_id for shard in house.memory.shards for message_id in shard.messages)
        await house.store.cancel([message_id], True)
        await written(house)
        desk = house.desk
        for away in ("", "the database is away"):
            journal.away = away
            assert len([row async for row in desk.history(PastFilter(id=message_id))]) == 1
        assert await desk.flow(message_id) == []


async def test_of_two_that_arrived_in_one_millisecond_a_restore_brings_back_the_later(journal: MemoryJournal) -> None:
    house, ids = await opened(journal), Ids("aaaaaa")
    now_ms = house.clock.now_ms()
    for body, delay_ms in ((b"a", 2 * HOUR_MS), (b"b", HOUR_MS)):
        envelope = seal(now_ms + delay_ms, now_ms, b"orders", b"k", b"", body)
        await journal.write([JournalEntry(ids.next(now_ms, 0), now_ms + delay_ms, envelope)])
    assert await restored(house, journal, RestoreOrder(max_rate=1)) == counted(2, parked=1, key_taken=1)
    house.clock.advance(2 * HOUR_MS)
    assert (await house.deliver(), house.bodies()) == (1, ["b"])


async def _for_a_moment(work: Any) -> None:
    async with asyncio.timeout(0.05):
        await work
