"""The dead-letter topic of a share group (Kafka 4.4) as the intake of a retry route."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.kafka.broker_ends import open_replay
from adapters.kafka.raw.record import Record, unpack
from tests.bridge_line import QUICK, merged
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_tools import CONFIGS, CONSOLE_SHARE_CONSUMER, KafkaTools
from tests.devstack.redis import Redis
from tests.devstack.service import clean_env, wait_for
from tests.kafka_line import ROUTE, SETTINGS, Headers, KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

OWN: Headers = [("own", b"1"), ("own", None), ("x-delay", b"60000")]
PERMIT = "errors.deadletterqueue.group.enable"


@pytest.fixture
def line(kafka: Kafka, redis_server: Redis, tmp_path: Path) -> Iterator[KafkaLine]:
    line = KafkaLine(kafka.url, tmp_path, merged(SETTINGS, QUICK), redis_server.url)
    line.intake = f"dlq.{line.topic}"
    own = {
        "kind": "retry",
        "intercept": line.intake,
        "schedule": ["300ms", "900ms"],
        "originals": [f"{line.topic}.late"],
    }
    line.settings["routes"][ROUTE] |= own
    kafka_admin.create_topic(kafka.url, line.partitions, name=line.intake)
    yield line
    line.close()
    kafka_admin.delete_topics(kafka.url, [line.intake])


def point(line: KafkaLine, topic: str, offset: int, partition: int = 0, value: bytes | None = None) -> None:
    """Write what the broker of Kafka 4.4.0 writes: these headers in this order, and a value only as a copy."""
    where = {"topic": topic, "partition": partition, "offset": offset}
    why = {"group": "billing", "delivery.count": 5, "message": "Offset rejected by client."}
    headers: Headers = [(f"__dlq.errors.{name}", str(text).encode()) for name, text in {**where, **why}.items()]
    line.produce(value, headers, None, partition % line.partitions)


def test_what_a_share_group_rejects_returns_by_the_schedule_and_then_is_a_dead_letter(
    line: KafkaLine, kafka: Kafka, kafka_tools: KafkaTools
) -> None:
    if PERMIT not in kafka_admin.topic_config(kafka.url, line.intake):
        pytest.skip("this Kafka has no dead-letter topics of share groups: they begin with 4.4")
    kafka_admin.set_topic_config(kafka.url, line.intake, PERMIT, "true")
    group = f"errors.deadletterqueue.topic.name={line.intake},share.auto.offset.reset=earliest"
    server = ("--bootstrap-server", kafka.url)
    asked = ("--alter", "--entity-type", "groups", "--entity-name", line.topic + ".share", "--add-config", group)
    subprocess.run(kafka_tools.command(CONFIGS, *server, *asked), env=clean_env(), check=True, capture_output=True)
    line.run().wait_ready()
    line.produce(b"body", OWN, b"key", 1, line.topic)
    line.produced()
    words = (*server, "--topic", line.topic, "--group", line.topic + ".share", "--reject")
    consumer = subprocess.Popen(
        kafka_tools.command(CONSOLE_SHARE_CONSUMER, *words), env=clean_env(), stdout=subprocess.DEVNULL
    )
    try:
        came = line.consume(3)
        (reason,) = line.wait_dead()
    finally:
        consumer.kill()
        consumer.wait()
    for attempt, record in enumerate(came):
        assert (record.partition, record.key, record.value) == (1, b"key", b"body")
        assert record.headers[: len(OWN)] == OWN
        assert not any(name.startswith("__dlq.errors.") for name, _ in record.headers)
        if attempt:
            assert record.header("x-retry-attempt") == b"%d" % attempt
            assert record.header("x-retry-reason") == b"Offset rejected by client."
    assert came[1].header("x-retry-id") == came[2].header("x-retry-id")
    assert reason.startswith(f"exhausted: the consumers of topic '{line.topic}' failed 3 times")
    line.nothing_more(0.3)


def test_a_pointer_whose_record_is_gone_or_not_allowed_is_a_dead_letter_and_delays_no_other(line: KafkaLine) -> None:
    line.run().wait_ready()
    line.produce(b"body", OWN, b"key", 0, line.topic)
    line.produced()
    point(line, "secrets", 0)
    point(line, line.topic, 0, partition=99)
    point(line, line.topic, 0)
    line.produced()
    came = line.consume(2)
    assert [record.value for record in came] == [b"body", b"body"]
    assert came[1].header("x-retry-attempt") == b"1"
    point(line, line.topic, 77)
    line.produced()
    reasons = line.wait_dead(3)
    assert sum("Kafka has that record no more" in reason for reason in reasons) == 2
    assert sum("it points at topic 'secrets', which is neither" in reason for reason in reasons) == 1
    line.nothing_more(0.3)


def test_a_pointer_at_what_cannot_be_fetched_now_waits_says_so_and_delays_no_other_partition(line: KafkaLine) -> None:
    bridge, late = line.run(), f"{line.topic}.late"
    bridge.wait_ready()
    line.produce(b"first", [], b"key", 0, line.topic)
    line.produced()
    point(line, late, 0)
    line.produced()
    bridge.wait_health(f"waits, it points at offset 0 of partition 0 of topic '{late}'")
    line.produce(b"other", [], b"other", 1)
    assert {record.value for record in line.consume(2)} == {b"first", b"other"}
    kafka_admin.create_topic(line.url, 1, name=late)
    line.produce(b"late", OWN, b"key", 0, late)
    line.produced()
    (came,) = line.consume(1)
    assert (came.value, came.headers[: len(OWN)]) == (b"late", OWN)
    wait_for(lambda: "points at" not in bridge.health(), "its health is well again", 20)


def test_a_restore_from_the_intake_reads_the_record_at_which_a_pointer_points(line: KafkaLine) -> None:
    line.produce(b"body", OWN, b"key", 0, line.topic)
    line.produced()
    point(line, line.topic, 0)
    line.produced()

    async def replayed() -> list[Record]:
        replay = open_replay(line.loaded(), ROUTE, lambda: b"secret")
        await replay.open(0)
        try:
            return [unpack(delivery.payload) async for delivery in replay.records()]
        finally:
            await replay.close()

    (record,) = asyncio.run(replayed())
    assert (record.key, record.value) == (b"key", b"body")
    assert [(name.decode(), content) for name, content in record.headers[: len(OWN)]] == OWN
