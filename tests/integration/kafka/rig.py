"""Topics, raw records, and a running source and sink, for the tests of the Kafka adapter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from adapters.kafka.intake import KafkaIntake
from adapters.kafka.outgoing import KafkaOut, OddName
from adapters.kafka.partition_queue import OddBatch
from adapters.kafka.raw.poison import fetch_batch
from adapters.kafka.raw.record import Record, pack
from adapters.kafka.routing import Router
from adapters.kafka.sink import KafkaSink
from adapters.kafka.source import KafkaSource
from adapters.kafka.transactional import Transactions
from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Delivery
from bridge.core.ports import Result
from bridge.delay.naming import Naming
from bridge.settings import Kafka
from bridge.telemetry.health import Health

DEADLINE_S = 40.0
BYTES_MAX = 64 << 20
LEASE_MS = 15_000
WANTED = frozenset({b"x-delay"})

#: One record of every kind that some bridge has lost or changed.
ODD_RECORDS = [
    Record(0, 1_700_000_000_001, None, b"null key", []),
    Record(0, 1_700_000_000_002, b"tombstone", None, []),
    Record(0, 1_700_000_000_003, None, None, []),
    Record(0, 1_700_000_000_004, b"", b"empty key", []),
    Record(0, 1_700_000_000_005, b"empty value", b"", []),
    Record(0, 1_700_000_000_006, b"k", b"v", [(b"b", b"1"), (b"a", None), (b"b", b"1"), (b"a", b"")]),
    Record(0, 1_700_000_000_007, b"k", b"v", [(b"", b"empty name"), (b"", None)]),
    Record(0, 1_700_000_000_008, b"\xff\x00\xfe", b"\x80\x00", [("ключ ☂".encode(), b"\xff\xfe\x00")]),
    Record(0, 0, b"the first millisecond", b"v", []),
    Record(0, 1_700_000_000_009, b"large", b"x" * 900_000, [(b"h", b"y" * 5000)]),
]
NOT_TEXT = Record(0, 1_700_000_000_010, b"k", b"v", [(b"x-delay", b"7"), (b"\xff\xfe", b"1"), (b"a", None)])


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, and fail when it does not come."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


async def until_true(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """The same for an asynchronous condition."""
    end = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.1)


class Topics:
    """Makes topics, writes to them and reads them, without the adapter's own source and sink."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self._prefix = prefix
        self._made: list[str] = []

    async def __aenter__(self) -> Self:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self.url)
        self._producer = AIOKafkaProducer(bootstrap_servers=self.url, acks="all", max_batch_size=1 << 19)
        await self._admin.start()
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()
        if self._made:
            await self._admin.delete_topics(self._made)
        await self._admin.close()

    def name(self, word: str) -> str:
        """A name that is this test's alone."""
        return f"{self._prefix}.{word}"

    async def make(self, word: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic; returns its name when every partition has a leader."""
        topic = self.name(word)
        answer = await self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))])
        assert [error[1] for error in answer.topic_errors] == [0]
        self._made.append(topic)

        async def there() -> bool:
            (described,) = await self._admin.describe_topics([topic])
            return [part["leader"] >= 0 for part in described["partitions"]] == [True] * partitions

        await until_true(there, f"topic {topic} has no leaders")
        return topic

    async def delete(self, word: str) -> None:
        """Delete a topic; returns when it has gone."""
        topic = self.name(word)
        await self._admin.delete_topics([topic])
        self._made.remove(topic)

        async def gone() -> bool:
            return topic not in await self.all()

        await until_true(gone, f"topic {topic} is still there")

    async def remove_records(self, topic: str) -> None:
        """Kafka removes everything that partition 0 has had so far."""
        await self._admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=-1)})

    async def all(self) -> set[str]:
        """The names of the cluster's topics."""
        return set(await self._admin.list_topics())

    async def write(self, topic: str, records: Sequence[Record], one_batch: bool = False) -> None:
        """Write records as they are, each to its own partition number, in order; with ``one_batch`` in one batch."""
        waiting = list(records)
        while waiting:
            first = waiting[0].partition
            batch = OddBatch(1 << 20) if one_batch or not _is_text(waiting[0]) else self._producer.create_batch()
            while waiting and waiting[0].partition == first and (one_batch or batch.record_count() == 0):
                record = waiting.pop(0)
                headers = [(_written(name, batch), content) for name, content in record.headers]
                batch.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=headers)
            batch.close()
            await (await self._producer.send_batch(batch, topic, partition=first))

    async def write_many(self, topic: str, partitions: int, each: int, headers: Sequence[Any] = ()) -> None:
        """``each`` records a partition; the value is the record's number in it."""
        for partition in range(partitions):
            for start in range(0, each, 1000):
                batch = self._producer.create_batch()
                for number in range(start, min(each, start + 1000)):
                    batch.append(timestamp=None, key=b"k", value=b"%d" % number, headers=list(headers))
                batch.close()
                await (await self._producer.send_batch(batch, topic, partition=partition))

    async def read(self, topic: str, count: int) -> list[Record]:
        """The first ``count`` records of a topic, partition by partition, in order, timestamps as they stand."""
        async with self._reader() as consumer:
            places = [TopicPartition(topic, p) for p in sorted(await _partitions(consumer, topic))]
            consumer.assign(places)
            found: dict[TopicPartition, list[Record]] = {place: [] for place in places}
            end = time.monotonic() + DEADLINE_S
            while sum(map(len, found.values())) < count:
                assert time.monotonic() < end, f"{topic} has {sum(map(len, found.values()))} of {count} records"
                for place, records in (await consumer.getmany(timeout_ms=200)).items():
                    found[place] += [
                        Record(r.partition, r.timestamp, r.key, r.value, [(n.encode(), c) for n, c in r.headers])
                        for r in records
                    ]
            return [record for place in places for record in found[place]]

    async def read_raw(self, topic: str, offset: int) -> Record:
        """One record of partition 0, also where its header names are no text."""
        async with self._reader() as consumer:
            await _partitions(consumer, topic)
            found = await fetch_batch(consumer, TopicPartition(topic, 0), offset)
            (_, record), *_ = found.records
            assert record is not None
            return record

    async def committed(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group in a topic, by partition."""
        offsets = await self._admin.list_consumer_group_offsets(group)
        return {place.partition: at.offset for place, at in offsets.items() if place.topic == topic and at.offset >= 0}

    async def note(self, group: str, topic: str) -> str:
        """The metadata that a group committed with the offset of a topic's first partition."""
        offsets = await self._admin.list_consumer_group_offsets(group)
        return str(offsets[TopicPartition(topic, 0)].metadata)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.url, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    partitions: set[int] = await consumer._client._wait_on_metadata(topic)
    return partitions


def _is_text(record: Record) -> bool:
    with suppress(UnicodeDecodeError):
        return all(name.decode() is not None for name, _ in record.headers)
    return False


def _written(name: bytes, batch: object) -> Any:
    return OddName(name) if isinstance(batch, OddBatch) else name.decode()


class Source:
    """A running source."""

    def __init__(self, topics: Topics, group: str, intake_topics: Sequence[str], **rules: Any) -> None:
        self.health = Health()
        self.group = group
        intakes = [KafkaIntake(topic, Naming(topic, "target"), WANTED) for topic in intake_topics]
        given = Kafka(**{"bootstrap_servers": topics.url, "group": group, **rules})
        self.source = KafkaSource(given, intakes, StoreClock(), BYTES_MAX, self.health)

    async def __aenter__(self) -> Self:
        self._run = asyncio.create_task(self.source.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.cancel()
        with suppress(asyncio.CancelledError):
            await self._run

    async def take(self, count: int, accept: bool = True) -> list[Delivery]:
        """The next ``count`` deliveries, accepted by default."""
        taken: list[Delivery] = []
        while len(taken) < count:
            batch = await asyncio.wait_for(self.source.take(count - len(taken), BYTES_MAX), DEADLINE_S)
            if accept:
                self.source.accept(batch)
            taken += batch
        return taken


def to(topic: str, drop: frozenset[bytes] = frozenset(), audit: bool = False, transactional: bool = False) -> KafkaOut:
    """A route that delivers all its records to one topic."""
    return KafkaOut(Router("route", [Naming("intake", topic)]).target, drop, audit, transactional=transactional)


def claim(number: int, record: Record, route: str = "orders", topic: str = "intake") -> Claim:
    """A claim of a record that was parked."""
    public_id = b"%020d" % number
    ends = time.monotonic() + 1000
    payload = pack(*record, topic.encode())
    return Claim(public_id, 0, b"token678", 1_700_000_000_000, 0, 0, route, b"", payload, public_id, ends)


class Sink:
    """A running sink and its answers."""

    def __init__(self, topics: Topics, outs: Mapping[str, KafkaOut], **rules: Any) -> None:
        self.results: list[Result[Claim]] = []
        self.health = Health()
        given = Kafka(**{"bootstrap_servers": topics.url, **rules})
        transactions = Transactions(given, LEASE_MS, self.health, lambda: None)
        self.sink = KafkaSink[Claim](given, outs, BYTES_MAX, self.health, transactions)
        self.sink.on_answers(self.results.extend)

    async def __aenter__(self) -> Self:
        self._run = asyncio.create_task(self.sink.run())
        await until(self.sink.able, "the sink is not ready")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.cancel()
        with suppress(asyncio.CancelledError):
            await self._run

    async def answers(self, count: int) -> list[Result[Claim]]:
        """The next ``count`` answers in order; fails if there are more."""
        await until(lambda: len(self.results) >= count, f"{len(self.results)} of {count} answers came")
        answers, self.results[:] = self.results[:], []
        assert len(answers) == count
        return answers

    async def publish(self, *claims: Claim) -> list[Result[Claim]]:
        """Publish and wait for the answers, sorted by the claims' ids."""
        self.sink.publish(claims)
        return sorted(await self.answers(len(claims)), key=lambda result: result.letter.public_id)
