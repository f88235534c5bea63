"""Records of a log that are read again, after a crash, a rebalance or by a zombie: nothing is done a second time, and
nothing is taken for done that was not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.core.message import HeaderValue
from bridge.core.ports import Batch, Parked
from bridge.parking.identity import shard_for, shard_of
from bridge.pipeline.decide import SAME_KEY
from tests.unit.house import SHARDS, House, turns

pytestmark = pytest.mark.usefixtures("without_waiting")

HOUR_MS = 3_600_000
#: Logs of two shards.
LOG, OTHER = b"orders.delay-0", b"orders.delay-1"


def test_the_two_logs_are_in_different_shards() -> None:
    assert shard_for(LOG, SHARDS) != shard_for(OTHER, SHARDS)


def record(house: House, offset: int, headers: dict[str, HeaderValue], log: bytes = LOG, **how: Any) -> None:
    """A producer writes to the log that a house reads; the body is the log's last letter and the offset."""
    house.source.feed(b"%s%d" % (log[-1:], offset), headers, order_key=log, origin=(log, offset), **how)


def later(key: str = "") -> dict[str, HeaderValue]:
    """Headers of a message that is to be parked for an hour."""
    return {"x-delay": HOUR_MS, "x-delay-key": key} if key else {"x-delay": HOUR_MS}


def cancel(key: str) -> dict[str, HeaderValue]:
    """Headers of a cancellation."""
    return {"x-delay-cancel": key}


async def read_again(house: House, offset: int = 0, log: bytes = LOG) -> None:
    """A log is read again from an offset on, and all of it goes through; the batches are those of ``take``."""
    house.source.replay(log, offset)
    await house.park()
    assert house.source.left() == 0


async def delivered(house: House) -> list[str]:
    """What is delivered in the end."""
    house.clock.advance(HOUR_MS)
    while await house.deliver():
        pass
    return house.bodies()


class Gate:
    """One call of a store that waits, as if its process stood still, until it is let through."""

    def __init__(self, house: House, name: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        call = getattr(house.store, name)

        async def waiting(*args: Any, **named: Any) -> Any:
            self.reached.set()
            await self.open.wait()
            return await call(*args, **named)

        setattr(house.store, name, waiting)

    async def let_through(self, parking: asyncio.Task[None]) -> None:
        """The process goes on, and finishes what it was at."""
        self.open.set()
        await asyncio.wait_for(parking, 5)


async def zombie_at(house: House, name: str) -> tuple[Gate, asyncio.Task[None]]:
    """The house parks what it has read and stands still before its call of ``name``."""
    gate = Gate(house, name)
    parking = asyncio.create_task(house.park())
    await asyncio.wait_for(gate.reached.wait(), 5)
    return gate, parking


orders = pytest.mark.parametrize("order", ["key", "none"])


def pair(**changes: Any) -> tuple[House, House]:
    """Two instances at one store, each with its own way to the log."""
    zombie = House(**changes)
    return zombie, House(zombie.memory, "bbbbbb", **changes)


# -- parking --------------------------------------------------------------------------------------------------------


async def test_records_that_are_read_again_are_parked_once_and_accepted() -> None:
    house = House()
    for offset in (100, 101, 105, 230):  # a log has gaps
        record(house, offset, later())
    await house.park()
    await read_again(house, 101)
    assert (house.parked(), house.count("parked")) == (4, 4)
    assert await delivered(house) == ["0100", "0101", "0105", "0230"]


async def test_records_that_were_delivered_are_not_parked_again() -> None:
    house = House()
    record(house, 100, later())
    await house.park()
    assert await delivered(house) == ["0100"]
    record(house, 101, later())
    await read_again(house)
    assert await delivered(house) == ["0100", "0101"]


@pytest.mark.parametrize(("order", "shards"), [("key", 1), ("route", 1), ("none", SHARDS)])
async def test_a_log_is_known_again_whatever_the_order_and_is_spread_where_there_is_none(
    order: str, shards: int
) -> None:
    house = House(order=order)
    for offset in range(40):
        record(house, offset, later())
    await house.park()
    house.parker._spread = 250  # what comes in between moves nothing
    await read_again(house)
    assert house.parked() == 40
    assert len({shard_of(message_id) for shard in house.memory.shards for message_id in shard.messages}) == shards


async def test_records_that_are_spread_are_parked_once_when_a_shard_answers_and_another_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process ends then: what its neighbours' shards have is known by the marks of those shards."""
    house = House(order="none")
    for offset in range(40):
        record(house, offset, later())
    house.parker.stop()
    park = house.store.park

    async def only_shard_0(batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        away = dict.fromkeys(batches, StoreUnavailable("one node of the cluster is away"))
        return {**away, **await park({0: batches[0]})} if 0 in batches else {**away}

    monkeypatch.setattr(house.store, "park", only_shard_0)
    await house.park()
    assert house.parked() == 10
    after = House(house.memory, "bbbbbb", order="none")
    for offset in range(40):
        record(after, offset, later())
    await after.park()
    assert sorted(await delivered(after), key=int) == [f"0{offset}" for offset in range(40)]


async def test_records_that_are_spread_are_parked_once_by_two_readers_that_stand_still_now_and_then() -> None:
    seeded = random.Random(3)
    member, other = pair(order="none")
    for offset in range(300):
        for house in (member, other):
            headers = cancel("k") if offset % 50 == 49 else later("k" if offset % 10 == 0 else "")
            record(house, offset, headers)
    for _ in range(60):
        house = seeded.choice((member, other))
        if house.source.left():
            await house.parker.once(await house.source.take(seeded.randrange(1, 20), 1 << 30))
        if seeded.random() < 0.3:
            house.source.replay(LOG, seeded.randint(0, 300 - house.source.left()))
    for house in (member, other):
        await read_again(house)
    keyed = 300 // 10
    assert member.count("parked") == 300 - 300 // 50
    assert member.count("replaced") + member.count("cancelled") == keyed
    assert len(await delivered(member)) == 300 - 300 // 50 - keyed


async def test_records_with_an_origin_leave_no_trace_for_redeliveries() -> None:
    house = House()
    record(house, 100, later())
    await house.park()
    assert all(shard.recent == [] for shard in house.memory.shards)


async def test_a_zombie_that_parks_late_parks_nothing() -> None:
    zombie, house = pair()
    for offset in (100, 101):
        record(zombie, offset, later())
        record(house, offset, later())
    record(house, 102, later())
    gate, parking = await zombie_at(zombie, "park")
    await house.park()
    await gate.let_through(parking)
    assert (house.parked(), house.count("parked")) == (3, 3)


async def test_a_zombie_that_is_first_is_the_one_that_parks() -> None:
    zombie, house = pair()
    for offset in (100, 101):
        record(zombie, offset, later())
        record(house, offset, later())
    record(house, 102, later())
    await zombie.park()
    await house.park()
    assert (house.source.left(), house.count("parked")) == (0, 3)


# -- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [LOG, OTHER])
async def test_a_record_that_is_read_again_replaces_nothing(log: bytes) -> None:
    house = House()
    record(house, 100, later("k"))
    await house.park()
    record(house, 101, later("k"), log)
    await house.park()
    await read_again(house)
    assert await delivered(house) == [f"{log[-1:].decode()}101"]


@orders
@pytest.mark.parametrize("stands_at", ["find", "done", "cancel", "park"])
async def test_a_zombie_replaces_nothing_that_came_after_its_record(stands_at: str, order: str) -> None:
    zombie, house = pair(order=order)
    record(house, 1, later("k"), OTHER)
    await house.park()
    record(zombie, 100, later("k"))
    gate, parking = await zombie_at(zombie, stands_at)
    record(house, 100, later("k"))
    await house.park()
    record(house, 2, later("k"), OTHER)
    await house.park()
    await gate.let_through(parking)
    assert await delivered(house) == ["12"]


@orders
@pytest.mark.parametrize("mode", ["keep", "reject"])
async def test_a_record_that_had_to_give_way_does_so_once(mode: str, order: str) -> None:
    house = House(on_same_key=mode, order=order)
    record(house, 100, later("k"))
    record(house, 101, later("k"))
    await house.park()
    assert await delivered(house) == ["0100"]
    await read_again(house)
    assert await delivered(house) == ["0100"]
    assert house.dead() == [str(SAME_KEY)] * (mode == "reject")


async def test_a_record_that_gave_way_to_another_log_is_rejected_once() -> None:
    house = House(on_same_key="reject")
    record(house, 1, later("k"), OTHER)
    await house.park()
    record(house, 100, later("k"))
    await house.park()
    assert await delivered(house) == ["11"]
    await read_again(house)
    assert (house.parked(), house.dead()) == (0, [str(SAME_KEY)])


# -- cancellations --------------------------------------------------------------------------------------------------


@orders
async def test_a_cancellation_that_is_read_again_leaves_what_came_after_it(order: str) -> None:
    house = House(order=order)
    record(house, 100, later("k"))
    record(house, 101, cancel("k"))
    record(house, 102, later("k"))
    await house.park()
    for offset in (101, 100, 102, 101):
        await read_again(house, offset)
    assert house.count("cancelled") == 1
    assert await delivered(house) == ["0102"]


@orders
async def test_a_tombstone_that_is_read_again_leaves_what_came_after_it(order: str) -> None:
    house = House(order=order)
    record(house, 100, later(), message_id=b"k")
    record(house, 101, {}, message_id=b"k", tombstone=True)
    record(house, 102, later(), message_id=b"k")
    await house.park()
    for offset in (100, 101, 102):
        await read_again(house, offset)
    assert house.count("cancelled") == 1
    assert await delivered(house) == ["0102"]


async def test_a_cancellation_that_is_read_again_leaves_what_another_log_brought_since() -> None:
    house = House()
    record(house, 101, cancel("k"))
    await house.park()
    record(house, 1, later("k"), OTHER)
    await house.park()
    await read_again(house)
    assert await delivered(house) == ["11"]


@orders
async def test_a_cancellation_that_never_happened_happens_when_it_is_read_again(order: str) -> None:
    house = House(order=order)
    record(house, 100, later("k"))
    await house.park()
    record(house, 101, cancel("k"))
    record(house, 102, later())
    house.memory.away = "the store is away"
    parking = asyncio.create_task(house.park())
    await turns(20)
    house.source.lose_connection()
    await asyncio.wait_for(parking, 5)
    house.memory.away = ""
    await read_again(house)
    assert await delivered(house) == ["0102"]


@orders
@pytest.mark.parametrize("stands_at", ["find", "done", "cancel", "mark_done"])
async def test_a_zombie_cancels_nothing_that_came_after_its_cancellation(stands_at: str, order: str) -> None:
    zombie, house = pair(order=order)
    record(house, 100, later("k"))
    await house.park()
    record(zombie, 101, cancel("k"))
    gate, parking = await zombie_at(zombie, stands_at)
    record(house, 101, cancel("k"))
    record(house, 102, later("k"))
    await house.park()
    await gate.let_through(parking)
    assert await delivered(house) == ["0102"]


async def test_a_cancellation_by_what_is_no_identity_is_one_dead_letter() -> None:
    house = House()
    for offset in range(17):
        record(house, offset, later(), message_id=b"load")
    record(house, 17, cancel("load"))
    await house.park()
    await read_again(house, 5)
    assert [reason.partition(":")[0] for reason in house.dead()] == ["not_unique"]
    assert house.parked() == 17


# -- dead letters ---------------------------------------------------------------------------------------------------


async def test_a_bad_header_that_is_read_again_is_one_dead_letter() -> None:
    house = House()
    record(house, 100, later())
    record(house, 101, {"x-delay": "soon"})
    record(house, 102, later())
    await house.park()
    for offset in (100, 101, 102):
        await read_again(house, offset)
    assert (house.parked(), len(house.dead()), house.count("dead")) == (2, 1, 1)


async def crash_before_rejecting(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came is parked, but the store takes no dead letters until the connection is gone."""

    async def refuse(*args: Any) -> Any:
        raise StoreUnavailable("the store went away")

    with monkeypatch.context() as patched:
        patched.setattr(house.store, "reject", refuse)
        parking = asyncio.create_task(house.park())
        await turns(20)
        house.source.lose_connection()
        await asyncio.wait_for(parking, 5)
    assert house.dead() == []


@pytest.mark.parametrize(
    ("bad", "mode", "reason"), [({"x-delay": "soon"}, "replace", "bad_header"), (later("k"), "reject", "same_key")]
)
async def test_a_crash_between_parking_and_rejecting_loses_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch, bad: dict[str, HeaderValue], mode: str, reason: str
) -> None:
    house = House(on_same_key=mode)
    record(house, 100, later("k"))
    record(house, 101, bad)
    record(house, 102, later())
    await crash_before_rejecting(house, monkeypatch)
    assert house.parked() == 2
    for _ in range(2):
        await read_again(house)
    assert [word.partition(":")[0] for word in house.dead()] == [reason]
    assert (house.parked(), house.count("parked")) == (2, 2)


async def test_what_was_to_be_rejected_is_parked_when_the_settings_say_so_in_the_meantime(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    record(house, 101, {"x-delay": "soon"})
    record(house, 102, later())
    await crash_before_rejecting(house, monkeypatch)
    after = House(house.memory, "bbbbbb", on_bad="deliver")
    record(after, 101, {"x-delay": "soon"})
    record(after, 102, later())
    await after.park()
    assert (after.dead(), await delivered(after)) == ([], ["0101", "0102"])


async def test_a_zombie_that_rejects_late_rejects_nothing() -> None:
    zombie, house = pair()
    for member in (zombie, house):
        record(member, 100, later())
        record(member, 101, {"x-delay": "soon"})
        record(member, 102, later())
    gate, parking = await zombie_at(zombie, "reject")
    await house.park()
    await gate.let_through(parking)
    assert (house.parked(), house.count("parked"), house.count("dead")) == (2, 2, 1)


# -- nothing is taken for done that was not -------------------------------------------------------------------------


async def test_what_comes_after_something_that_went_back_goes_back_too_when_the_process_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    record(house, 100, later())
    record(house, 101, cancel("k"))  # parts the batch
    record(house, 102, later())
    house.parker.stop()
    park = house.store.park

    async def fail_once(*args: Any) -> Any:
        monkeypatch.setattr(house.store, "park", park)
        return dict.fromkeys(args[0], StoreUnavailable("once"))

    monkeypatch.setattr(house.store, "park", fail_once)
    await house.park()
    record(house, 103, later())
    await house.park()
    assert house.count("parked") == 0

    after = House(house.memory, "bbbbbb")
    for offset in (100, 102, 103):
        record(after, offset, later())
    await after.park()
    assert await delivered(after) == ["0100", "0102", "0103"]


async def test_what_comes_after_something_that_went_back_goes_back_too_when_the_connection_is_gone() -> None:
    house = House()
    record(house, 100, later())
    record(house, 101, cancel("k"))  # parts the batch, so that what follows is in another one's company
    record(house, 102, later())
    old = await house.source.take(1000, 1 << 30)
    house.source.lose_connection()
    record(house, 1, later(), OTHER)
    new = await house.source.take(1000, 1 << 30)
    company = [delivery for delivery in new if delivery.origin == (OTHER, 1)]
    await house.parker.once([*old, *company])
    assert house.count("parked") == 1

    await read_again(house, 100)
    assert sorted(await delivered(house)) == ["0100", "0102", "11"]
