"""The cold tier: distant messages leave the store, come back in time, and are found by every verb."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.memory import ManualClock, Memory
from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.app.build import begin_logs
from bridge.core.errors import StoreUnavailable, StoreUnfit
from bridge.core.journal import START, JournalFilter, JournalMessage, Written
from bridge.core.ports import Claimed
from bridge.core.state import State
from bridge.desk.rows import Filter
from bridge.parking.envelope import index_field
from bridge.pipeline.putback import Fate, Overdue, Pace, PutBack, Restorable
from bridge.pipeline.restore import RestoreOrder, Restorer
from bridge.pipeline.tiers import JOURNAL_COLD, Loader, TieredStore
from tests.unit.house import HOUR_MS, SHARDS, House

pytestmark = pytest.mark.usefixtures("without_waiting")

COLD = JournalFilter((Written.COLD,))
WAITS_COLD = Written.WAITING, Written.COLD


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


async def opened(journal: MemoryJournal, cold_after_ms: int = 2 * HOUR_MS, **how: Any) -> House:
    """A house whose messages cool after two hours."""
    house = House(journal=journal, before=True, cold_after_ms=cold_after_ms, **how)
    await house.store.read(range(SHARDS), 1)
    await Loader(journal, house.store, house.store, SHARDS).begin()
    return house


async def cooled(house: House, *delays_ms: int, key: str = "") -> None:
    """Messages are parked, and those that are due late go to the journal."""
    for number, delay_ms in enumerate(delays_ms):
        headers: dict[str, Any] = {"x-delay": delay_ms, **({"x-delay-key": key} if key else {})}
        house.source.feed(b"%d" % number, headers, order_key=b"%d" % number)
    await house.park()
    await house.tiering.unload(range(SHARDS), house.clock.now_ms())


async def cold(journal: MemoryJournal) -> list[str]:
    """The bodies of what the journal says is cold."""
    return [row.envelope[-1:].decode() for row in await journal.page(COLD, START, 100)]


def parking(house: House) -> TieredStore:
    """The way in."""
    assert house.journaling is not None
    return TieredStore(house.store, Loader(house.tiering._journal, house.store, house.store, SHARDS))


async def test_what_is_due_much_later_leaves_the_store_and_is_delivered_at_its_moment(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, HOUR_MS, 3 * HOUR_MS)
    assert (house.parked(), await cold(journal)) == (1, ["1"])
    house.clock.advance(2 * HOUR_MS - 1)
    await house.tiering.load(house.clock.now_ms())
    assert house.parked() == 1
    house.clock.advance(1)
    await house.tiering.load(house.clock.now_ms() + 1)
    assert house.parked() == 2
    assert await house.deliver() == 1
    house.clock.advance(HOUR_MS - 1)
    assert await house.deliver() == 0
    house.clock.advance(1)
    assert (await house.deliver(), house.bodies()) == (1, ["0", "1"])


async def test_a_row_is_cold_until_a_later_look_finds_its_message_in_the_store(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS)
    for left in (["0"], []):
        await house.tiering.load(house.clock.now_ms() + 3 * HOUR_MS)
        assert (house.parked(), await cold(journal)) == (1, left)
    await house.tiering.unload(range(SHARDS), house.clock.now_ms())
    assert house.parked() == 1


async def test_whatever_the_clock_did_nothing_is_skipped(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS, 30 * HOUR_MS)
    await house.tiering.load(house.clock.now_ms() + 50 * HOUR_MS)
    assert house.parked() == 2
    house.memory = Memory(SHARDS, house.clock)
    again = await opened(journal, memory=house.memory, instance="bbbbbb")
    await again.tiering.load(house.clock.now_ms() + 100 * HOUR_MS)
    assert again.parked() == 2


async def test_an_instance_without_the_lease_loads_nothing_and_says_when_it_is_late(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS)
    await house.desk.lead("load", "another", 10 * HOUR_MS)
    now_ms = house.clock.now_ms() + 2 * HOUR_MS + HOUR_MS // 2 + 60_000
    await house.tiering.load(now_ms)
    assert house.parked() == 0
    assert house.tiering.behind_ms(now_ms) == 60_000
    house.tiering._report(now_ms)
    assert "due in 29m are not loaded" in house.health.troubles()[JOURNAL_COLD]


async def test_a_database_that_is_away_is_named_when_loading_becomes_late(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await house.tiering.load(house.clock.now_ms())
    journal.away = "the database is away"
    with pytest.raises(StoreUnavailable):
        await house.tiering.load(house.clock.now_ms())
    assert house.tiering.behind_ms(house.clock.now_ms() + HOUR_MS // 2) == 0
    assert house.tiering.behind_ms(house.clock.now_ms() + HOUR_MS) == HOUR_MS // 2


async def test_without_cold_after_what_is_cold_comes_back_half_an_hour_before(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS)
    other = await opened(journal, 0, memory=house.memory, instance="bbbbbb")
    await cooled(other, 9 * HOUR_MS)
    assert (other.parked(), await cold(journal)) == (1, ["0"])
    await other.tiering.load(house.clock.now_ms() + 2 * HOUR_MS + HOUR_MS // 2)
    assert other.parked() == 1
    await other.tiering.load(house.clock.now_ms() + 2 * HOUR_MS + HOUR_MS // 2 + 1)
    assert other.parked() == 2


@pytest.mark.parametrize(("mode", "bodies", "dead"), [("replace", ["1"], 0), ("keep", ["0"], 0), ("reject", ["0"], 1)])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another shard", "the same shard"])
async def test_a_key_of_a_cold_message_is_taken(
    journal: MemoryJournal, mode: str, bodies: list[str], dead: int, elsewhere: bool
) -> None:
    house = await opened(journal, on_same_key=mode, order="key")
    for number in range(2):
        key = b"b" if number and elsewhere else b"a"
        house.source.feed(b"%d" % number, {"x-delay": 3 * HOUR_MS, "x-delay-key": "k"}, order_key=key)
        await house.park()
        await house.tiering.unload(range(SHARDS), house.clock.now_ms())
    assert house.journaling is not None
    await house.journaling.tail.catch_up(range(SHARDS))
    rows = [row async for row in house.desk.rows(State.PARKED, Filter())]
    assert ([row.payload.decode() for row in rows], len(house.dead())) == (bodies, dead)
    assert (await house.desk.stats()).parked == 1


@pytest.mark.parametrize("wanted", [Filter(route="bills"), Filter(key=b"k")])
async def test_a_list_of_a_route_or_a_key_reads_no_other_cold_messages(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, wanted: Filter
) -> None:
    monkeypatch.setattr("bridge.operate.journaled_desk._COLD_PAGE", 2)
    house = await opened(journal, also=["bills"])
    await cooled(house, *[hours * HOUR_MS for hours in range(3, 12)])
    house.source.feed(b"x", {"x-delay": 20 * HOUR_MS, "x-delay-key": "k"}, "bills")
    await cooled(house)
    read: list[int] = []
    page = journal.page

    async def counting(*how: Any) -> list[JournalMessage]:
        read.append(1)
        return await page(*how)

    monkeypatch.setattr(journal, "page", counting)
    assert [row.payload async for row in house.desk.rows(State.PARKED, wanted)] == [b"x"]
    assert len(read) == 2


async def test_a_list_misses_no_cold_message_though_earlier_ones_become_cold_meanwhile(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.operate.journaled_desk._COLD_PAGE", 2)
    house = await opened(journal)
    await cooled(house, 5 * HOUR_MS, 6 * HOUR_MS, 7 * HOUR_MS)
    page, calls = journal.page, 0

    async def meanwhile(*how: Any) -> list[JournalMessage]:
        nonlocal calls
        calls += 1
        if calls == 2:  # between the two looks at cold rows
            await cooled(house, 3 * HOUR_MS, 4 * HOUR_MS)
        return await page(*how)

    monkeypatch.setattr(journal, "page", meanwhile)
    found = [row.at_ms for row in [row async for row in house.desk.rows(State.PARKED, Filter())]]
    assert [(at_ms - house.clock.now_ms()) // HOUR_MS for at_ms in found] == [3, 4, 5, 6, 7]


@pytest.mark.usefixtures("leaping_time")
async def test_without_a_cold_tier_keys_ask_for_one_at_most_once_a_second(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(journal=journal, before=True)
    await house.store.read(range(SHARDS), 1)
    asked: list[bool] = []
    marks = house.store.marks

    async def counting(shards: Iterable[int]) -> dict[int, bytes]:
        asked.append(True)
        return await marks(shards)

    monkeypatch.setattr(house.store, "marks", counting)
    for _ in range(3):
        house.source.feed(b"0", {"x-delay": 3 * HOUR_MS, "x-delay-key": "k"})
        await house.park()
    assert (len(asked), house.parked()) == (1, 1)
    other = await opened(journal, memory=house.memory, instance="bbbbbb")
    unloading = asyncio.create_task(other.tiering._unload_loop(lambda: range(SHARDS), house.clock))
    await asyncio.sleep(2.9)  # every instance knows of the tier before anything goes there
    assert house.parked() == 1
    await asyncio.sleep(0.2)
    unloading.cancel()
    assert (house.parked(), await cold(journal)) == (0, ["0"])
    house.source.feed(b"", {"x-delay-cancel": "k"})
    await house.park()
    assert house.count("cancelled") == 1


@pytest.mark.parametrize("tier", [Written.WAITING, Written.COLD])
async def test_what_comes_back_after_a_loss_and_a_step_back_of_the_clock_leaves_once(
    journal: MemoryJournal, tier: Written
) -> None:
    """Its row has a move that the clock has not reached again. Each further restore delivered it."""
    house = await opened(journal)
    await cooled(house, HOUR_MS)
    (message_id,) = (message_id for shard in house.memory.shards for message_id in shard.messages)
    await house.store.reschedule([message_id], house.clock.now_ms() + 4 * HOUR_MS)
    await parking(house)._loader.carry([message_id])
    if tier is Written.COLD:
        await house.tiering.unload(range(SHARDS), house.clock.now_ms())
    assert (await journal.look([message_id]))[message_id].state is tier
    house.clock.step(-5 * HOUR_MS)
    again = await opened(journal, memory=Memory(SHARDS, house.clock), instance="bbbbbb")
    restorer = Restorer(again.store, again.desk, journal, again.store)
    await restorer.run(RestoreOrder())
    await again.desk.reschedule([message_id], house.clock.now_ms())
    assert await again.deliver() == 1
    await parking(again)._loader.carry([message_id])
    assert (await journal.look([message_id]))[message_id].state is Written.DELIVERED
    assert (await restorer.run(RestoreOrder())).looked_at == 0


async def test_what_a_restore_parks_after_another_loss_leaves_once(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was emptied after the look, and no instance has begun a log since."""
    await cooled(await opened(journal), HOUR_MS)
    again = await opened(journal, memory=Memory(SHARDS, ManualClock()), instance="bbbbbb")
    rivals = journal.rivals

    async def emptied(ids: Sequence[bytes]) -> list[tuple[bytes, JournalMessage]]:
        for shard in again.memory.shards:
            shard.moved = None
        return await rivals(ids)

    monkeypatch.setattr(journal, "rivals", emptied)
    await Restorer(again.store, again.desk, journal, again.store).run(RestoreOrder())
    again.clock.advance(HOUR_MS)
    assert await again.deliver() == 1
    (message_id,) = journal.rows
    await parking(again)._loader.carry([message_id])
    assert journal.rows[message_id].message.state is Written.DELIVERED


async def test_a_producer_cancels_a_cold_message_by_key_and_by_message_id(journal: MemoryJournal) -> None:
    house = await opened(journal)
    house.source.feed(b"0", {"x-delay": 3 * HOUR_MS}, message_id=b"m-1")
    await cooled(house, 4 * HOUR_MS, key="k")
    assert house.parked() == 0
    for name in ("m-1", "k"):
        house.source.feed(b"", {"x-delay-cancel": name})
    await house.park()
    assert (house.count("cancelled"), (await house.desk.stats()).parked) == (2, 0)


async def test_a_key_that_too_many_cold_messages_have_is_no_identity(journal: MemoryJournal) -> None:
    house = await opened(journal)
    for _ in range(30):
        house.source.feed(b"x", {"x-delay": 3 * HOUR_MS}, message_id=b"load")
    await cooled(house)
    house.source.feed(b"", {"x-delay-cancel": "load"})
    await house.park()
    assert [reason.partition(":")[0] for reason in house.dead()] == ["not_unique"]
    found = await house.desk.find("orders", b"load")
    assert (found.ids, found.unlisted > 16) == ([], True)


async def test_a_message_of_a_lost_store_stays_away_where_a_younger_cold_one_has_its_key(
    journal: MemoryJournal,
) -> None:
    house = await opened(journal)
    await cooled(house, HOUR_MS, key="k")
    memory = Memory(SHARDS, house.clock)
    house.clock.advance(5)
    again = await opened(journal, memory=memory, instance="bbbbbb")
    await cooled(again, 3 * HOUR_MS, key="k")
    assert again.parked() == 0
    found = await Restorer(parking(again), MemoryDesk(again.store), journal, again.store).run(RestoreOrder())
    assert (found.total(Fate.KEY_TAKEN), found.total(Fate.PARKED)) == (1, 0)


async def test_what_is_put_back_is_there_where_it_is_cold(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS)
    (row,) = await journal.page(COLD, START, 1)
    putback = PutBack(parking(house), house.desk, Overdue.DELIVER, Pace())
    back = Restorable(row.id, b"orders", row.due_ms, row.due_ms, b"", row.envelope)
    assert await putback.put([back]) == {row.id: Fate.THERE}
    assert (await house.desk.stats()).parked == 1


async def test_counts_of_cold_messages_outlive_the_store(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, HOUR_MS, 3 * HOUR_MS, 4 * HOUR_MS)
    assert await house.store.parked_by_route(["orders"]) == {"orders": 3}
    again = await opened(journal, memory=Memory(SHARDS, house.clock), instance="bbbbbb")
    assert await again.store.parked_by_route(["orders"]) == {"orders": 2}
    stats = await again.desk.stats()
    assert (stats.parked, stats.cold, stats.by_route["orders"].cold) == (2, 2, 2)


@pytest.mark.parametrize("number", [5, -1])
async def test_counts_that_a_failover_took_back_are_corrected(journal: MemoryJournal, number: int) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS, 9 * HOUR_MS, 9 * HOUR_MS)
    await house.tiering.load(house.clock.now_ms())
    shards = house.memory.shards
    true = [shard.routes["cold", b"orders"] for shard in shards]
    for shard in shards:
        shard.routes["cold", b"orders"] += number
    shards[0].routes["cold", b"removed"] = 7
    await house.tiering.count()
    assert [shard.routes["cold", b"orders"] for shard in shards] == true
    assert ("cold", b"removed") not in shards[0].routes


async def test_what_waits_to_leave_the_store_is_not_counted_as_cold_yet(journal: MemoryJournal) -> None:
    house = await opened(journal)
    house.source.feed(b"0", {"x-delay": 9 * HOUR_MS})
    await house.park()
    await journal.shift([message_id for shard in house.memory.shards for message_id in shard.messages], *WAITS_COLD)
    for _ in range(3):
        await house.tiering.load(house.clock.now_ms())
        await house.tiering.count()
    assert (await house.desk.stats()).cold == 0
    await house.tiering.unload(range(SHARDS), house.clock.now_ms())
    assert (await house.desk.stats()).cold == 1


async def test_counts_are_left_alone_where_messages_change_their_tier_meanwhile(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await opened(journal)
    await cooled(house, 9 * HOUR_MS, 9 * HOUR_MS)
    await house.tiering.load(house.clock.now_ms())
    read = journal.cold_counts

    async def late(due_from_ms: int = 0) -> dict[int, dict[str, int]]:
        found = await read(due_from_ms)
        await cooled(house, 9 * HOUR_MS)
        return found

    monkeypatch.setattr(journal, "cold_counts", late)
    for _ in range(3):
        await house.tiering.count()
    monkeypatch.undo()
    assert (await house.desk.stats()).cold == 5


async def test_a_wrong_count_is_corrected_though_as_many_messages_are_in_both_tiers(journal: MemoryJournal) -> None:
    house = await opened(journal)
    house.source.feed(b"0", {"x-delay": 9 * HOUR_MS})
    await house.park()
    (shard,) = (shard for shard in house.memory.shards if shard.messages)
    await journal.shift(list(shard.messages), *WAITS_COLD)
    await house.tiering.load(house.clock.now_ms())
    shard.routes["cold", b"orders"] += 1
    await house.tiering.count()
    assert (await house.desk.stats()).cold == 0


async def test_an_instance_that_missed_a_step_of_the_clock_counts_no_held_message_as_cold(
    journal: MemoryJournal,
) -> None:
    house = await opened(journal)
    await cooled(house, 9 * HOUR_MS)
    await house.tiering.load(house.clock.now_ms())
    before_ms = house.tiering.loaded_until_ms
    house.clock.step(10 * HOUR_MS)
    await house.tiering.load(house.clock.now_ms())
    replies = await house.store.claim(range(SHARDS), 10, 1 << 20, HOUR_MS, HOUR_MS)
    claims = [claim for reply in replies.values() if isinstance(reply, Claimed) for claim in reply.claims]
    assert await house.store.hold([(claim, "paused") for claim in claims]) == 1
    house.tiering.loaded_until_ms = before_ms
    await house.tiering.count()
    assert (await house.desk.stats()).cold == 0


async def test_what_another_instance_unloads_behind_a_loader_stays_counted(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await house.tiering.load(house.clock.now_ms())
    await cooled(house, 3 * HOUR_MS)
    house.tiering.loaded_until_ms += 10 * HOUR_MS
    await house.tiering.count()
    assert (await house.desk.stats()).cold == 1


async def test_a_store_without_a_cold_tier_gets_none_by_being_counted(journal: MemoryJournal) -> None:
    house = House(journal=journal, before=True)
    await house.tiering.load(house.clock.now_ms())
    await house.tiering.count()
    assert set((await house.store.marks(range(SHARDS))).values()) == {b""}


async def test_one_instance_counts_cold_messages(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await house.desk.lead("count", "another", HOUR_MS)
    house.memory.shards[0].routes["cold", b"orders"] = 7
    for _ in range(3):
        await house.tiering.count()
    assert (await house.desk.stats()).cold == 7


async def test_a_key_waits_while_the_database_is_away_and_other_messages_do_not(journal: MemoryJournal) -> None:
    house = await opened(journal)
    await cooled(house, 3 * HOUR_MS, key="k")
    journal.away = "the database is away"
    for call in (parking(house).find([index_field(b"orders", b"k")]), house.desk.look([b"0" * 20], 0)):
        with pytest.raises(StoreUnavailable, match="the database is away"):
            await call


async def test_without_the_journal_postdate_does_not_start_beside_cold_messages(journal: MemoryJournal) -> None:
    house = await opened(journal)
    store: Any = SimpleNamespace(tiers=house.store, shards=SHARDS)
    await begin_logs(SimpleNamespace(), store, None)  # type: ignore[arg-type]
    await cooled(house, 3 * HOUR_MS)
    with pytest.raises(StoreUnfit, match=r"messages that wait in the journal alone: 1\. Set journal\.url"):
        await begin_logs(SimpleNamespace(), store, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("write", "calls"), [("behind", ["moved", "parks"]), ("before", ["moved", "let end"])])
async def test_only_a_journal_that_is_written_behind_keeps_a_log_of_what_was_parked(
    journal: MemoryJournal, write: str, calls: list[str]
) -> None:
    made: list[str] = []

    async def read(shards: Iterable[int], limit: int, parks: bool = False) -> None:
        made.append("parks" if parks else "moved")

    async def let_parks_end(shards: Iterable[int]) -> None:
        made.append("let end")

    house = await opened(journal)
    moves = SimpleNamespace(read=read, let_parks_end=let_parks_end)
    store: Any = SimpleNamespace(tiers=house.store, shards=SHARDS, moves=moves)
    settings: Any = SimpleNamespace(journal=SimpleNamespace(write=write, cold_after=0))
    await begin_logs(settings, store, journal)
    assert made == calls
