"""Where is my message: what the history says after deliveries, cancellations and crashes on Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.parking.history import PastState
from tests.bridge_line import QUICK, merged
from tests.devstack.kafka import Kafka
from tests.kafka_line import ROUTE, KafkaLine
from tests.past import history, judge_moments, wait_history

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture
def line(kafka: Kafka, redis_url: str, tmp_path: Path) -> Iterator[KafkaLine]:
    own = {"redis": {"durability": "none"}, "log": {"format": "json"}}
    line = KafkaLine(kafka.url, tmp_path, merged(QUICK, own), redis_url)
    line.run()
    yield line
    line.close()


def test_delivered_cancelled_and_dead_records_are_found_also_after_a_crash(line: KafkaLine) -> None:
    line.produce(b"kept", [("x-delay", b"500"), ("x-delay-key", b"a")])
    line.produce(b"gone", [("x-delay", b"60000"), ("x-delay-key", b"b")])
    line.produce(b"bad", [("x-delay", b"soon")])
    line.produced()
    assert [record.value for record in line.consume(1)] == [b"kept"]
    line.produce(None, [("x-delay-cancel", b"b")])
    line.produced()
    (delivered,) = wait_history(line, key=b"a")
    judge_moments(delivered)
    assert (delivered.state, delivered.route, delivered.broker) == (PastState.DELIVERED, ROUTE, "kafka")
    assert history(line, id=delivered.id) == [delivered]
    (cancelled,) = wait_history(line, key=b"b")
    assert cancelled.state is PastState.CANCELLED
    (dead,) = wait_history(line, state=PastState.DEAD)
    assert dead.reason.startswith("bad_header")
    line.bridges[0].kill()
    assert len(history(line)) == 3
