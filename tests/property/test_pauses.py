"""Whatever is paused and resumed, and whoever drains the shards: every message leaves once, and each route in order."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.pipeline import gate
from tests.unit.house import House

ROUTES = ("orders", "bills")
#: How many a property has by default; few in the fast tier.
EXAMPLES = settings().max_examples

#: Publish messages of both routes; order what is paused; let an instance meet the others; let it deliver; pass time.
steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 12)),
    st.tuples(st.just("pause"), st.sets(st.sampled_from(ROUTES))),
    st.tuples(st.just("meet"), st.integers(0, 1)),
    st.tuples(st.just("deliver"), st.integers(0, 1)),
    st.tuples(st.just("deliver"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.integers(0, 20)),
)


class Pair:
    """Two instances on one store. ``left`` has what left, in order."""

    def __init__(self) -> None:
        first = House(also=("bills",))
        self.houses = (first, House(first.memory, "bbbbbb", also=("bills",)))
        self.members = tuple(house.members(*ROUTES) for house in self.houses)
        self.left: list[str] = []
        self.number = 0

    async def do(self, what: str, value: int | set[str]) -> None:
        """Make one step."""
        memory = self.houses[0].memory
        if isinstance(value, set):
            memory.orders = {route: RouteOrder(RouteState.PAUSED, 1, Actor("a test"), "") for route in value}
        elif what == "publish":
            for _ in range(value):
                self.number += 1
                self.houses[0].publish(f"{self.number:05}", route=ROUTES[self.number % 2])
            await self.houses[0].park()
        elif what == "meet":
            await self.members[value].once()
        elif what == "deliver":
            await self.deliver(self.houses[value])
        else:
            self.houses[0].clock.advance(value)

    async def deliver(self, house: House) -> None:
        """One pass of an instance, and the hand-over of what it has to give away."""
        before = len(house.sink.published)
        await house.leases.hand_over()
        await house.deliver()
        self.left += house.bodies()[before:]

    async def end(self) -> None:
        """Resume everything, and deliver until nothing is left."""
        await self.do("pause", set())
        for _ in range(60):
            for place in (0, 1):
                await self.do("meet", place)
                await self.do("deliver", place)
            if not self.houses[0].parked():
                return


@settings(max_examples=3 * EXAMPLES)
@given(st.lists(steps, max_size=40), st.integers(1, 6))
def test_every_message_leaves_once_and_each_route_keeps_its_order(
    made: list[tuple[str, int | set[str]]], step_max: int
) -> None:
    async def play() -> Pair:
        pair = Pair()
        for what, value in made:
            await pair.do(what, value)
        await pair.end()
        return pair

    with patch.object(gate, "_STEP_MAX", step_max):
        pair = asyncio.run(play())
    assert pair.houses[0].parked() == 0
    assert sorted(pair.left) == [f"{number:05}" for number in range(1, pair.number + 1)]
    for odd in (0, 1):
        route = [text for text in pair.left if int(text) % 2 == odd]
        assert route == sorted(route)
    assert all(not shard.routes for shard in pair.houses[0].memory.shards)
