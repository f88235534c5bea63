"""One route to several topics: each gets every record once, and one that is missing harms no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_line import QUICK, merged
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic, delete_topics
from tests.kafka_line import ROUTE, SETTINGS, KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture
def line(kafka: Kafka, redis_url: str, tmp_path: Path) -> Iterator[KafkaLine]:
    line = KafkaLine(kafka.url, tmp_path, merged(SETTINGS, QUICK), redis_url)
    line.settings["routes"][ROUTE]["deliver_to"] = [line.topic, f"{line.topic}.audit"]
    create_topic(kafka.url, 1, name=f"{line.topic}.audit")
    line.run().wait_ready()
    yield line
    line.close()


def test_a_missing_topic_sends_no_copy_to_the_other(line: KafkaLine) -> None:
    audit = f"{line.topic}.audit"
    line.produce(b"late", [("x-delay", b"300")])
    line.produce(b"at once", [])
    line.produced()
    for topic in (line.topic, audit):
        assert sorted(record.value or b"" for record in line.consume(2, topic)) == [b"at once", b"late"]
    delete_topics(line.url, [audit])
    line.produce(b"half", [("x-delay", b"100")])
    line.produced()
    assert [record.value for record in line.consume(1)] == [b"half"]
    (reason,) = line.wait_dead()
    assert reason.startswith("missing_topic:")
    line.nothing_more(0.5)
