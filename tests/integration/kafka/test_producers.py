"""Producers that keep naming the real topic: delayed records arrive when due, all others as before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException
from confluent_kafka.serialization import StringSerializer

from adapters.kafka.producers.delay_aiokafka import DelayProducer as AIOKafkaProducer
from adapters.kafka.producers.delay_confluent import DelayProducer as Producer
from adapters.kafka.producers.delay_confluent import DelaySerializingProducer as SerializingProducer
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.integration.kafka.clients import Clients, by_postdate, headers, running
from tests.integration.kafka.rig import DEADLINE_S

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

DELAY_S = 1.0
DELAY = ("x-delay", b"1000")
TRACE = ("trace", b"\xff")
WORDS = ("aiokafka", "aiokafka_transactions", "confluent", "confluent_transactions", "serializing", "destination")
#: The topic has three partitions, and its intake topic has one.
NARROW = ("aiokafka", "confluent")


@pytest.fixture(scope="module")
def clients(kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with running(kafka, redis_server, tmp_path_factory.mktemp("clients"), WORDS, narrow=NARROW) as made:
        yield made


def came(clients: Clients, word: str, count: int) -> dict[bytes | None, Any]:
    """What came to the topic, by value: when, and the record."""
    return {message.value(): (at, message) for at, message in clients.read(clients.topic(word), count)}


async def test_aiokafka_delays_records_with_a_header_and_sends_others_to_the_named_partition(
    clients: Clients,
) -> None:
    topic, sent = clients.topic("aiokafka"), time.time()
    async with AIOKafkaProducer(bootstrap_servers=clients.url, value_serializer=str.encode, acks="all") as producer:
        later = await producer.send_and_wait(topic, "later", key=b"k", headers=[TRACE, DELAY])
        elsewhere = await producer.send_and_wait(topic, "partition 2", b"k", 2, headers=[DELAY])
        waiting = await producer.send(topic, "at once", b"k", 2, 1_234, [TRACE])
        straight = await waiting
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value="batch", headers=[])
        batched = await (await producer.send_batch(batch, topic, partition=1))
    assert [later.topic, elsewhere.topic] == [clients.intake("aiokafka")] * 2
    assert [(metadata.topic, metadata.partition) for metadata in (straight, batched)] == [(topic, 2), (topic, 1)]
    found = came(clients, "aiokafka", 4)
    assert found[b"later"][0] >= sent + DELAY_S
    assert found[b"partition 2"][0] >= sent + DELAY_S
    message = found[b"later"][1]
    assert (message.key(), headers(message), by_postdate(message)) == (b"k", [TRACE], True)
    message = found[b"at once"][1]
    assert (message.key(), headers(message), by_postdate(message)) == (b"k", [TRACE], False)
    assert message.timestamp()[1] == 1_234


async def test_aiokafka_delivers_nothing_of_a_transaction_that_was_aborted(clients: Clients) -> None:
    topic = clients.topic("aiokafka_transactions")
    async with AIOKafkaProducer(bootstrap_servers=clients.url, transactional_id=topic) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted", headers=[DELAY])
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"committed", headers=[DELAY])
            await producer.send_and_wait(topic, b"at once")
    # The aborted one would have been due before the committed one.
    found = clients.read(topic, 2)
    assert {message.value() for _, message in found} == {b"committed", b"at once"}


async def test_aiokafka_with_keep_partition_uses_the_number_and_fails_if_it_does_not_exist(clients: Clients) -> None:
    topic = clients.topic("aiokafka_transactions")
    async with AIOKafkaProducer(bootstrap_servers=clients.url, keep_partition=True) as producer:
        kept = await producer.send_and_wait(topic, b"kept", b"k", 2, headers=[("x-delay-cancel", b"nobody")])
        assert (kept.topic, kept.partition) == (clients.intake("aiokafka_transactions"), 2)
        with pytest.raises((AssertionError, KafkaError)):
            await producer.send_and_wait(clients.topic("aiokafka"), b"lost", b"k", 2, headers=[DELAY])


def test_confluent_kafka_delays_records_with_a_header_and_sends_others_to_the_named_partition(
    clients: Clients,
) -> None:
    topic, sent, reports = clients.topic("confluent"), time.time(), {}

    def told(by: str) -> Any:
        def report(error: Any, message: Any) -> None:
            assert error is None
            reports[message.value()] = (by, message.topic(), message.partition())

        return report

    producer = Producer({"bootstrap.servers": clients.url, "acks": "all", "on_delivery": told("settings")})
    producer.produce(topic, b"later", b"k", headers=[TRACE, DELAY])
    producer.produce(topic, b"dict", headers=dict([DELAY]), callback=told("callback"))
    producer.produce(topic, b"partition 2", "k", 2, headers=[DELAY], on_delivery=told("on_delivery"))
    producer.produce(topic, b"at once", b"k", 2, told("positional"), None, 1_234, [TRACE])
    producer.produce_batch(topic, [{"value": b"batch"}], partition=1)
    assert producer.flush(DEADLINE_S) == 0
    intake = clients.intake("confluent")
    assert reports == {
        b"later": ("settings", intake, 0),
        b"dict": ("callback", intake, 0),
        b"partition 2": ("on_delivery", intake, 0),
        b"at once": ("positional", topic, 2),
        b"batch": ("settings", topic, 1),
    }
    found = came(clients, "confluent", 5)
    assert min(found[value][0] for value in (b"later", b"dict", b"partition 2")) >= sent + DELAY_S
    message = found[b"later"][1]
    assert (message.key(), headers(message), by_postdate(message)) == (b"k", [TRACE], True)
    message = found[b"at once"][1]
    assert (message.key(), headers(message), by_postdate(message)) == (b"k", [TRACE], False)
    assert message.timestamp()[1] == 1_234


def test_confluent_kafka_delivers_nothing_of_a_transaction_that_was_aborted(clients: Clients) -> None:
    topic = clients.topic("confluent_transactions")
    producer = Producer({"bootstrap.servers": clients.url, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    for value in (b"aborted", b"committed"):
        producer.begin_transaction()
        producer.produce(topic, value, headers=[DELAY])
        assert producer.flush(DEADLINE_S) == 0
        (producer.abort_transaction if value == b"aborted" else producer.commit_transaction)(DEADLINE_S)
    [(_, message)] = clients.read(topic, 1)
    assert message.value() == b"committed"


def test_confluent_kafka_with_keep_partition_fails_if_the_number_does_not_exist(clients: Clients) -> None:
    producer = Producer({"bootstrap.servers": clients.url}, keep_partition=True)
    producer.list_topics(clients.intake("confluent"), DEADLINE_S)
    with pytest.raises(KafkaException, match="Unknown partition"):
        producer.produce(clients.topic("confluent"), b"lost", partition=2, headers=[DELAY])


def test_a_serializer_sees_the_named_topic(clients: Clients) -> None:
    topic, seen = clients.topic("serializing"), []

    def serialize(value: Any, context: Any) -> bytes:
        seen.append(context.topic)
        return str(value).encode()

    text = StringSerializer("utf_8")
    producer = SerializingProducer(
        {"bootstrap.servers": clients.url, "key.serializer": text, "value.serializer": serialize}
    )
    producer.produce(topic, "k", 7, headers=[DELAY])
    producer.produce(topic, key="k", value=8)
    assert producer.flush(DEADLINE_S) == 0
    found = came(clients, "serializing", 2)
    assert seen == [topic, topic]
    assert [by_postdate(found[value][1]) for value in (b"7", b"8")] == [True, False]


async def test_another_rule_a_mapping_and_other_headers_work_alike(clients: Clients) -> None:
    """The intake topic is told by what the brokers answer; nothing waits here."""
    topic, cancel = clients.topic("serializing"), [("later", b"nobody")]
    mapping = {topic: clients.intake("serializing")}
    async with AIOKafkaProducer(bootstrap_servers=clients.url, intake=mapping, delay_headers=["later"]) as producer:
        sent = [await producer.send_and_wait(name, b"a", headers=cancel) for name in (topic, clients.topic("aiokafka"))]
    assert [metadata.topic for metadata in sent] == [clients.intake("serializing"), clients.topic("aiokafka")]
    reports: asyncio.Queue[str] = asyncio.Queue()
    other = Producer({"bootstrap.servers": clients.url}, intake=mapping, delay_headers=["later"])
    for name in (topic, clients.topic("confluent")):
        other.produce(
            name, b"b", headers=dict(cancel), on_delivery=lambda _, message: reports.put_nowait(message.topic())
        )
        assert other.flush(DEADLINE_S) == 0
    assert [reports.get_nowait() for _ in range(2)] == [clients.intake("serializing"), clients.topic("confluent")]


async def test_a_record_that_only_names_its_topic_passes_through_the_intake(
    clients: Clients,
) -> None:
    topic = clients.topic("destination")
    to_it: list[tuple[str, bytes | None]] = [("x-delay-to", topic.encode())]
    async with AIOKafkaProducer(bootstrap_servers=clients.url) as producer:
        sent = await producer.send_and_wait(topic, b"aiokafka", headers=to_it)
    assert sent.topic == clients.intake("destination")
    other, reports = Producer({"bootstrap.servers": clients.url}), []
    other.produce(
        topic, b"confluent", headers=[*to_it, DELAY], on_delivery=lambda _, message: reports.append(message.topic())
    )
    assert other.flush(DEADLINE_S) == 0
    assert reports == [clients.intake("destination")]
    found = came(clients, "destination", 2)
    assert [(headers(found[value][1]), by_postdate(found[value][1])) for value in (b"aiokafka", b"confluent")] == [
        ([], True),
        ([], True),
    ]
