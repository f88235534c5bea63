"""The ground that the tests of Kafka stand on: what the devstack promises of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.devstack import kafka as kafka_servers
from tests.devstack import kafka_admin, kafka_java
from tests.devstack.fixtures import MakeTopic
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_cluster import KafkaCluster
from tests.devstack.service import PORTS, NotOurs, Unavailable, wait_for

pytestmark = pytest.mark.long

DEADLINE_S = 30.0
# Names more than once, an empty value and none at all: all of them are legal, and none may be lost on the way.
HEADERS: list[tuple[str, str | bytes | None]] = [
    ("x-delay", b"1500"),
    ("x-delay", b"2"),
    ("empty", b""),
    ("none", None),
]


# --- records ---------------------------------------------------------------------------------------------------------


def write(bootstrap: str, topic: str, value: bytes) -> None:
    """Returns when all replicas in sync have it."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, "linger.ms": 0})
    producer.produce(
        topic, value, b"key", headers=HEADERS, on_delivery=lambda error, _: failures.append(error) if error else None
    )
    assert producer.flush(DEADLINE_S) == 0
    assert not failures


def read(bootstrap: str, topic: str, count: int) -> list[Message]:
    """The first so many records of partition 0."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
    )
    found: list[Message] = []

    def take() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            found.append(message)
        return len(found) == count

    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        wait_for(take, f"{count} records of {topic} arrive", DEADLINE_S)
    finally:
        consumer.close()
    return found


def values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    return [message.value() for message in read(bootstrap, topic, count)]


async def write_by_aiokafka(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, value, key=b"key", headers=HEADERS, timestamp_ms=1_234)


@pytest.mark.kafka
async def test_a_record_with_headers_makes_the_round_trip_through_aiokafka(
    kafka: Kafka, kafka_topics: MakeTopic
) -> None:
    topic = kafka_topics()
    await write_by_aiokafka(kafka.url, topic, b"body")
    async with AIOKafkaConsumer(topic, bootstrap_servers=kafka.url, auto_offset_reset="earliest") as consumer:
        record = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
    assert (record.key, record.value, record.timestamp) == (b"key", b"body", 1_234)
    assert list(record.headers) == HEADERS


@pytest.mark.kafka
async def test_another_client_sees_the_record_that_aiokafka_wrote(kafka: Kafka, kafka_topics: MakeTopic) -> None:
    topic = kafka_topics()
    await write_by_aiokafka(kafka.url, topic, b"body")
    [message] = read(kafka.url, topic, 1)
    assert (message.key(), message.value(), message.timestamp()[1]) == (b"key", b"body", 1_234)
    assert message.headers() == HEADERS


@pytest.mark.kafka
def test_a_record_with_headers_makes_the_round_trip_through_another_client(
    kafka: Kafka, kafka_topics: MakeTopic
) -> None:
    topic = kafka_topics()
    write(kafka.url, topic, b"body")
    [message] = read(kafka.url, topic, 1)
    assert (message.key(), message.value(), message.headers()) == (b"key", b"body", HEADERS)


# --- one node --------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_killed_kafka_comes_back_under_its_address_with_its_data(own_kafka: Kafka, kafka_topics: MakeTopic) -> None:
    topic, url = kafka_topics(), own_kafka.url
    write(url, topic, b"still here")
    own_kafka.kill()
    assert not own_kafka.running()
    with pytest.raises(KafkaException):
        kafka_admin.nodes(url, 0.2)
    own_kafka.start()
    assert own_kafka.url == url
    assert values(url, topic, 1) == [b"still here"]


@pytest.mark.kafka
def test_a_restarted_kafka_has_its_data(own_kafka: Kafka, kafka_topics: MakeTopic) -> None:
    topic = kafka_topics()
    write(own_kafka.url, topic, b"still here")
    own_kafka.restart()
    assert values(own_kafka.url, topic, 1) == [b"still here"]


@pytest.mark.kafka
def test_a_paused_kafka_is_silent_and_then_goes_on(own_kafka: Kafka, kafka_topics: MakeTopic) -> None:
    topic = kafka_topics()
    own_kafka.pause()
    with pytest.raises(KafkaException):
        kafka_admin.nodes(own_kafka.url, 0.5)
    own_kafka.resume()
    own_kafka.wait_ready()
    write(own_kafka.url, topic, b"after")
    assert values(own_kafka.url, topic, 1) == [b"after"]


@pytest.mark.kafka
def test_a_kafka_that_was_given_is_used_and_never_touched(
    kafka: Kafka, kafka_topics: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka_topics()
    monkeypatch.setenv(kafka_servers.URL_VARIABLE, kafka.url)
    given = kafka_servers.find()
    assert given.url == kafka.url
    assert not given.owned
    for hurt in (given.kill, given.restart, given.pause, given.resume, given.wipe, given.start):
        with pytest.raises(NotOurs):
            hurt()
    with given:
        given.stop()
    assert topic in kafka_admin.topics(kafka.url)


@pytest.mark.kafka
def test_a_wiped_kafka_has_no_topics_and_no_groups(own_kafka: Kafka) -> None:
    topic = kafka_admin.create_topic(own_kafka.url)
    commit(own_kafka.url, topic, "a group")
    assert "a group" in groups(own_kafka.url)
    own_kafka.wipe()
    assert kafka_admin.topics(own_kafka.url) == set()
    assert groups(own_kafka.url) == []


def commit(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    finally:
        consumer.close()


def groups(bootstrap: str) -> list[str]:
    admin = kafka_admin.client(bootstrap)
    return [group.group_id for group in admin.list_consumer_groups(request_timeout=DEADLINE_S).result().valid]


@pytest.mark.kafka
def test_a_topic_of_a_test_has_the_settings_it_asked_for(kafka: Kafka, kafka_topics: MakeTopic) -> None:
    topic = kafka_topics(3, message_timestamp_type="LogAppendTime", retention_ms="60000")
    assert set(kafka_admin.partitions(kafka.url, topic)) == {0, 1, 2}
    config = kafka_admin.topic_config(kafka.url, topic)
    assert (config["message.timestamp.type"], config["retention.ms"]) == ("LogAppendTime", "60000")


@pytest.mark.kafka
def test_a_broker_and_its_controller_listen_on_loopback_ports_of_their_own(own_kafka: Kafka) -> None:
    processes = [psutil.Process(pid) for pid, _ in own_kafka.record().get("processes", [])]
    if not processes:
        pytest.skip("the broker runs in Docker, in a network of its own")
    sockets = [socket for process in processes for socket in process.net_connections("inet")]
    listening = {tuple(socket.laddr) for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert len({port for _, port in listening}) == 3
    assert {address for address, _ in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert all(port in PORTS for _, port in listening)


# --- three nodes -----------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_topic_of_the_cluster_is_on_all_nodes_and_needs_two(kafka_cluster: KafkaCluster) -> None:
    topic = kafka_admin.create_topic(kafka_cluster.url, partitions=2)
    found = kafka_admin.partitions(kafka_cluster.url, topic).values()
    assert [set(partition.replicas) for partition in found] == [{1, 2, 3}, {1, 2, 3}]
    assert kafka_admin.topic_config(kafka_cluster.url, topic)["min.insync.replicas"] == "2"


@pytest.mark.long
@pytest.mark.kafka
def test_the_cluster_elects_another_leader_and_takes_a_killed_node_back(kafka_cluster: KafkaCluster) -> None:
    topic = kafka_admin.create_topic(kafka_cluster.url)
    write(kafka_cluster.url, topic, b"before")
    killed = kafka_cluster.leader(topic)
    kafka_cluster.kill_node(killed)
    write(kafka_cluster.url, topic, b"meanwhile")
    assert kafka_cluster.leader(topic) != killed
    kafka_cluster.start_node(killed)
    kafka_cluster.wait_ok()
    assert values(kafka_cluster.nodes[killed].url, topic, 2) == [b"before", b"meanwhile"]


# --- Java and the jars -----------------------------------------------------------------------------------------------


def test_unfinished_jars_are_not_taken_for_finished_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTDATE_DEVSTACK_DIR", str(tmp_path))
    monkeypatch.setattr(kafka_java, "_java", lambda: "java")
    fetched: list[Path] = []

    def fetch(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        (folder / "half.jar").touch()
        fetched.append(folder)
        if len(fetched) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(kafka_java, "_fetch", fetch)
    with pytest.raises(KeyboardInterrupt):
        kafka_java.find_place()
    assert not (tmp_path / f"kafka-{kafka_java.VERSION}").exists()
    jars = kafka_java.find_place().jars
    assert jars.exists()
    assert kafka_java.find_place().jars == jars
    assert len(fetched) == 2


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Unavailable, match=f"needs Java 17 or newer, and {java} is 11"):
        kafka_java.find_place()
