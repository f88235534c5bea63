"""What a start does with each server: one that is away, or refuses, holds up no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from bridge.app import set_up, start
from bridge.app.set_up import BrokerStep, ServerStep, set_up_routes, under_way
from bridge.app.topology import Declared
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.desk.topology import Finding, Name, Part, Standing
from bridge.process.report import Report
from bridge.settings import Settings, plan
from bridge.settings.model import Canary, Route
from bridge.settings.process_plan import canary_name
from tests.unit.house import House

AWAY = "RabbitMQ does not answer at 127.0.0.1:1"
BOTH = Settings(
    routes={
        "orders": Route(intercept="orders.delay", deliver_to="orders"),
        "bills": Route(broker="kafka", intercept="bills.delay", deliver_to="bills"),
    }
)


class Brokers:
    """Two brokers. ``away`` has those that do not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *away: str) -> None:
        self.away = set(away)
        self.declared: list[str] = []
        monkeypatch.setattr(set_up, "declare_topology", self.declare)
        monkeypatch.setattr(set_up, "prepare_canary", lambda settings, kind: "")
        monkeypatch.setattr(set_up, "left_at_start", lambda settings, kind: ([], []))

    def declare(self, settings: Settings, whole: Settings) -> Declared:
        assert whole is BOTH
        (broker,) = {route.broker for route in settings.routes.values()}
        if broker in self.away:
            raise BrokerUnavailable(AWAY)
        self.declared.append(broker)
        return Declared([], [], 0)


class Loops:
    """Loops that run until they are stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.stop: Callable[[], None] = self.stopped.set

    async def run(self) -> None:
        await self.stopped.wait()


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 10 s")


async def run_with(step: ServerStep, loops: Loops) -> None:
    async with under_way([step]) as run:
        await step.tried()
        await run(loops)


async def test_a_broker_that_is_away_holds_up_no_other_and_is_set_up_when_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers, loops = Brokers(monkeypatch, "rabbitmq"), Loops()
    steps = [BrokerStep(BOTH, "rabbitmq"), BrokerStep(BOTH, "kafka")]
    async with under_way(steps) as run:
        for step in steps:
            await step.tried()
        assert brokers.declared == ["kafka"]
        running = asyncio.ensure_future(run(loops))
        brokers.away.clear()
        await until(lambda: brokers.declared == ["kafka", "rabbitmq"])
        loops.stop()
        await running


async def test_a_step_that_fails_stops_the_loops_and_its_error_is_raised() -> None:
    class Late(ServerStep):
        async def work(self) -> None:
            self.was_tried()
            await asyncio.sleep(0.01)
            raise Refused("another topology")

    loops = Loops()
    with pytest.raises(Refused, match="another topology"):
        await run_with(Late(), loops)
    assert loops.stopped.is_set()


async def test_a_refusal_at_the_first_attempt_ends_the_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Brokers(monkeypatch)

    def refuse(settings: Settings, whole: Settings) -> Declared:
        raise Refused("no rights")

    monkeypatch.setattr(set_up, "declare_topology", refuse)
    with pytest.raises(Refused, match="no rights"):
        await run_with(BrokerStep(BOTH, "kafka"), Loops())


async def test_a_first_attempt_that_takes_long_holds_up_nothing_further(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ServerStep):
        async def work(self) -> None:
            await asyncio.sleep(3600)

    monkeypatch.setattr(set_up, "_FIRST_S", 0.01)
    async with under_way([step := Slow()]):
        await step.tried()


@pytest.mark.parametrize(("trouble", "comes"), [("", True), ("no rights", False)])
async def test_the_canary_comes_unless_it_cannot_be_declared(
    monkeypatch: pytest.MonkeyPatch, trouble: str, comes: bool
) -> None:
    Brokers(monkeypatch)
    monkeypatch.setattr(set_up, "prepare_canary", lambda settings, kind: trouble)
    assert BOTH.canary == Canary()
    (process,) = (process for process in plan(BOTH) if process.broker == "kafka")
    async with under_way([step := BrokerStep(BOTH, "kafka")]):
        await step.tried()
        assert (canary_name("kafka") in step.planned(process).settings.routes) is comes


async def test_a_process_that_waits_is_listed_in_the_store_with_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "BEAT_S", 0.01)
    house, report = House(), Report(None, 0, 30)
    report.waits("journal", "no answer from 127.0.0.1:1")
    async with start._announced(house.store, 4000, report):
        await until(lambda: house.memory.instances)
        ((_, able, text),) = house.memory.instances.values()
        assert not able
        assert json.loads(text)["troubles"] == {"journal": "waiting for the journal: no answer from 127.0.0.1:1"}
    assert house.memory.instances == {}, "it signs off if it is stopped before it has loops"


@pytest.mark.parametrize("standing", [Standing.MISSING, Standing.SAME])
async def test_a_new_route_without_its_target_is_refused_before_anything_is_declared(
    monkeypatch: pytest.MonkeyPatch, standing: Standing
) -> None:
    declared: list[str] = []

    def declare(settings: Settings, whole: Settings) -> Declared:
        declared.extend(settings.routes)
        return Declared([], [], 0)

    found = [Finding(Part(Name("exchange", "orders"), "orders", False, {}), standing)]
    monkeypatch.setattr(set_up, "verify_topology", lambda settings: found)
    monkeypatch.setattr(set_up, "declare_topology", declare)
    new = BOTH.only(["orders"])
    if standing is Standing.SAME:
        await set_up_routes(new, BOTH)
        assert declared == ["orders"]
        return
    with pytest.raises(Refused, match="exchange 'orders'"):
        await set_up_routes(new, BOTH)
    assert declared == []
