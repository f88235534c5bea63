"""The Kafka sink at a broker: records arrive unchanged and in order, and each has exactly one answer."""

from __future__ import annotations

import os
import time

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError

from adapters.kafka.failure import RetryRouter, Returns
from adapters.kafka.outgoing import AUDIT_HEADERS, KafkaOut
from adapters.kafka.partitioner import PartitionChoice
from adapters.kafka.raw import poison
from adapters.kafka.raw.record import Record
from adapters.kafka.routing import Router
from bridge.core.message import Claim, Outcome
from bridge.core.ports import Result
from bridge.delay.naming import Naming
from bridge.settings import Partitioner
from tests.integration.kafka.rig import NOT_TEXT, ODD_RECORDS, Sink, Topics, claim, to, until

pytestmark = pytest.mark.kafka


def small(number: int, key: bytes | None = b"k") -> Record:
    return Record(0, 1_700_000_000_000, key, b"%d" % number, [])


def words(results: list[Result[Claim]]) -> list[str]:
    """Outcome, or reason of the refusal."""
    return [result.refusal.reason.kind if result.refusal else result.outcome.value for result in results]


async def test_every_odd_record_arrives_byte_for_byte(topics: Topics) -> None:
    topic = await topics.make("target")
    async with Sink(topics, {"orders": to(topic)}, timestamp="original") as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(ODD_RECORDS)))
    assert words(results) == ["confirmed"] * len(ODD_RECORDS)
    assert await topics.read(topic, len(ODD_RECORDS)) == ODD_RECORDS


async def test_a_header_name_that_is_not_utf8_arrives_unchanged_in_its_place(topics: Topics) -> None:
    topic = await topics.make("target")
    records = [small(0), NOT_TEXT, NOT_TEXT, small(1)]
    async with Sink(topics, {"orders": to(topic)}, timestamp="original") as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(records)))
    assert words(results) == ["confirmed"] * 4
    assert [await topics.read_raw(topic, offset) for offset in range(4)] == records


async def test_the_delay_headers_are_removed_and_the_audit_headers_come_last(topics: Topics) -> None:
    topic = await topics.make("target")
    headers = [(b"x-delay", b"5"), (b"a", b"1"), (b"x-delay-id", b"of another"), (b"x-delay", None), (b"a", None)]
    out = to(topic, frozenset({b"x-delay"}) | AUDIT_HEADERS, audit=True)
    before_ms = int(time.time() * 1000)
    async with Sink(topics, {"orders": out}) as sink:
        (result,) = await sink.publish(claim(7, Record(0, 1_500_000_000_000, None, None, list(headers))))
    assert result.outcome is Outcome.CONFIRMED
    (arrived,) = await topics.read(topic, 1)
    assert arrived.headers == [
        (b"a", b"1"),
        (b"a", None),
        (b"x-delay-id", b"00000000000000000007"),
        (b"x-delay-due", b"1700000000000"),
    ]
    assert (arrived.key, arrived.value) == (None, None)
    assert before_ms <= arrived.timestamp <= time.time() * 1000


async def test_a_missing_topic_is_refused_paused_not_created_and_delays_no_other(topics: Topics) -> None:
    topic = await topics.make("target")
    missing = topics.name("later")
    outs = {"orders": to(topic), "lost": to(missing)}
    async with Sink(topics, outs) as sink:
        mixed = [claim(n, small(n), "lost" if n % 2 else "orders") for n in range(10)]
        assert words(await sink.publish(*mixed)) == ["confirmed", "missing_topic"] * 5
        (resting,) = await sink.publish(claim(11, small(11), "lost"))
        assert resting.refusal is not None
        assert 0 < (resting.refusal.again_ms or 0) <= 1000
        assert missing not in await topics.all()
        await topics.make("later")
        outcomes: list[str] = []
        while "confirmed" not in outcomes:
            outcomes = words(await sink.publish(claim(12, small(12), "lost")))
    assert len(await topics.read(missing, 1)) == 1


async def test_a_record_that_is_too_large_is_refused_for_good_and_its_batch_is_not(topics: Topics) -> None:
    topic = await topics.make("target", config={"max.message.bytes": "20000"})
    records = [small(0), Record(0, 0, b"k", os.urandom(30_000), []), small(1), small(2)]
    async with Sink(topics, {"orders": to(topic)}) as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(records)))
        assert words(results) == ["confirmed", "too_large", "confirmed", "confirmed"]
        assert results[1].refusal is not None
        assert results[1].refusal.lasting
        assert words(await sink.publish(claim(4, small(3)))) == ["confirmed"]
    assert [record.value for record in await topics.read(topic, 4)] == [b"0", b"1", b"2", b"3"]


async def test_a_record_that_is_too_large_uncompressed_is_sent_compressed(topics: Topics) -> None:
    topic = await topics.make("target", config={"max.message.bytes": "20000"})
    odd = NOT_TEXT._replace(value=b"y" * 30_000)
    records = [small(0), Record(0, 1_700_000_000_000, b"k", b"x" * 30_000, [(b"h", None)]), small(1), odd]
    async with Sink(topics, {"orders": to(topic)}, timestamp="original") as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(records)))
        assert words(results) == ["confirmed"] * 4
    assert [await topics.read_raw(topic, offset) for offset in range(4)] == records


@pytest.mark.parametrize(("compression", "codec"), [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)])
async def test_records_are_sent_in_the_compression_of_the_settings_and_arrive_unchanged(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, compression: str, codec: int
) -> None:
    topic, codecs, uncompressed = await topics.make("target"), [], poison._uncompressed

    def note(data: bytes, number: int) -> bytes:
        codecs.append(number)
        return uncompressed(data, number)

    monkeypatch.setattr(poison, "_uncompressed", note)
    async with Sink(topics, {"orders": to(topic)}, timestamp="original", compression=compression) as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(ODD_RECORDS)))
    assert words(results) == ["confirmed"] * len(ODD_RECORDS)
    assert await topics.read(topic, len(ODD_RECORDS)) == ODD_RECORDS
    assert await topics.read_raw(topic, 0) == ODD_RECORDS[0]
    assert codecs == [codec]


async def test_the_largest_record_of_an_intake_fits_a_target_with_the_same_limit(topics: Topics) -> None:
    limit = {"max.message.bytes": "20000"}
    intake, target = await topics.make("intake", config=limit), await topics.make("target", config=limit)
    largest = Record(0, 1_700_000_000_000, b"k", os.urandom(19_917), [(b"x-delay", b"7")])
    await topics.write(intake, [largest])  # with the batch's head it has 20,000 bytes
    with pytest.raises(MessageSizeTooLargeError):
        await topics.write(intake, [largest._replace(key=b"kk")])
    less = largest._replace(value=os.urandom(19_800))
    out = to(target, frozenset({b"x-delay"}), audit=True)
    async with Sink(topics, {"orders": out}) as sink:
        assert words(await sink.publish(claim(0, largest), claim(1, less))) == ["confirmed"] * 2
    came = {record.value: [name for name, _ in record.headers] for record in await topics.read(target, 2)}
    assert came == {largest.value: [], less.value: [b"x-delay-id", b"x-delay-due"]}


async def test_a_batch_that_is_too_large_is_sent_record_by_record(topics: Topics) -> None:
    topic = await topics.make("target", config={"max.message.bytes": "20000"})
    records = [Record(0, 0, b"k", b"%04d" % number * 2000, []) for number in range(10)]
    async with Sink(topics, {"orders": to(topic)}) as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(records)))
    assert words(results) == ["confirmed"] * 10
    assert [record.value for record in await topics.read(topic, 10)] == [record.value for record in records]


async def test_a_compacted_topic_refuses_only_the_record_without_a_key(topics: Topics) -> None:
    topic = await topics.make("target", config={"cleanup.policy": "compact"})
    records = [small(0, b"a"), small(1, None), small(2, b"b")]
    async with Sink(topics, {"orders": to(topic)}) as sink:
        results = await sink.publish(*(claim(number, record) for number, record in enumerate(records)))
    assert words(results) == ["confirmed", "rejected", "confirmed"]
    refusal = next(result.refusal for result in results if result.refusal is not None)
    assert refusal.reason.sentence.startswith(
        f"topic '{topic}' does not accept this record: INVALID_RECORD (87). It has no"
    )


async def test_an_unknown_route_or_payload_is_refused_alone(topics: Topics) -> None:
    topic = await topics.make("target")
    broken = claim(1, small(1))
    broken.payload = b"\x07 of another adapter"
    async with Sink(topics, {"orders": to(topic)}) as sink:
        results = await sink.publish(claim(0, small(0)), broken, claim(2, small(2), "unheard of"))
    assert words(results) == ["confirmed", "unreadable", "no_route"]
    assert sink.sink.room()[0] == 0 or sink.sink.room()[0] == 2000


async def test_each_partition_keeps_the_order_of_publishing(topics: Topics) -> None:
    topic = await topics.make("target", partitions=4)
    records = [small(number, b"key %d" % (number % 50)) for number in range(5000)]
    async with Sink(topics, {"orders": to(topic)}, window=10_000) as sink:
        for start in range(0, 5000, 7):
            sink.sink.publish([claim(n, records[n]) for n in range(start, min(5000, start + 7))])
            if start % 5 == 0:
                await until(lambda: sink.sink.room()[0] > 9000, "no room")
        assert set(words(await sink.answers(5000))) == {"confirmed"}
        assert sink.sink.room()[0] == 10_000
    arrived = await topics.read(topic, 5000)
    for key in {record.key for record in records}:
        mine = [record for record in arrived if record.key == key]
        assert [record.value for record in mine] == [record.value for record in records if record.key == key]
        assert len({record.partition for record in mine}) == 1


async def test_a_producer_out_of_sequence_is_replaced_and_each_of_its_records_is_answered_once(topics: Topics) -> None:
    topic = await topics.make("target")
    async with Sink(topics, {"orders": to(topic)}) as sink:
        assert words(await sink.publish(claim(0, small(0)))) == ["confirmed"]
        producer = sink.sink._producer
        assert producer is not None
        producer._txn_manager.increment_sequence_number(TopicPartition(topic, 0), 5)
        assert set(words(await sink.publish(*(claim(n, small(n)) for n in range(1, 50))))) == {"unknown"}
        await until(lambda: sink.sink.able() and sink.sink._producer is not producer, "no new producer")
        assert set(words(await sink.publish(*(claim(n, small(n)) for n in range(1, 50))))) == {"confirmed"}
    assert [record.value for record in await topics.read(topic, 50)] == [b"%d" % n for n in range(50)]


async def test_the_sequence_restarts_at_zero_where_its_numbers_end(topics: Topics) -> None:
    topic = await topics.make("target")
    async with Sink(topics, {"orders": to(topic)}) as sink:
        producer = sink.sink._producer
        assert producer is not None
        producer._txn_manager.increment_sequence_number(TopicPartition(topic, 0), 2**31 - 5)
        for start in (0, 10, 20):
            results = await sink.publish(*(claim(n, small(n)) for n in range(start, start + 10)))
            assert words(results) == ["confirmed"] * 10
        assert sink.sink._producer is producer
    assert [record.value for record in await topics.read(topic, 30)] == [b"%d" % n for n in range(30)]


@pytest.mark.parametrize(("ours", "theirs"), [("crc32", "consistent"), ("murmur2", "murmur2")])
async def test_keys_go_to_the_partition_that_librdkafka_chooses(topics: Topics, ours: Partitioner, theirs: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    topic = await topics.make("target", partitions=12)
    keys = [b"", b"a", b"foobar", *(b"customer-%d" % number for number in range(200))]
    producer = confluent.Producer({"bootstrap.servers": topics.url, "partitioner": theirs})
    for key in keys:
        producer.produce(topic, b"", key)
    assert producer.flush(30) == 0
    choice = PartitionChoice(ours)
    for record in await topics.read(topic, len(keys)):
        assert choice.partition(record.key, 0, 12) == record.partition, record.key


async def test_a_returned_record_keeps_its_number_between_topics_of_the_same_size_alone(topics: Topics) -> None:
    target = await topics.make("target", partitions=12)
    intakes = {size: await topics.make(f"failed{size}", partitions=size) for size in (4, 12)}
    router = RetryRouter(Router("route", [Naming(intake, target) for intake in intakes.values()]), Returns(3))
    out = KafkaOut(router.target, frozenset(), audit=False, partitioner="same", returns=Returns(3))
    async with Sink(topics, {"orders": out}) as sink:
        claims = [claim(size, small(size)._replace(partition=3), topic=intake) for size, intake in intakes.items()]
        assert words(await sink.publish(*claims)) == ["confirmed"] * 2
    by_key = PartitionChoice("murmur2").partition(b"k", 3, 12)
    assert by_key != 3
    found = {record.value: record.partition for record in await topics.read(target, 2)}
    assert found == {b"12": 3, b"4": by_key}
