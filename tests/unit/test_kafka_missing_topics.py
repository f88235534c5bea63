"""A broker that has just come back may not know its topics yet: they count as missing at the second look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Set
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.kafka.broker_canary import missing
from adapters.kafka.watchdog import TopicWatch
from bridge.telemetry.health import Health

TOPIC = "orders.delay"
INTAKES: Any = SimpleNamespace(names=lambda: [TOPIC], missing=lambda topics: sorted({TOPIC} - topics))


def consumer_with(topics: Set[str]) -> Any:
    cluster = SimpleNamespace(topics=lambda: topics, partitions_for_topic=lambda _: None)
    return SimpleNamespace(_client=SimpleNamespace(cluster=cluster, force_metadata_update=lambda: None))


def troubles(looks: Iterable[Set[str] | None]) -> tuple[list[str], int]:
    """What is reported after these looks, and how often missing topics were recreated. None: no broker answered."""
    mended: list[bool] = []
    health = Health()
    watch = TopicWatch(INTAKES, lambda: mended.append(True), health)
    for topics in looks:
        if topics is None:
            watch.forget()
        else:
            watch.look(consumer_with(topics))
    return list(health.troubles().values()), len(mended)


def test_a_topic_is_missing_when_a_second_look_does_not_find_it_and_is_recreated_from_the_first() -> None:
    assert troubles([set()]) == ([], 1)
    (found,), mended = troubles([set(), set()])
    assert found.startswith(f"nothing is taken from the topic {TOPIC}: it does not exist")
    assert mended == 2
    assert troubles([set(), set(), {TOPIC}]) == ([], 2)


def test_a_missing_topic_is_reported_with_what_its_deletion_lost() -> None:
    health = Health()
    watch = TopicWatch(INTAKES, lambda: None, health, lambda topic: f". In {topic}: 40")
    for _ in range(2):
        watch.look(consumer_with(set()))
    (found,) = health.troubles().values()
    assert found.endswith(f"(no Describe permission). In {TOPIC}: 40")


def test_a_missing_topic_is_looked_for_soon_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = TopicWatch(INTAKES, lambda: None, Health())
    hurried = []
    for second, topics in ((0, {TOPIC}), (1, set[str]()), (50, set[str]()), (62, set[str]()), (63, {TOPIC})):
        now[0] = 1000.0 + second
        watch.look(consumer_with(topics))
        hurried.append(watch.hurried())
    assert hurried == [False, True, True, False, False]


async def test_metadata_without_a_topic_wake_the_watch_once() -> None:
    watch = TopicWatch(INTAKES, lambda: None, Health())
    gone, there = (consumer_with(topics) for topics in (set[str](), {TOPIC}))

    async def woken(consumer: Any) -> bool:
        watch.on_metadata(consumer._client.cluster)
        waiting = asyncio.ensure_future(watch.until_gone(60))
        await asyncio.sleep(0)
        waiting.cancel()
        return waiting.done()

    assert not await woken(there)
    assert await woken(gone)
    watch.look(gone)
    assert not await woken(gone), "the looks come soon"
    watch.look(there)
    assert await woken(gone)


def test_a_look_before_an_outage_does_not_count() -> None:
    assert troubles([set(), None, set()])[0] == []
    assert troubles([set(), {TOPIC}, set()])[0] == []
    assert troubles([set(), None, set(), set()])[0] != []


async def test_the_canary_asks_twice_for_its_topics() -> None:
    async def gone(*answers: Set[str]) -> frozenset[str]:
        left = iter(answers)

        async def topics() -> Set[str]:
            return next(left)

        return await missing(frozenset(("a", "b")), topics, 0)

    assert await gone({"a", "b"}) == frozenset()
    assert await gone(set(), {"a", "b", "c"}) == frozenset()
    assert await gone({"a"}, {"a"}) == {"b"}
