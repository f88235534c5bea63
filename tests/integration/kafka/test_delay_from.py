"""When a delay starts on Kafka, and the warning for timestamps that are older than their records."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.bridge_line import QUICK, merged
from tests.bridge_process import shortened
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.kafka_line import ROUTE, SETTINGS, Headers, KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

DELAY_MS = 1500
DELAYED: Headers = [("x-delay", b"%d" % DELAY_MS)]
OLD = "older than their arrival"
#: Old timestamps must come for 10 s.
QUICK_WARNING = shortened("adapters.kafka.watchdog._OLD_LASTS_S=1")


@pytest.fixture
def line(kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLine]:
    line = KafkaLine(kafka.url, tmp_path_factory.mktemp("line"), merged(SETTINGS, QUICK), redis_server.url, 1)
    yield line
    line.close()


def put(line: KafkaLine, value: bytes, age_s: float) -> float:
    """Write a delayed record with a timestamp that old. Return the moment (Unix seconds) before."""
    before = time.time()
    line.produce(value, DELAYED, timestamp_ms=int((before - age_s) * 1000))
    line.produced()
    return before


@pytest.mark.parametrize("where", ["kafka", "route"])
def test_a_delay_counts_from_arrival_where_the_settings_say_so(line: KafkaLine, where: str) -> None:
    setting = {"delay_from": "arrival"}
    line.run({"kafka": setting} if where == "kafka" else {"routes": {ROUTE: setting}}).wait_ready()
    sent = put(line, b"forwarded with the timestamp of its input", 9)
    (came,) = line.consume(1)
    assert came.due() >= sent + DELAY_MS / 1000
    assert OLD not in line.log()


def test_a_record_that_is_written_long_after_its_timestamp_is_named(line: KafkaLine) -> None:
    bridge = line.bridge(command=QUICK_WARNING).start().wait_ready()

    def named() -> bool:
        sent = put(line, b"forwarded with the timestamp of its input", 30)
        (came,) = line.consume(1)
        assert came.at < sent + 20, "the delay counts from the timestamp"
        return OLD in bridge.log()

    wait_for(named, "a warning", 60)
    assert 'delay_from = \\"arrival\\"' in bridge.log()
    assert bridge.log().count(OLD) == 1, "one line, whatever the number of records"


def test_records_that_waited_for_postdate_are_no_reason_for_a_warning(line: KafkaLine) -> None:
    line.run().wait_ready()
    put(line, b"first", 0)
    line.consume(1)
    line.bridges[0].terminate()
    put(line, b"written while no postdate runs", 20)
    bridge = line.run().wait_ready()
    line.consume(1)
    assert OLD not in bridge.log()
