"""Intake topics that are recreated, truncated or widened while postdate runs: each record reaches the consumer."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.integration.kafka.clients import PARTITIONS, Clients, running
from tests.integration.kafka.rig import DEADLINE_S

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

ONE_PARTITION = ("anew", "removed")
WORDS = (*ONE_PARTITION, "wide", "deleted", "both1", f"both{PARTITIONS}")
#: Base offset, and the length of what follows.
BATCH_HEAD = struct.Struct(">qi")
DELAYED: list[tuple[str, str | bytes | None]] = [("x-delay", b"100")]
#: Longer than a topic is taken on trust for the one it was, and than a fetch waits for records.
STANDSTILL_S = 1.2


@pytest.fixture(scope="module")
def clients(kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("topics")
    with running(kafka, redis_server, folder, WORDS, ONE_PARTITION, refresh="1s") as made:
        yield made


def write(clients: Clients, word: str, values: Sequence[bytes], partition: int = 0) -> None:
    """Records that are due in a tenth of a second, in one partition of the intake topic."""
    producer = Producer({"bootstrap.servers": clients.url, "log_level": 0})
    for value in values:
        producer.produce(clients.intake(word), value=value, key=b"k", headers=DELAYED, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def numbered(word: bytes, count: int) -> list[bytes]:
    return [b"%b %d" % (word, number) for number in range(count)]


def stop(clients: Clients) -> float:
    """SIGSTOP; when that was."""
    clients.bridge.pause()
    return time.monotonic()


def stood_still(since: float) -> None:
    wait_for(lambda: time.monotonic() - since > STANDSTILL_S, "it stood still for long enough")


def arrived(clients: Clients, word: str, count: int) -> list[bytes | None]:
    return [message.value() for _, message in clients.read(clients.topic(word), count)]


def test_a_topic_recreated_while_postdate_is_frozen_is_delivered_from_its_first_record_once(
    clients: Clients,
) -> None:
    topic, old, new = clients.intake("anew"), numbered(b"old", 5), numbered(b"new", 20)
    write(clients, "anew", old)
    assert arrived(clients, "anew", 5) == old
    stopped = stop(clients)
    kafka_admin.delete_topics(clients.url, [topic])
    wait_for(lambda: topic not in kafka_admin.topics(clients.url), "the topic has gone")
    kafka_admin.create_topic(clients.url, name=topic)
    write(clients, "anew", new)
    stood_still(stopped)
    clients.bridge.resume()
    assert arrived(clients, "anew", 25) == [*old, *new]
    write(clients, "anew", [b"last"])
    assert arrived(clients, "anew", 26) == [*old, *new, b"last"]


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.long), PARTITIONS])
def test_a_topic_recreated_while_two_instances_are_frozen_loses_nothing_and_needs_no_restart(
    clients: Clients, partitions: int
) -> None:
    word = f"both{partitions}"
    topic, sent = clients.intake(word), set[bytes | None]()

    def spread(name: bytes, count: int) -> None:
        values = numbered(name, count)
        for number, value in enumerate(values):
            write(clients, word, [value], number % len(kafka_admin.partitions(clients.url, topic)))
        sent.update(values)

    def all_of_it() -> bool:
        return (
            len(clients.read(clients.topic(word), lambda found: sent <= {message.value() for _, message in found})) > 0
        )

    with clients.second() as second:
        spread(b"old", 30)
        assert all_of_it()
        for turn in (b"first", b"second"):
            stopped = stop(clients)
            second.pause()
            kafka_admin.delete_topics(clients.url, [topic])
            wait_for(lambda: topic not in kafka_admin.topics(clients.url), "the topic has gone")
            kafka_admin.create_topic(clients.url, partitions, name=topic)
            spread(turn + b" before", 5)
            stood_still(stopped)
            clients.bridge.resume()
            second.resume()
            spread(turn + b" after", 30)
            assert all_of_it()
        assert clients.bridge.running()
        assert second.running()


def test_records_that_kafka_removed_unread_are_reported_and_those_after_them_arrive(
    clients: Clients,
) -> None:
    topic = clients.intake("removed")
    write(clients, "removed", [b"before"])
    assert arrived(clients, "removed", 1) == [b"before"]
    stopped = stop(clients)
    wait_for(lambda: time.monotonic() - stopped > STANDSTILL_S, "its last fetch was answered")
    write(clients, "removed", numbered(b"gone", 7))
    write(clients, "removed", [b"after"])
    admin = kafka_admin.client(clients.url)
    removed = admin.delete_records([TopicPartition(topic, 0, 8)])
    assert [done.result(DEADLINE_S).low_watermark for done in removed.values()] == [8]
    clients.bridge.resume()
    assert arrived(clients, "removed", 2) == [b"before", b"after"]
    said = (
        f"Kafka removed 7 offsets of topic {topic} before postdate could read them, the last time 1 to 7 of partition 0"
    )
    clients.bridge.wait_health(said)
    assert '"first_offset": 1' in clients.bridge.log() or "first_offset=1" in clients.bridge.log()


@pytest.mark.long
def test_an_intake_topic_deleted_under_two_running_instances_is_recreated_and_read(clients: Clients) -> None:
    topic = clients.intake("deleted")
    with clients.second():
        write(clients, "deleted", [b"before"])
        assert arrived(clients, "deleted", 1) == [b"before"]
        kafka_admin.delete_topics(clients.url, [topic])
        wait_for(lambda: topic not in kafka_admin.topics(clients.url), "the topic has gone")
        wait_for(lambda: topic in kafka_admin.topics(clients.url), "the topic is made again", 20)
        assert len(kafka_admin.partitions(clients.url, topic)) == PARTITIONS
        write(clients, "deleted", [b"after"])
        assert arrived(clients, "deleted", 2) == [b"before", b"after"]


def test_a_new_partition_is_read_from_its_first_record(clients: Clients) -> None:
    topic = clients.intake("wide")
    admin = kafka_admin.client(clients.url)
    for done in admin.create_partitions([NewPartitions(topic, 4)]).values():
        done.result(DEADLINE_S)
    wait_for(lambda: len(kafka_admin.partitions(clients.url, topic)) == 4, "it has four partitions")
    first = numbered(b"first", 10)
    write(clients, "wide", first, partition=3)
    assert arrived(clients, "wide", 10) == first


def cut_off(partition: Path, batches: int) -> None:
    """Of the log of a broker that does not run keep so many batches, as if the others had never reached the disk."""
    log = partition / f"{0:020}.log"
    data, end = log.read_bytes(), 0
    for _ in range(batches):
        _, length = BATCH_HEAD.unpack_from(data, end)
        end += BATCH_HEAD.size + length
    log.write_bytes(data[:end])
    for other in partition.iterdir():
        if other.suffix in (".index", ".timeindex", ".snapshot"):
            other.unlink()


@pytest.mark.long
def test_records_that_reuse_the_offsets_lost_by_a_crashed_kafka_are_delivered(
    own_kafka: Kafka, redis_server: Redis, tmp_path: Path
) -> None:
    if own_kafka.data is None:
        pytest.skip("the broker keeps its partitions elsewhere")
    with running(own_kafka, redis_server, tmp_path, ["cut"], ["cut"], session_timeout="20s") as clients:
        old, new = numbered(b"old", 10), numbered(b"new", 3)
        for value in old:  # each in a batch of its own
            write(clients, "cut", [value])
        assert arrived(clients, "cut", 10) == old
        own_kafka.kill()
        cut_off(own_kafka.data / f"{clients.intake('cut')}-0", 7)
        own_kafka.start()
        said = f"Kafka lost the offsets 7 to 9 of partition 0 of topic {clients.intake('cut')}, which had been read"
        clients.bridge.wait_health(said, DEADLINE_S)
        write(clients, "cut", new)
        assert arrived(clients, "cut", 13) == [*old, *new]
