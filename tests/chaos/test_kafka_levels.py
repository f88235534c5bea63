"""The ledger of a Kafka route without a store: ``kill -9`` while records come in, wait and leave."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from tests.devstack.kafka import Kafka
from tests.kafka_line import Came, KafkaLevelLine

pytestmark = [pytest.mark.kafka, pytest.mark.long]

_BODY = struct.Struct(">Id")
COUNT, KILLS, WINDOW = 3000, 5, 100
#: One that is sent without its answer, and what was accepted and not yet committed, in each of the partitions that a
#: record passes.
COPIED = 2 * WINDOW * 3 * 4


def test_kills_lose_nothing_deliver_nothing_early_and_copy_only_what_was_in_flight(
    kafka: Kafka, tmp_path: Path
) -> None:
    line = KafkaLevelLine(kafka.url, tmp_path, {"kafka": {"window": WINDOW}})
    bridge, came = line.run(), list[Came]()
    try:
        for first in range(0, COUNT, COUNT // KILLS):
            write(line, range(first, first + COUNT // KILLS))
            line.produced()
            came += line.consume(1)
            bridge.kill()
            bridge.start()
        came += line.consume(lambda found: len({record.value for record in (*came, *found)}) == COUNT)
        check(came)
    finally:
        line.close()


def check(came: list[Came]) -> None:
    ids: dict[bytes, set[bytes | None]] = {}
    for record in came:
        _, due = _BODY.unpack(record.value or b"")
        assert record.at >= due - 0.001, "early"
        ids.setdefault(record.value or b"", set()).add(record.header("x-delay-id"))
    assert all(len(found) == 1 for found in ids.values()), "a copy has another id"
    assert len(came) - len(ids) <= KILLS * COPIED


def test_a_killed_broker_loses_nothing_and_makes_nothing_early(own_kafka: Kafka, tmp_path: Path) -> None:
    line = KafkaLevelLine(own_kafka.url, tmp_path)
    line.run()
    try:
        write(line, range(COUNT // 2))
        line.produced()
        came = line.consume(1)
        own_kafka.kill()
        own_kafka.start()
        write(line, range(COUNT // 2, COUNT))
        line.produced()
        came += line.consume(lambda found: len({record.value for record in (*came, *found)}) == COUNT)
        check(came)
    finally:
        line.close()


def write(line: KafkaLevelLine, numbers: range) -> None:
    for number in numbers:
        delay_ms = number * 7 % 2900
        body = _BODY.pack(number, time.time() + delay_ms / 1000)
        line.produce(body, [("x-delay", b"%d" % delay_ms)], key=b"k%d" % (number % 50))
