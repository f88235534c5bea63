"""What is claimed ahead leaves at its moment: not before, in order, and only under a living lease."""

from __future__ import annotations

import asyncio
import time

import pytest

from adapters.memory.memory_sink import HOLD
from bridge.parking.identity import shard_for
from bridge.pipeline.publish import Alarm, Publisher
from tests.unit.house import LEASE_MS, SHARDS, House, turns

AHEAD_MS = 8


async def claimed(*delays_ms: int, **how: int) -> House:
    """A house that has claimed messages, whose bodies are their delays, before they are due."""
    house = House(ahead_ms=AHEAD_MS, **how)  # type: ignore[arg-type]
    house.leases.take_over(frozenset({shard_for(b"", SHARDS)}))
    for delay_ms in delays_ms:
        house.publish(f"{delay_ms}", delay_ms)
    await house.park()
    await house.claimer.once()
    return house


async def test_what_is_claimed_ahead_leaves_at_its_moment_and_not_before() -> None:
    house = await claimed(5, 3, 9)
    assert house.bodies() == []
    assert len(house.leases.held()) == 2
    for bodies in ([], [], ["3"], ["3"], ["3", "5"]):
        house.clock.advance(1)
        await house.publisher.once()
        assert house.bodies() == bodies


async def test_what_a_step_back_made_due_an_hour_later_is_parked_again_and_leaves_room_for_others() -> None:
    house = await claimed(5, 6, window=2)
    house.clock.step(-3_600_000)
    house.publish("now")
    await house.park()
    await house.publisher.once()
    assert house.parked() == 3
    assert await house.deliver() == 1
    assert house.bodies() == ["now"]


async def test_a_nearer_moment_overtakes_and_equal_ones_do_not() -> None:
    house = await claimed(6, 6)
    house.publish("first", 4)
    house.publish("last", 6)
    await house.park()
    await house.claimer.once()
    house.clock.advance(6)
    await house.publisher.once()
    assert house.bodies() == ["first", "6", "6", "last"]


async def test_no_more_leaves_than_there_is_room_for_and_the_rest_waits_for_an_answer() -> None:
    house = await claimed(1, 2, 3, 4, 5, window=3)
    house.sink.answer = HOLD
    house.clock.advance(8)
    await house.publisher.once()
    await house.publisher.once()
    assert house.bodies() == ["1", "2", "3"]
    assert await house.claimer.once() == 0


async def test_what_waits_here_takes_room_from_the_next_claim() -> None:
    house = await claimed(1, 2, 3, 4, 5, window=3)
    assert len(house.leases.held()) == 3
    assert await house.claimer.once() == 0


async def test_what_another_instance_took_over_meanwhile_is_not_published_when_the_network_is_back() -> None:
    """Cut off for longer than a lease, an instance holds claims that wait for the broker. Another one delivers them."""
    house = await claimed(5)
    neighbour = House(house.memory, "bbbbbb")
    house.sink.connected = False
    for claim in house.leases.held():
        claim.lease_ends = time.monotonic() - 1
    house.clock.advance(LEASE_MS + 1)
    await neighbour.recovery.recover()
    await neighbour.deliver()
    assert neighbour.bodies() == ["5"]
    await house.recovery.once()  # Redis answers first
    house.sink.connected = True
    await house.publisher.once()
    assert house.bodies() == []
    assert house.leases.held() == []


async def test_an_instance_without_its_broker_keeps_no_shard_with_what_it_claimed_ahead() -> None:
    """Its lease would be renewed, and its shard drained, for as long as the broker is away from this instance alone."""
    house = await claimed(5)
    neighbour = House(house.memory, "bbbbbb")
    instances = house.members(), neighbour.members()
    house.sink.lose_connection()
    loop = asyncio.create_task(house.publisher.run())
    try:
        for _ in range(3):
            await turns()
            await house.settler.once()
            for instance in instances:
                await instance.once()
            await house.leases.hand_over()
            await neighbour.deliver()
            house.clock.advance(1000)
    finally:
        loop.cancel()
    assert neighbour.bodies() == ["5"]


async def test_what_waited_does_not_overtake_what_was_under_way_when_the_broker_was_lost() -> None:
    house = await claimed(5, 6)
    house.sink.answer = HOLD
    house.clock.advance(5)
    await house.publisher.once()
    house.sink.lose_connection()
    await turns()
    await house.publisher.once()
    house.sink.connect()
    await house.publisher.once()
    await house.settler.once()
    house.clock.advance(10)
    await house.publisher.once()
    await house.deliver()
    assert house.bodies() == ["5", "5", "6"]


async def test_after_the_stop_nothing_is_published() -> None:
    house = await claimed(3)
    house.publisher.stop()
    await house.leases.leave()
    house.clock.advance(3)
    await house.publisher.once()
    assert house.bodies() == []
    assert house.parked() == 1


async def test_the_loop_wakes_for_the_next_moment_and_for_room() -> None:
    house = await claimed(4, 5, window=1)
    house.sink.answer = HOLD
    loop = asyncio.create_task(house.publisher.run())
    try:
        house.clock.advance(6)
        house.publisher.answered([])
        await turns()
        assert house.bodies() == ["4"]
        house.sink.answer_held()
        await turns()
        await house.settler.once()
        await house.claimer.once()
        await turns()
        assert house.bodies() == ["4", "5"]
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_while_the_broker_owes_answers_what_is_due_gathers_until_they_come() -> None:
    house = await claimed(4, 5, 6)
    house.sink.answer = HOLD
    house.publisher.pace(0.0, 60.0)
    loop = asyncio.create_task(house.publisher.run())
    try:
        for _ in range(3):
            house.clock.advance(2)
            house.publisher.answered([])
            await turns()
        assert house.bodies() == ["4"]
        house.sink.answer_held()
        await turns()
        assert house.bodies() == ["4", "5", "6"]
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_while_there_is_no_room_the_loop_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    house = await claimed(4)
    house.clock.advance(6)
    house.sink.block(True)
    passes: list[int] = []

    async def once(_: Publisher) -> None:
        passes.append(1)

    monkeypatch.setattr(Publisher, "once", once)
    loop = asyncio.create_task(house.publisher.run())
    await turns(50)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)
    assert not passes


class TestAlarm:
    @pytest.fixture(params=["linux", "elsewhere"])
    def platform(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "elsewhere":
            monkeypatch.setattr("bridge.pipeline.publish.sys.platform", "elsewhere")

    @pytest.mark.usefixtures("platform")
    async def test_it_rings_once_and_not_too_soon(self) -> None:
        rung = asyncio.Event()
        times = []

        def ring() -> None:
            times.append(time.monotonic())
            rung.set()

        alarm = Alarm(ring)
        alarm.set(60)
        started = time.monotonic()
        alarm.set(0.005)
        async with asyncio.timeout(5):
            await rung.wait()
        await asyncio.sleep(0.02)
        alarm.close()
        assert len(times) == 1
        assert times[0] - started >= 0.0045

    @pytest.mark.usefixtures("platform")
    async def test_once_closed_it_is_silent(self) -> None:
        rung: list[int] = []
        alarm = Alarm(lambda: rung.append(1))
        alarm.set(0.001)
        alarm.close()
        await asyncio.sleep(0.02)
        assert not rung
