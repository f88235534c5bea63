"""Paused routes: what comes due is held in its order, and let go in its order."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from bridge.core.errors import StoreUnavailable
from bridge.core.orders import Actor, RouteOrder, RouteOrders, RouteState, latest, read_order
from bridge.core.ports import Claimed, HeldStep
from bridge.pipeline import gate
from bridge.pipeline.ordered import Ordered
from tests.unit.house import DRAIN_MS, LEASE_MS, SHARDS, House


def ordered(state: RouteState, *routes: str) -> RouteOrders:
    return {route: RouteOrder(state, 1, Actor("admin", "api"), "a test") for route in routes}


PAUSED = ordered(RouteState.PAUSED, "orders")


def house_with(number: int, house: House | None = None, first: int = 0) -> House:
    """A house with messages of one order key that are due."""
    house = house or House()
    for n in range(first, first + number):
        house.publish(f"{n}")
    return house


async def paused(number: int) -> House:
    """A paused house that holds so many messages."""
    house = house_with(number)
    house.ordered.learn(PAUSED)
    await house.park()
    while house.wake.due():
        await house.deliver()
    return house


def numbers(upto: int) -> list[str]:
    return [str(n) for n in range(upto)]


def held_in(house: House) -> int:
    return sum(len(shard.due.held()) for shard in house.memory.shards)


async def deliver_all(house: House) -> None:
    for _ in range(50):
        await house.deliver()


async def test_a_paused_route_takes_messages_in_and_delivers_none() -> None:
    house = await paused(10)
    await deliver_all(house)
    assert (house.bodies(), house.parked(), held_in(house)) == ([], 10, 10)
    assert len(house.source.accepted) == 10


async def test_a_message_that_is_claimed_when_the_pause_comes_is_delivered() -> None:
    house = house_with(1)
    await house.park()
    await house.claimer.once()
    house.ordered.learn(PAUSED)
    await deliver_all(house)
    assert house.bodies() == ["0"]


async def test_after_a_resume_everything_is_delivered_in_its_order() -> None:
    house = await paused(60)
    house.ordered.learn({})
    await deliver_all(house)
    assert house.bodies() == numbers(60)
    assert held_in(house) == 0


async def test_lateness_counts_from_the_resume_and_the_hold_has_a_metric_of_its_own() -> None:
    house = await paused(10)
    house.clock.advance(60_000)
    resumed = RouteOrder(
        RouteState.RUNNING, house.clock.now_ms(), Actor("admin", "api"), "", ((0, house.clock.now_ms()),)
    )
    house.ordered.learn({"orders": resumed})
    house.clock.advance(20)
    await deliver_all(house)
    assert house.bodies() == numbers(10)
    assert 20 <= house.lateness.max_ms < 1000
    numbers_of_route = house.metrics.routes["orders"]
    assert numbers_of_route.lateness_ms.total < 10_000
    assert numbers_of_route.held_ms.total >= 10 * 60_000
    house.publish("later")
    await house.park()
    house.clock.advance(50)
    await deliver_all(house)
    assert house.lateness.max_ms < 1000
    assert sum(numbers_of_route.held_ms.counts) == 10, "what comes due after the resume was not held"


async def test_nothing_overtakes_held_messages_that_are_let_go_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_STEP_MAX", 7)
    house = await paused(50)
    house.ordered.learn({})
    await house.deliver()
    assert 0 < len(house.bodies()) < 50
    house_with(30, house, 50)  # due in the same millisecond as the held ones
    await house.park()
    await deliver_all(house)
    assert house.bodies() == numbers(80)


async def test_another_route_is_delivered_while_one_is_paused_and_while_it_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "_STEP_MAX", 5)
    house = House(also=("bills",))
    house.publish("bill", route="bills")
    for n in range(20):
        house.publish(f"{n}")
    house.ordered.learn(PAUSED)
    await house.park()
    await house.deliver()
    assert house.bodies() == ["bill"]
    house.publish("another", route="bills")
    await house.park()
    house.ordered.learn({})
    await house.deliver()
    assert "another" in house.bodies()
    await deliver_all(house)
    assert [body for body in house.bodies() if body.isdigit()] == numbers(20)


async def test_a_route_that_stays_paused_stays_held_when_another_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_STEP_MAX", 3)
    house = House(also=("bills",))
    for n in range(12):
        house.publish(f"{n}", route=("orders", "bills")[n % 2])
    house.ordered.learn(ordered(RouteState.PAUSED, "orders", "bills"))
    await house.park()
    await deliver_all(house)
    assert held_in(house) == 12
    house.ordered.learn(ordered(RouteState.PAUSED, "bills"))
    await deliver_all(house)
    assert house.bodies() == ["0", "2", "4", "6", "8", "10"]
    assert held_in(house) == 6


async def test_the_next_instance_of_a_shard_lets_go_what_a_dead_one_left_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_STEP_MAX", 5)
    first = await paused(30)
    first.ordered.learn({})
    await first.claimer.once()  # let a few go, and die
    heir = House(first.memory, "bbbbbb")
    heir.clock.advance(max(LEASE_MS, DRAIN_MS) + 1)
    await heir.members().once()
    await deliver_all(heir)
    assert sorted(heir.bodies(), key=int) == numbers(30)
    assert (held_in(heir), heir.parked()) == (0, 0)


async def test_an_instance_that_starts_while_a_route_is_paused_holds_it() -> None:
    first = await paused(5)
    first.memory.orders.update(PAUSED)
    heir = House(first.memory, "bbbbbb")
    heir.clock.advance(DRAIN_MS + 1)
    await heir.members().once()
    await deliver_all(heir)
    assert (heir.bodies(), held_in(heir)) == ([], 5)
    heir.memory.orders.clear()
    await heir.members().once()
    await deliver_all(heir)
    assert heir.bodies() == numbers(5)


async def test_messages_that_could_not_be_given_back_come_back_when_their_leases_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = house_with(3)
    house.ordered.learn(PAUSED)
    await house.park()
    hold = house.store.hold

    async def fails(_: object) -> int:
        raise StoreUnavailable("away")

    monkeypatch.setattr(house.store, "hold", fails)
    with pytest.raises(StoreUnavailable):
        await house.claimer.once()
    monkeypatch.setattr(house.store, "hold", hold)
    house.clock.advance(LEASE_MS + 1)
    await house.recovery.recover()
    await deliver_all(house)
    assert (house.bodies(), held_in(house)) == ([], 3)
    house.ordered.learn({})
    await deliver_all(house)
    assert house.bodies() == numbers(3)


async def test_a_message_that_another_instance_held_too_late_is_found_after_some_seconds() -> None:
    house = house_with(1)
    await house.claimer.once()
    await house.park()
    claimed = await house.store.claim(range(SHARDS), 10, 1 << 20, LEASE_MS, DRAIN_MS)
    claims = [claim for answer in claimed.values() if isinstance(answer, Claimed) for claim in answer.claims]
    await house.store.hold((claim, "") for claim in claims)
    await house.deliver()
    assert (house.bodies(), held_in(house)) == ([], 1)
    await deliver_all(house)
    assert house.bodies() == ["0"]


async def test_without_orders_and_held_messages_the_store_is_asked_once_and_then_every_few_passes() -> None:
    house, calls = House(), list[int]()
    let_go = house.store.let_go

    async def counted(steps: dict[int, HeldStep], *rest: object) -> object:
        calls.append(len(steps))
        return await let_go(steps, *rest)  # type: ignore[arg-type]

    house.store.let_go = counted  # type: ignore[assignment,method-assign]
    for _ in range(11):
        await house.claimer.once()
    assert calls == [SHARDS, SHARDS, SHARDS]
    for _ in range(11):
        await house.claimer.once(idle=False)
    assert len(calls) == 3


# -- orders ---------------------------------------------------------------------------------------------------------


def test_a_drained_route_is_told_to_the_source_and_every_change_is_logged_once() -> None:
    drained: list[set[str]] = []
    told = Ordered({}, lambda routes: drained.append(set(routes)))
    with capture_logs() as logs:
        for orders in (ordered(RouteState.DRAINING, "orders"), ordered(RouteState.DRAINING, "orders"), PAUSED, {}):
            told.learn(orders)
    assert drained == [{"orders"}, set()]
    assert [line["event"] for line in logs] == ["route draining", "route paused", "route resumed"]
    assert logs[1]["reason"] == "a test"


def test_what_is_paused_is_another_object_only_after_a_change() -> None:
    told = Ordered(PAUSED)
    before = told.paused
    told.learn(dict(PAUSED))
    told.learn({**PAUSED, **ordered(RouteState.DRAINING, "bills")})
    assert told.paused is before == {"orders"}
    assert told.report() == {"paused": ["orders"], "draining": ["bills"]}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"state":"stopped","since_ms":1,"who":"","via":"","reason":""}'])
def test_an_order_that_cannot_be_read_counts_as_a_pause(text: str) -> None:
    assert read_order(text).state is RouteState.PAUSED


def test_of_two_stores_the_later_order_counts() -> None:
    early = PAUSED["orders"]
    late = early._replace(state=RouteState.DRAINING, since_ms=early.since_ms + 1)
    assert latest([{"orders": late}, {"orders": early}]) == latest([PAUSED, {"orders": late}]) == {"orders": late}
