"""The watchdog: an overdue message and a loop that stands still are seen and said."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest

from adapters.memory.memory_sink import HOLD
from bridge.pipeline.ordered import Ordered
from bridge.process.watchdog import OVERDUE_S, STUCK_S, Watch, oldest_overdue_s
from bridge.telemetry.subject import Subject, rendered
from tests.unit.house import SHARDS, House, turns


@pytest.mark.parametrize(
    ("next_dues_ms", "seconds"),
    [
        ([], 0),
        ([None, None], 0),
        ([10_000], 0),
        ([10_001], 0),
        ([9_000], 1),
        ([None, 9_500, 4_000, 20_000], 6),
        ([0], 0),  # not looked at yet
    ],
)
def test_the_oldest_overdue(next_dues_ms: list[int | None], seconds: float) -> None:
    assert oldest_overdue_s(10_000, next_dues_ms) == seconds


class Watched:
    def __init__(self) -> None:
        self.house = house = House()
        self.watch = Watch(house.clock, house.wake, house.claimer, house.publisher, house.health, Ordered({}), "Kafka")
        for shard in range(SHARDS):
            self.house.wake.learnt(shard, None)

    def troubles(self) -> dict[str, str]:
        self.watch.once()
        return rendered(self.house.health.troubles())


async def test_nothing_to_say_when_all_is_well() -> None:
    assert Watched().troubles() == {}


async def test_an_overdue_message_is_reported_until_it_is_delivered() -> None:
    watched = Watched()
    house = watched.house
    house.publish("a", 1000)
    await house.park()
    house.clock.advance(1000 + OVERDUE_S * 1000)
    assert watched.troubles() == {}
    house.clock.advance(60_000)
    assert "was due" in watched.troubles()["overdue"]
    assert watched.watch.overdue_s == pytest.approx(70, abs=0.1)
    await house.deliver()
    assert watched.troubles() == {}


async def test_a_stuck_loop_is_reported_unless_it_was_stopped() -> None:
    watched = Watched()
    watched.house.claimer.passed_at -= STUCK_S + 1
    assert "has not run for 16s" in watched.troubles()["claim"]
    await watched.house.claimer.once()
    assert watched.troubles() == {}
    watched.house.claimer.passed_at -= STUCK_S + 1
    watched.watch.stop()
    assert watched.troubles() == {}


async def test_a_process_that_stood_still_judges_nothing_by_what_it_knew_before() -> None:
    """After a freeze the instance called messages overdue that others had delivered, until it had asked the store."""
    watched = Watched()
    house = watched.house
    house.publish("a", 1000)
    await house.park()
    assert watched.troubles() == {}
    house.clock.advance(18_000)
    for passed_s, subjects in ((18, set()), (19, {"claim"}), (20, {"claim"})):
        later = time.monotonic() + passed_s
        with patch.object(time, "monotonic", lambda later=later: later):
            assert watched.troubles().keys() == subjects


async def test_late_messages_are_not_reported_beside_what_makes_them_late() -> None:
    watched = Watched()
    house = watched.house
    house.publish("a", 1000)
    await house.park()
    house.clock.advance(18_000)
    assert watched.troubles() == {"overdue": "the oldest overdue message was due 17s ago"}
    house.health.say(Subject("route", "bills"), "messages of route bills are refused, the last one as no_queue")
    assert watched.troubles().keys() == {"route bills"}
    house.health.say(Subject("route", "bills"), "")
    assert watched.troubles().keys() == {"overdue"}


async def test_published_messages_that_the_broker_does_not_confirm_are_trouble_after_three_seconds() -> None:
    watched = Watched()
    house = watched.house
    house.sink.answer = HOLD
    house.publish("a", 0)
    house.publish("b", 0)
    await house.park()
    await house.deliver()
    assert watched.troubles() == {}
    later = time.monotonic() + 4
    with patch.object(time, "monotonic", lambda: later):
        text = watched.troubles()["confirms"]
        assert "published messages: 2, the oldest for " in text
        assert text.endswith("s, of route orders")
    assert watched.watch.unconfirmed[0] == 2
    house.sink.answer_held()
    assert watched.troubles() == {}


async def test_a_single_message_that_the_broker_does_not_confirm_is_trouble_however_many_others_it_confirms() -> None:
    """One queue has lost its majority, and the others work. Nothing else tells of its messages."""
    watched = Watched()
    house = watched.house
    house.sink.script(HOLD)
    house.publish("stuck", 0)
    house.publish("another", 0)
    await house.park()
    await house.deliver()
    later = time.monotonic() + 100
    with patch.object(time, "monotonic", lambda: later):
        assert "published messages: 1, the oldest for 1m 40s" in watched.troubles()["confirms"]
    house.clock.advance(100_000)
    watched.troubles()
    assert watched.watch.overdue_s == pytest.approx(100, abs=0.1)


async def test_claimed_messages_are_overdue_until_the_broker_has_answered() -> None:
    watched = Watched()
    house = watched.house
    house.sink.answer = HOLD
    house.publish("a", 1000)
    await house.park()
    house.clock.advance(1000)
    await house.deliver()
    house.clock.advance(4000)
    assert watched.troubles() == {}
    assert watched.watch.overdue_s == pytest.approx(4, abs=0.1)
    house.sink.answer_held()
    await turns()
    watched.troubles()
    assert watched.watch.overdue_s == 0


async def test_claimed_messages_for_which_the_broker_has_no_room_are_overdue() -> None:
    watched = Watched()
    house = watched.house
    house.publish("a", 0)
    await house.park()
    await house.claimer.once()
    house.clock.advance(3000)
    watched.troubles()
    assert watched.watch.overdue_s == pytest.approx(3, abs=0.1)


async def test_a_destination_that_refuses_is_no_broker_that_does_not_confirm() -> None:
    """Beside a deleted target topic, "Kafka has not confirmed" accused the wrong part."""
    watched = Watched()
    house = watched.house
    house.sink.answer = HOLD
    house.publish("a", 0)
    await house.park()
    await house.deliver()
    house.health.say(Subject("route", "orders"), "messages are refused, the last one as missing_topic")
    later = time.monotonic() + 4
    with patch.object(time, "monotonic", lambda: later):
        assert watched.troubles().keys() == {"route orders"}
