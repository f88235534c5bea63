"""Retry routes on Kafka: failed records return by the schedule, to the topic of their consumers alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from adapters.kafka.partitioner import PartitionChoice
from bridge.cli import run_command
from tests.bridge_line import QUICK, merged
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic
from tests.devstack.redis import Redis
from tests.kafka_line import ROUTE, SETTINGS, Came, Headers, KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

OWN: Headers = [("own", b"1"), ("own", None), ("x-delay", b"60000")]
HANDLER: Headers = [("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException")]


@pytest.fixture(scope="module")
def line(kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLine]:
    line = KafkaLine(kafka.url, tmp_path_factory.mktemp("line"), merged(SETTINGS, QUICK), redis_server.url)
    route = {"kind": "retry", "schedule": ["300ms", "900ms"]}
    line.settings["routes"][ROUTE] |= route
    last = {"broker": "kafka", "intercept": f"{line.topic}.failed", "deliver_to": f"{line.topic}.billing"}
    line.settings["routes"]["grouped"] = {
        **last,
        "kind": "retry",
        "schedule": ["200ms", "1s"],
        "then": f"topic:{line.topic}.up",
    }
    line.settings["routes"]["grouped"]["hold"] = True
    ruled = {"intercept": f"{line.topic}.eu.*.dlt", "deliver_to": f"{line.topic}.eu.*", "schedule": ["100ms"]}
    also = [f"{line.topic}.us.dlt -> {line.topic}.us"]
    line.settings["routes"]["ruled"] = {"broker": "kafka", "kind": "retry", "also": also, **ruled}
    for name in ("billing", "up", "eu.cards", "eu.cards.dlt", "us"):
        create_topic(kafka.url, line.partitions, name=f"{line.topic}.{name}")
    line.run().wait_ready()
    yield line
    line.close()


def fail(line: KafkaLine, came: Came, topic: str) -> None:
    """Do what a consumer's error handler does: write the record with its headers and some of its own."""
    line.produce(came.value, [*came.headers, *HANDLER], came.key, topic=topic)
    line.produced()


def test_a_failed_record_returns_as_it_was_by_the_schedule_and_then_is_a_dead_letter(
    line: KafkaLine, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_at, ids = time.time(), set()
    line.produce(b"body", [*OWN, *HANDLER], b"key")
    line.produced()
    for attempt, wait_s in ((1, 0.3), (2, 0.9)):
        (came,) = line.consume(1)
        assert (came.key, came.value) == (b"key", b"body")
        told = dict(came.headers[len(OWN) :])
        assert came.headers[: len(OWN)] == OWN
        assert told.pop("x-retry-attempt") == b"%d" % attempt
        assert told.pop("x-retry-reason") == b"java.lang.IllegalStateException"
        assert abs(int(told.pop("x-retry-first-failed") or b"") / 1000 - failed_at) < 5 or attempt > 1
        ids.add(told.pop("x-retry-id"))
        assert set(told) == {"x-retry-signature", "x-delay-id", "x-delay-due"}
        assert wait_s <= came.at - failed_at < wait_s + 5
        failed_at = time.time()
        fail(line, came, line.intake)
    (reason,) = line.wait_dead()
    assert reason.startswith(f"exhausted: the consumers of topic '{line.topic}' failed 3 times")
    line.nothing_more(0.3)
    capsys.readouterr()
    assert run_command(["show", *line.dead(), "--config", str(line.file()), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {shown["retry"]["id"].encode()} == ids, "one id names the record over all its attempts"
    assert shown["tries"] == 3


def test_a_returned_record_keeps_its_partition_whatever_partitioner_the_handler_used(line: KafkaLine) -> None:
    keys = [b"customer-%d" % number for number in range(30)]
    for key in keys:  # librdkafka's default partitioner, which is not Java's
        line.produce(key, HANDLER, key, topic=f"{line.topic}.failed")
    line.produced()
    came = {record.key: record.partition for record in line.consume(len(keys), f"{line.topic}.billing")}
    assert came == {key: PartitionChoice("crc32").partition(key, -1, line.partitions) for key in keys}


def test_one_group_has_its_own_topic_and_after_the_last_attempt_another_topic_gets_the_record(line: KafkaLine) -> None:
    intake, billing, up = (f"{line.topic}.{name}" for name in ("failed", "billing", "up"))
    line.produce(b"body", [*OWN, ("x-delay-cancel", b"k"), *HANDLER], b"key", topic=intake)
    line.produced()
    for _ in range(2):
        (came,) = line.consume(1, billing)
        fail(line, came, intake)
    (last,) = line.consume(1, up)
    assert last.header("x-retry-attempt") == b"3"
    assert last.header("kafka_dlt-exception-fqcn") == b"java.lang.IllegalStateException"
    assert last.header("x-retry-id") == came.header("x-retry-id")
    assert {"x-delay", "x-delay-cancel"} & dict(came.headers).keys() == {"x-delay", "x-delay-cancel"}
    assert not {"x-delay", "x-delay-cancel"} & dict(last.headers).keys(), "it must not wait again, or cancel another"
    line.nothing_more(0.3)


def test_a_record_whose_headers_are_forged_has_failed_for_the_first_time(line: KafkaLine) -> None:
    forged: Headers = [("x-retry-attempt", b"99"), ("x-retry-first-failed", b"253370764800000")]
    line.produce(b"forged", [*forged, ("x-retry-signature", b"0" * 32)], topic=f"{line.topic}.failed")
    produced_at = line.produced()
    (came,) = line.consume(1, f"{line.topic}.billing")
    assert (came.value, came.header("x-retry-attempt")) == (b"forged", b"1")
    assert abs(int(came.header("x-retry-first-failed") or b"") / 1000 - produced_at) < 60
    line.nothing_more(0.3)


def test_a_rule_for_many_topics_and_each_pair_of_also_return_to_their_own_topic(line: KafkaLine) -> None:
    for name in ("eu.cards", "us"):
        line.produce(name.encode(), HANDLER, topic=f"{line.topic}.{name}.dlt")
    line.produced()
    for name in ("eu.cards", "us"):
        (came,) = line.consume(1, f"{line.topic}.{name}")
        assert (came.value, came.header("x-retry-attempt")) == (name.encode(), b"1")


def test_check_names_a_missing_topic_of_then(line: KafkaLine, capsys: pytest.CaptureFixture[str]) -> None:
    file = line.file({"routes": {"grouped": {"then": f"topic:{line.topic}.gone"}}})
    run_command(["check", "--config", str(file)])
    assert f"topic '{line.topic}.gone', to which route grouped delivers, does not exist" in capsys.readouterr().out


def test_with_hold_a_later_record_of_a_key_waits_behind_one_that_waits_longer(line: KafkaLine) -> None:
    intake, billing = f"{line.topic}.failed", f"{line.topic}.billing"
    line.produce(b"a1", [], b"a", topic=intake, partition=0)
    line.produced()
    (first,) = line.consume(1, billing)
    for value, headers, key in ((b"a1", first.headers, b"a"), (b"a2", [], b"a"), (b"b1", [], b"b"), (b"x", [], None)):
        line.produce(value, headers, key, topic=intake, partition=0)
    line.produced()
    records = line.consume(4, billing)
    values = [record.value for record in records]
    assert set(values[:2]) == {b"b1", b"x"}
    assert values[2:] == [b"a1", b"a2"]
