"""``postdate run`` on Kafka from outside: delayed records, undelayed records, and the effects of kills."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.bridge_line import QUICK, merged
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic
from tests.devstack.service import wait_for
from tests.kafka_line import DEADLINE_S, Headers, KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

PARTITIONS = 3
WINDOW = 100
#: A window without its answers, and one that is being settled: what a death may copy.
HELD = 2 * WINDOW
#: The consumers' topic takes no larger record.
TAKEN_BYTES = 50_000
_BODY = struct.Struct(">Id")


@pytest.fixture
def line(kafka: Kafka, redis_url: str, tmp_path: Path) -> Iterator[KafkaLine]:
    own = {"redis": {"durability": "none"}, "kafka": {"window": WINDOW}, "log": {"format": "json"}}
    small = {"max.message.bytes": str(TAKEN_BYTES)}
    line = KafkaLine(kafka.url, tmp_path, merged(QUICK, own), redis_url, PARTITIONS, small)
    create_topic(kafka.url, PARTITIONS, name=line.intake)  # one that postdate makes takes no more than its target
    line.run()
    yield line
    line.close()


def reasons(line: KafkaLine) -> list[str]:
    """The kinds of its dead letters."""
    return [reason.partition(":")[0] for reason in line.dead().values()]


def test_delayed_records_arrive_unchanged_when_due_and_the_others_at_once(line: KafkaLine) -> None:
    sent = time.time()
    odd: Headers = [("trace", b"\xff"), ("trace", b"2"), ("null", None), ("", b"")]
    line.produce(b"later", [("x-delay", b"1500"), *odd])
    line.produce(b"in words", [("x-delay", b"1s")], None)
    line.produce(None, [("x-delay", b"500")], b"gone")
    for number in range(5):
        line.produce(b"now %d" % number, [("trace", b"1")])
    line.produced()
    found = line.consume(8)
    came = {record.value: (record.at - sent, (record.key, record.value, record.plain())) for record in found}
    assert came[b"later"][1] == (b"k", b"later", odd)
    assert came[b"in words"][1] == (None, b"in words", [])
    assert came[None][1] == (b"gone", None, [])
    for value, earliest_s in ((b"later", 1.5), (b"in words", 1.0), (None, 0.5)):
        assert came[value][0] >= earliest_s
    values = [record.value for record in found]
    assert [value for value in values if value and value.startswith(b"now")] == [b"now %d" % n for n in range(5)]


def test_a_record_with_a_bad_delay_becomes_a_dead_letter_and_blocks_no_other(line: KafkaLine) -> None:
    line.produce(b"bad", [("x-delay", b"soon")])
    line.produce(b"good", [("x-delay", b"100")])
    line.produced()
    found = line.consume(1)
    assert [record.value for record in found] == [b"good"]
    wait_for(lambda: reasons(line) == ["bad_header"], "there is a dead letter")


def test_a_record_too_large_for_the_consumers_topic_becomes_a_dead_letter_alone(line: KafkaLine) -> None:
    moment = b"%d" % int((time.time() + 1) * 1000)
    for number in range(20):
        value = os.urandom(TAKEN_BYTES) if number == 7 else b"%d" % number
        line.produce(value, [("x-deliver-at", moment)])
    line.produced()
    found = line.consume(19)
    assert [record.value for record in found] == [b"%d" % number for number in range(20) if number != 7]
    wait_for(lambda: reasons(line) == ["too_large"], "there is a dead letter")
    assert next(iter(line.dead().values())).endswith(
        "accepts no record of this size (max.message.bytes), not even compressed"
    )


@pytest.mark.long
def test_a_record_larger_than_any_request_becomes_a_dead_letter_and_delays_no_other(line: KafkaLine) -> None:
    compressing = Producer(
        {"bootstrap.servers": line.url, "compression.type": "gzip", "message.max.bytes": 500_000_000, "log_level": 0}
    )
    compressing.produce(line.intake, value=bytes(110 << 20), key=b"k", headers=[("x-delay", b"1000")])
    assert compressing.flush(DEADLINE_S) == 0
    sent = 0
    while reasons(line) != ["too_large"]:
        for _ in range(20):
            line.produce(b"%d" % sent, [("x-delay", b"100")], b"k%d" % (sent % 7))
            sent += 1
        line.produced()
        line.consume(20)
    line.produce(b"behind it", [])
    line.produced()
    assert [record.value for record in line.consume(1)] == [b"behind it"]


def test_a_record_cancelled_by_its_key_is_not_delivered(line: KafkaLine) -> None:
    line.produce(b"cancelled", [("x-delay", b"3000"), ("x-delay-key", b"order-1")])
    line.produce(b"kept", [("x-delay", b"3500"), ("x-delay-key", b"order-2")])
    line.produce(None, [("x-delay-cancel", b"order-1")])
    line.produced()
    found = line.consume(lambda found: any(record.value == b"kept" for record in found))
    assert [record.value for record in found] == [b"kept"]


def test_kills_lose_nothing_deliver_nothing_early_and_copy_only_what_was_in_flight(line: KafkaLine) -> None:
    count, kills = 1500, 3
    for number in range(count):
        delay_ms = number * 7 % 1500
        body = _BODY.pack(number, time.time() + delay_ms / 1000)
        line.produce(body, [("x-delay", b"%d" % delay_ms)], b"k%d" % (number % 50))
        if number % (count // kills) == count // kills - 1:
            line.produced()
            wait_for(line.waiting, "something is parked")
            line.bridges[0].kill()
            line.bridges[0].start()
    line.produced()
    found = line.consume(lambda found: len({record.value for record in found}) == count)
    ids: dict[bytes | None, set[Any]] = {}
    for record in found:
        _, due = _BODY.unpack(record.value or b"")
        assert record.at >= due - 0.001
        ids.setdefault(record.value, set()).add(record.header("x-delay-id"))
    assert all(len(copies) == 1 for copies in ids.values()), "a copy has another id"
    assert len(found) - count <= kills * HELD
