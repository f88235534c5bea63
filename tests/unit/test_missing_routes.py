"""Routes that no instance has, for example between two reloads: what comes due waits in its order, and is refused."""

from __future__ import annotations

import pytest

from bridge.core.message import Outcome, no_route
from bridge.pipeline import leases
from tests.unit.house import House, turns


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another instance that has the route could be starting. Here none is."""
    monkeypatch.setattr(leases, "_STARTING_S", 0.0)


async def house_without(route: str, number: int) -> House:
    """A house with messages of one key that are due, of a route that a reload removed."""
    house = House(also=(route,))
    for n in range(number):
        house.publish(f"{n}", route=route)
    await house.park()
    house.follow("orders")
    house.sink.answer = no_route(route)
    return house


async def passes(house: House, number: int = 20) -> None:
    for _ in range(number):
        await house.deliver()
        await turns()


def comes_back(house: House, route: str) -> None:
    house.sink.answer = Outcome.CONFIRMED
    house.sink.published.clear()
    house.follow("orders", route)


async def test_messages_of_a_route_that_a_reload_removes_and_brings_back_leave_in_their_order() -> None:
    house = await house_without("bills", 50)
    due_ms = house.clock.now_ms()
    await passes(house)
    house.clock.advance(700)
    comes_back(house, "bills")
    for n in range(50, 60):
        house.source.feed(b"%d" % n, {"x-deliver-at": due_ms}, route="bills")
    await house.park()
    await passes(house, 50)
    assert house.bodies() == [str(n) for n in range(60)]


async def test_they_leave_in_their_order_where_another_instance_gets_the_route() -> None:
    house = await house_without("bills", 50)
    await passes(house)
    other = House(house.memory, "bbbbbb", also=("bills",))
    house.leases.elsewhere.learn(["bills"])
    for _ in range(20):
        await passes(house, 1)
        await house.leases.hand_over()
        await passes(other, 1)
    assert other.bodies() == [str(n) for n in range(50)]


async def test_they_are_refused_and_overdue_and_cost_nothing_until_the_next_try() -> None:
    house = await house_without("bills", 50)
    await passes(house)
    assert "messages of route bills are refused, the last one as no_route" in house.health.sentence()
    assert sum(len(shard.refused) for shard in house.memory.shards) == 50
    tried = len(house.sink.published)
    house.clock.advance(60_000)
    await passes(house)
    assert len(house.sink.published) == tried
    house.leases.elsewhere._try(("bills",))
    await passes(house)
    assert len(house.sink.published) > tried
    assert house.metrics.routes["bills"].refused > 0
    house.publish("order")
    house.sink.answer = Outcome.CONFIRMED
    await house.park()
    await passes(house)
    assert house.bodies()[-1] == "order", "other routes are delivered meanwhile"


async def test_an_instance_that_may_be_starting_with_the_route_is_waited_for_before_it_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "_STARTING_S", 60.0)
    house = await house_without("bills", 5)
    await passes(house)
    assert house.health.sentence() == "All well."
    assert house.leases.elsewhere.asks
