"""Pause, resume and drain on Kafka: nothing comes, nothing is lost, and the order stays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.app.survey import count_drained
from tests.bridge_line import QUICK
from tests.bridge_process import shortened
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic, delete_topics
from tests.devstack.service import wait_for
from tests.kafka_line import ROUTE, Came, KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

KEYS = 7


@pytest.fixture
def line(kafka: Kafka, redis_url: str, tmp_path: Path) -> Iterator[KafkaLine]:
    line = KafkaLine(kafka.url, tmp_path, QUICK, redis_url)
    create_topic(kafka.url, line.partitions, name=line.intake)
    yield line
    line.close()


def produce(line: KafkaLine, numbers: range, at_ms: int) -> None:
    """Write numbered records that are due at one moment, and wait until Kafka has them."""
    for number in numbers:
        line.produce(b"%d" % number, [("x-deliver-at", b"%d" % at_ms)], b"key %d" % (number % KEYS))
    line.produced()


def in_order(records: list[Came], count: int) -> None:
    """Assert that each record came once, and each key in its order."""
    assert sorted(int(record.value or b"") for record in records) == list(range(count))
    for key in range(KEYS):
        numbers = [int(record.value or b"") for record in records if record.key == b"key %d" % key]
        assert numbers == sorted(numbers), key


def test_a_pause_outlives_a_restart_and_a_resume_delivers_everything_in_its_order(line: KafkaLine) -> None:
    bridge = line.run()
    bridge.wait_ready()
    at_ms = int((time.time() + 2) * 1000)
    produce(line, range(1000), at_ms)
    line.order("pause", ROUTE)
    wait_for(lambda: line.held() == 1000, "everything is held", 20)
    assert bridge.terminate() == 0
    line.run().wait_ready()
    produce(line, range(1000, 1100), at_ms)
    wait_for(lambda: line.held() == 1100, "everything is held", 20)
    line.nothing_more(0.5)
    line.order("resume", ROUTE)
    in_order(line.consume(1100), 1100)
    line.nothing_more(0.5)


def test_a_drained_route_takes_nothing_in_also_after_a_rebalance_and_delivers_what_is_parked(line: KafkaLine) -> None:
    line.run().wait_ready()
    produce(line, range(1), int((time.time() + 4) * 1000))
    wait_for(lambda: line.waiting() == 1, "it is parked", 20)
    line.order("drain", ROUTE)
    line.follow(ROUTE, "draining")
    second = line.run()  # the group rebalances
    second.wait_ready(40)
    produce(line, range(1, 50), 0)
    assert [record.value for record in line.consume(1)] == [b"0"]
    line.nothing_more(1.5)
    assert line.stored() == 0
    assert second.terminate() == 0
    line.nothing_more(1.5)
    assert count_drained(line.loaded(), {ROUTE}) == {ROUTE: 49}, "check and doctor say it"
    line.order("resume", ROUTE)
    assert sorted(int(record.value or b"") for record in line.consume(49)) == list(range(1, 50))
    line.nothing_more(0.5)


def test_a_drained_topic_that_is_deleted_is_reported_with_what_waited_in_it_and_the_new_one_is_read(
    line: KafkaLine,
) -> None:
    line.command = shortened("adapters.kafka.source._WATCH_S=0.5")
    bridge = line.run()
    bridge.wait_ready()
    line.order("drain", ROUTE)
    line.follow(ROUTE, "draining")
    produce(line, range(40), 0)
    since = time.monotonic()
    wait_for(lambda: time.monotonic() - since > 2, "it has looked at the ends, and asked for the topic after that")
    delete_topics(line.url, [line.intake])
    bridge.wait_health("was deleted and recreated between")
    assert "Unread records: 40 at " in bridge.health()
    assert "kafka recreated" in bridge.log()
    line.order("resume", ROUTE)
    produce(line, range(1), 0)
    assert [record.value for record in line.consume(1)] == [b"0"]
    line.nothing_more(0.5)
