"""What is left behind by routes that change how their messages wait: what is said of it, and who looks after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from bridge.cli.waiting import left_over
from bridge.errors import BrokerUnavailable
from bridge.leaving import Leaving
from bridge.settings import Settings
from bridge.ways import Way

STORED = {"intercept": "a.delay", "deliver_to": "a"}
LEVELS = {**STORED, "mode": "levels"}


def place(route: str, messages: int | None, state: str = "old", is_dead: bool = False) -> dict[str, Any]:
    return {"route": route, "messages": messages, "state": state, "is_dead": is_dead}


def test_what_is_left_is_told_by_route_with_its_number_and_what_is_in_use_is_not() -> None:
    places = [
        place("b", 0),
        place("a", 2),
        place("a", 3),
        place("a", 1, is_dead=True),
        place("a", 7, "in use"),
        place("c", None, "missing"),
        place("c", 9, "in use", is_dead=True),
    ]
    (first, second) = left_over(places)
    assert first[:2] == ("a", 6)
    assert first[2].startswith("5 messages wait in levels that the settings no longer have, and are delivered when ")
    assert first[2].endswith("clears them away when they are empty. 1 dead letters are kept there")
    assert second == ("b", 0, "nothing waits in the levels that the settings no longer have: `postdate levels remove`")


def test_what_waits_under_a_route_that_is_gone_is_told_of_and_what_is_empty_there_counts_none() -> None:
    (empty, full) = left_over([place("gone", 3, "no route"), place("empty", 0, "no route"), place("a", 1, "in use")])
    assert full[:2] == ("gone", 3)
    assert full[2].startswith("3 messages wait in levels of this route, which the settings do not have, and nobody ")
    assert empty[:2] == ("empty", 0)


def test_a_house_with_a_store_knows_the_routes_that_have_left_it_and_takes_nothing_from_them() -> None:
    kafka = {"broker": "kafka"}
    routes = {"here": {**STORED, **kafka}, "gone": {**LEVELS, **kafka}, "rabbit": LEVELS}
    settings = Settings.model_validate({"routes": routes})
    (house,) = settings.store_houses()
    assert list(house.routes) == ["here"]
    assert list(house.with_left.routes) == ["here", "gone"]
    (emptied,) = settings.emptied_houses()
    assert (list(emptied.routes), list(emptied.with_left.routes)) == ([], ["rabbit"])
    assert (emptied.broker, emptied.stored, emptied.redis.key_prefix) == ("rabbitmq", True, "postdate")
    assert not any(one.with_left.routes.keys() - one.routes for one in settings.houses() if not one.stored)


class Broker:
    """One that is away at first, and then names a route."""

    def __init__(self, leaving_stops: bool = False) -> None:
        self.asked = 0
        self.drained: list[str] = []
        self.leaving = Leaving(self.look, self.drain)
        self._stops = leaving_stops
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def look(self) -> Sequence[str]:
        self.asked += 1
        if self.asked == 1:
            raise BrokerUnavailable("no broker answers")
        if self._stops:
            self.leaving.take_no_more()
            self._loop.call_soon_threadsafe(self.stopped.set)
        return ["payments"]

    def drain(self, route: str) -> Way:
        self.drained.append(route)
        raise NotImplementedError("far enough")


async def test_levels_of_before_are_drained_as_soon_as_the_broker_can_be_asked() -> None:
    broker = Broker()
    async with asyncio.timeout(20):
        with pytest.raises(NotImplementedError, match="far enough"):
            await broker.leaving.run()
    assert (broker.asked, broker.drained) == (2, ["payments"])


async def test_nothing_is_begun_when_the_process_stops() -> None:
    broker = Broker(leaving_stops=True)
    running = asyncio.ensure_future(broker.leaving.run())
    async with asyncio.timeout(20):
        await broker.stopped.wait()
    await asyncio.wait([running], timeout=0.2)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert (broker.asked, broker.drained, broker.leaving.finished()) == (2, [], True)
