"""Partitions of an intake topic without a leader: nothing is taken from them, and no producer can write there."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from adapters.kafka.watchdog import TopicWatch
from bridge.telemetry.health import Health

TOPIC = "orders.delay"
INTAKES: Any = SimpleNamespace(names=lambda: [TOPIC], missing=lambda _: [])


def troubles(looks: Sequence[Sequence[int]]) -> list[str]:
    """What is reported after looks that found these partitions, of twenty, without a leader."""
    health = Health()
    watch = TopicWatch(INTAKES, lambda: None, health)
    for headless in looks:
        cluster = SimpleNamespace(
            topics=lambda: {TOPIC},
            partitions_for_topic=lambda _: set(range(20)),
            leader_for_partition=lambda tp, headless=headless: -1 if tp.partition in headless else 1,
        )
        consumer: Any = SimpleNamespace(_client=SimpleNamespace(cluster=cluster, force_metadata_update=lambda: None))
        watch.look(consumer)
    return list(health.troubles().values())


def test_partitions_that_stay_without_a_leader_are_named() -> None:
    assert troubles([[3, 7], [3, 7, 8]]) == [
        "nothing is taken from partitions 3, 7 of the topic orders.delay: they have no leader, so producers cannot "
        "write there either. Bring their brokers back"
    ]


def test_an_election_and_a_leader_that_is_back_are_no_trouble() -> None:
    assert troubles([[3], []]) == []
    assert troubles([[3], [4], [3]]) == []
    assert troubles([[3], [3], []]) == []


def test_of_many_partitions_the_first_are_named() -> None:
    (found,) = troubles([range(12), range(12)])
    assert "partitions 0, 1, 2, 3 and 8 more of the topic" in found
