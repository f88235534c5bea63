"""Routes with a rate: what is due beyond it is held, and let go in its order as fast as the rate allows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapters.memory.memory_desk import MemoryDesk
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Outcome, Refusal
from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.core.reasons import Reason, ReasonKind
from bridge.pipeline import gate
from tests.unit.house import House
from tests.unit.test_held import held_in, numbers

PER_S = 100.0
PAUSED = {"orders": RouteOrder(RouteState.PAUSED, 1, Actor("admin", "api"), "a test")}


@pytest.fixture(autouse=True)
def steps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is the house's own clock, so each pass may be a step."""
    monkeypatch.setattr(gate, "_PACE_S", 0.0)


async def house_with(number: int, house: House | None = None) -> House:
    house = house or House(rates={"orders": PER_S}, also=["bills"])
    for n in range(number):
        house.publish(f"{n}")
    await house.park()
    return house


async def after(house: House, ms: int, passes: int = 4, step_ms: int = 5) -> None:
    """Let time pass, and the loop with it."""
    for _ in range(ms // step_ms):
        house.clock.advance(step_ms)
        await house.deliver()
    for _ in range(passes):
        await house.deliver()


async def test_a_burst_leaves_at_the_rate_and_in_its_order() -> None:
    house = await house_with(100)
    await after(house, 0)
    first = len(house.bodies())
    assert 1 <= first <= 11
    assert held_in(house) == 100 - first
    await after(house, 500)
    assert 50 <= len(house.bodies()) - first <= 60
    await after(house, 600)
    assert house.bodies() == numbers(100)
    assert (house.parked(), held_in(house)) == (0, 0)


async def test_what_is_parked_after_its_moment_keeps_the_rate_while_others_are_let_go() -> None:
    house = House(rates={"orders": PER_S})
    for n in range(100):
        house.publish(f"late {n}")
    late = await house.source.take(100, 1 << 20)  # the store was away, and its answer comes later
    house.clock.advance(10)
    await house_with(50, house)
    await after(house, 200)
    first = len(house.bodies())
    await house.parker.once(late)
    await after(house, 500)
    assert 45 <= len(house.bodies()) - first <= 60
    await after(house, 1000)
    assert len(house.bodies()) == 150
    assert [body for body in house.bodies() if body[0] == "l"] == [f"late {n}" for n in range(100)]
    assert (house.parked(), held_in(house)) == (0, 0)


async def test_lateness_counts_from_the_turn_that_the_rate_gives() -> None:
    house = await house_with(100)
    await after(house, 1200)
    assert house.bodies() == numbers(100)
    assert house.lateness.max_ms < 100
    held_ms = house.metrics.routes["orders"].held_ms
    assert 80 <= sum(held_ms.counts) <= 99
    assert 300 < held_ms.total / sum(held_ms.counts) < 700, "half of the second that the burst took"


async def test_what_was_refused_counts_as_refused_until_it_leaves_also_while_the_rate_holds_it() -> None:
    house = await house_with(200, House(rates={"orders": 20.0}))
    house.sink.answer = Refusal(Reason(ReasonKind.UNROUTABLE, "no such exchange"), again_ms=500)
    await after(house, 50)
    seen = []
    for _ in range(100):
        await after(house, 20, 0)
        stats = await MemoryDesk(house.store).stats()
        seen.append((stats.by_route["orders"].refused, stats.refused))
    assert 0 not in seen[-1]
    assert seen == sorted(seen), "none of them left"
    house.sink.answer = Outcome.CONFIRMED
    await after(house, 15_000, step_ms=50)
    stats = await MemoryDesk(house.store).stats()
    assert (stats.refused, stats.waiting) == (0, 0)


@pytest.mark.usefixtures("leaping_time")
async def test_a_step_that_reached_the_store_late_is_not_overtaken_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = await house_with(40)
    await after(house, 0)
    let_go, pace_s = house.store.let_go, 0.1

    async def late(*call: Any) -> Any:
        await asyncio.sleep(pace_s)
        return await let_go(*call)

    monkeypatch.setattr(gate, "_PACE_S", pace_s)
    monkeypatch.setattr(house.store, "let_go", late)
    for ms in (100, 20):
        house.clock.advance(ms)
        await house.deliver()
    monkeypatch.setattr(gate, "_PACE_S", 0.0)
    monkeypatch.setattr(house.store, "let_go", let_go)
    await asyncio.sleep(pace_s)
    house.clock.advance(100)
    await after(house, 400)
    assert house.bodies() == numbers(40)


async def test_a_held_message_that_gets_a_later_moment_opens_no_way_for_others() -> None:
    house = await house_with(40)
    await after(house, 0)
    (shard,) = [shard for shard in house.memory.shards if shard.due.held()]
    _, message_id = shard.due.held()[-1]
    await house.store.reschedule([message_id], house.clock.now_ms() + 10_000)
    await after(house, 400)
    sent = len(house.bodies())
    assert (sent, held_in(house)) == (39, 0)
    for n in range(40, 140):
        house.publish(f"{n}")
    await house.park()
    await after(house, 100)
    assert len(house.bodies()) - sent <= 22


async def test_held_messages_that_get_a_later_moment_keep_the_rate_then() -> None:
    house = await house_with(60)
    await after(house, 0)
    (shard,) = [shard for shard in house.memory.shards if shard.due.held()]
    held = [message_id for _, message_id in shard.due.held()]
    await house.store.reschedule(held, house.clock.now_ms() + 400)
    await after(house, 390)
    sent = len(house.bodies())
    await after(house, 100)
    assert 5 <= len(house.bodies()) - sent <= 22
    await after(house, 600)
    assert (len(house.bodies()), house.parked(), held_in(house)) == (60, 0, 0)


async def test_another_route_is_not_held() -> None:
    house = await house_with(50)
    house.source.feed(b"bill", {"x-delay": 0}, route="bills")
    await house.park()
    await after(house, 0)
    assert "bill" in house.bodies()


async def test_what_comes_later_waits_behind_what_is_held() -> None:
    house = await house_with(40)
    await after(house, 0)
    for n in range(40, 60):
        house.publish(f"{n}")
    await house.park()
    await after(house, 800)
    assert house.bodies() == numbers(60)


async def test_two_instances_share_one_rate() -> None:
    house = await house_with(60)
    other = House(house.memory, "bbbbbb", rates={"orders": PER_S})
    house.leases.take_over(frozenset({0, 1}))
    other.leases.take_over(frozenset({2, 3}))
    for n in range(60, 200):
        house.publish(f"{n}", order_key=str(n))
    await house.park()
    for _ in range(100):
        house.clock.advance(5)
        await house.deliver()
        await other.deliver()
    assert 45 <= len(house.bodies()) + len(other.bodies()) <= 65


async def test_the_next_holder_of_a_shard_goes_on_with_what_is_held() -> None:
    house = await house_with(50)
    await after(house, 0)
    sent = len(house.bodies())
    await house.leases.leave()
    other = House(house.memory, "bbbbbb", rates={"orders": PER_S})
    await after(other, 600)
    assert other.bodies() == numbers(50)[sent:]


async def test_without_the_rate_in_its_settings_an_instance_lets_everything_go() -> None:
    house = await house_with(50)
    await after(house, 0)
    await house.leases.leave()
    other = House(house.memory, "bbbbbb")
    await after(other, 0, 8)
    assert house.bodies() + other.bodies() == numbers(50)


@pytest.mark.parametrize(("rate", "least", "most"), [(50.0, 20, 40), (400.0, 180, 230), (0.0, 300, 300)])
async def test_a_rate_that_a_reload_changes_holds_from_then_on_in_the_same_order(
    rate: float, least: int, most: int
) -> None:
    house = await house_with(300)
    await after(house, 500)
    before = len(house.bodies())
    assert before < 70
    house.follow("orders", "bills", rates={"orders": rate} if rate else {})
    await after(house, 500)
    assert least <= len(house.bodies()) - (before if rate else 0) <= most
    await after(house, 6000, step_ms=20)
    assert house.bodies() == numbers(300)


async def test_a_pause_holds_all_and_a_resume_goes_on_at_the_rate() -> None:
    house = await house_with(50)
    await after(house, 0)
    house.ordered.learn(PAUSED)
    await after(house, 50)
    sent = len(house.bodies())
    await after(house, 300)
    assert len(house.bodies()) == sent
    house.ordered.learn({})
    await after(house, 600)
    assert house.bodies() == numbers(50)


async def test_while_the_store_refuses_tokens_nothing_leaves_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = await house_with(30)

    async def refuse(*_: object) -> int:
        raise StoreUnavailable("away")

    with monkeypatch.context() as away:
        away.setattr(house.store, "tokens", refuse)
        await after(house, 100)
        assert (house.bodies(), held_in(house)) == ([], 30)
    await after(house, 600)
    assert house.bodies() == numbers(30)


async def test_at_a_rate_below_the_number_of_shards_each_shard_has_its_turn() -> None:
    house = House(rates={"orders": 5.0})
    for n in range(80):
        house.publish(f"{n}", order_key=str(n % 16))
    await house.park()
    filled = {number for number, shard in enumerate(house.memory.shards) if shard.messages}
    assert len(filled) > 2
    await after(house, 4000)
    sent = [claim.shard for claim in house.claims()]
    assert 15 <= len(sent) <= 25
    assert all(sent.count(shard) > 1 for shard in filled), sent
