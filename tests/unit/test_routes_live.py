"""Routes that come and go at a reload, on memory brokers: what each stage does with a route that it has just learnt."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from aiokafka import TopicPartition

from adapters.kafka.intake import Intakes, KafkaIntake, Partition, StartOffset
from adapters.kafka.source import KafkaSource
from adapters.kafka.topology.topic_ids import TopicId
from adapters.memory.memory_sink import HOLD, MemorySink
from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Outcome
from bridge.core.ports import Result
from bridge.delay.naming import Naming
from bridge.pipeline import gate
from bridge.pipeline.fan_out import Copy, FanOut
from bridge.pipeline.full import Fullness, IntakeGate, ParkedLimit
from bridge.process.members import Sharing
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from tests.unit.house import House
from tests.unit.test_fan_out import claim
from tests.unit.test_full import Counts
from tests.unit.test_held import held_in
from tests.unit.test_rate import after


async def test_a_new_route_parks_and_delivers_from_the_reload_on() -> None:
    house = House()
    house.follow("orders", "bills")
    house.publish("a bill", 100, route="bills")
    await house.park()
    house.clock.advance(100)
    await house.deliver()
    assert house.bodies() == ["a bill"]
    assert house.metrics.routes["bills"].confirmed == 1


async def test_what_a_removed_route_has_taken_in_is_parked_and_waits() -> None:
    house = House(also=["bills"])
    house.publish("a bill", 100, route="bills")
    taken = await house.source.take(10, 1 << 20)
    house.follow("orders")
    await house.parker.once(taken)
    assert house.parked() == 1
    assert house.source.left() == 0
    assert "bills" not in house.metrics.as_json()["routes"]  # type: ignore[operator]


async def test_a_rate_that_comes_holds_what_is_beyond_it_and_one_that_goes_lets_it_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "_PACE_S", 0.0)
    house = House()
    house.follow("orders", rates={"orders": 100.0})
    for number in range(100):
        house.publish(f"{number}")
    await house.park()
    await after(house, 0)
    assert held_in(house) >= 89
    house.follow("orders")
    await after(house, 0)
    assert house.bodies() == [f"{number}" for number in range(100)]


async def test_a_full_route_that_goes_opens_the_gate_and_leaves_no_trouble() -> None:
    held: list[set[str]] = []
    health, counts = Health(), Counts()
    full = Fullness(counts, {}, IntakeGate(lambda routes: held.append(set(routes))), health)  # type: ignore[arg-type]
    full.follow({"bills": ParkedLimit(messages=1)})
    counts.parked = 1
    await full.look()
    assert held == [{"bills"}]
    full.follow({})
    await full.look()
    assert held == [{"bills"}, set()]
    assert health.troubles() == {}


async def test_the_others_learn_of_a_new_route_with_the_next_report() -> None:
    house = House()
    sharing = Sharing(house.store, "one", ["orders"], house.leases.elsewhere)
    sharing.follow(["orders", "bills"])
    assert sharing.report({})["routes"] == ["bills", "orders"]


async def test_a_full_route_that_goes_during_a_look_breaks_nothing() -> None:
    health, counts = Health(), Counts()
    full = Fullness(counts, {"bills": ParkedLimit(messages=1)}, IntakeGate(lambda _: None), health)  # type: ignore[arg-type]

    async def slowly(routes: Collection[str]) -> dict[str, int]:
        full.follow({})
        return dict.fromkeys(routes, 1)

    counts.parked_by_route = slowly  # type: ignore[method-assign]
    await full.look()
    await full.look()
    assert health.troubles() == {}


async def test_a_route_that_comes_back_with_one_destination_sends_to_that_alone() -> None:
    inner, results = MemorySink[Claim | Copy](10), list[Result[Claim]]()
    sink = FanOut(inner, {"orders": ("orders", "orders/1")})
    sink.on_answers(results.extend)
    inner.script(HOLD, HOLD)
    sink.publish([claim()])
    sink.follow({})
    sink.follow({"orders": ("orders",), "bills": ("bills",)})
    sink.publish([claim(number=1), claim("bills", 2)])
    inner.answer_held()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [letter.route for letter in inner.published] == ["orders", "orders/1", "orders", "bills"]
    assert [result.outcome for result in results] == [Outcome.CONFIRMED] * 3


def test_a_topic_that_a_kafka_consumer_still_has_keeps_its_route_until_another_route_names_it() -> None:
    def intake(route: str, topic: str) -> KafkaIntake:
        return KafkaIntake(route, Naming(topic, route), frozenset())

    orders, bills = intake("orders", "orders.delay"), intake("bills", "bills.delay")
    intakes = Intakes([orders, bills])
    intakes.follow([orders])
    intakes.follow([orders])
    assert intakes.of("bills.delay") is bills, "two reloads in one rebalance"
    assert not intakes.reads("bills.delay")
    invoices = intake("invoices", "bills.delay")
    intakes.follow([orders, invoices])
    assert intakes.of("bills.delay") is invoices


async def test_a_kafka_topic_that_changes_its_route_at_a_reload_is_parked_for_the_new_route() -> None:
    """The group assigns nothing again, because the topics are the same."""
    naming, health = Naming("bills.delay", "bills"), Health()
    old, new = KafkaIntake("bills", naming, frozenset()), KafkaIntake("invoices", naming, frozenset({b"x-delay"}))
    source = KafkaSource(Kafka(), [old], StoreClock(), 1 << 20, health, lambda: None)
    tp = TopicPartition("bills.delay", 0)
    part = source._parts[tp] = Partition(tp, old, TopicId("cluster", "id"), StartOffset(5))
    source.follow([new])
    assert (part.route, part.wanted, part.next) == ("invoices", frozenset({"x-delay"}), 5)
