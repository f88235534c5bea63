"""One session of a shard's transactional producer: its beginning, its transactions and its end.

All sessions of a shard use one transactional id, and Kafka refuses every request of an earlier session once a later
one began. A session begins with an empty marker. Then it reads the shard's markers up to that one, so it knows what
all earlier sessions committed. What it commits itself is added to the same memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from adapters.kafka import refusals
from adapters.kafka.client import (
    give_up_consumer,
    give_up_producer,
    has_leader,
    new_reader,
    new_transactional_producer,
    start,
)
from adapters.kafka.delivered import DeliveredKeys, read, written
from adapters.kafka.outgoing import OutgoingRecord
from adapters.kafka.partition_queue import last_batch, new_batch
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Refusal
from bridge.settings import Kafka

#: Kafka aborts a transaction that is open for longer. Until then consumers of its partitions wait.
TIMEOUT_MS = 10_000
_ABORT_S = 2.0
#: How many offsets before the end the last marker with keys is looked for at first.
_LOOK_BACK = 64
_READ_MS = 500

#: Records of one partition on their way, and the answer to them.
_Sent = tuple[TopicPartition, list[OutgoingRecord[Any]], asyncio.Future[Any]]


class RefusedRecordsError(Exception):
    """The broker refused some records of a transaction, so that none of it was delivered."""

    def __init__(self, records: Sequence[OutgoingRecord[Any]], topic: str, refusal: Refusal) -> None:
        super().__init__(str(refusal.reason))
        self.records = records
        self.topic = topic
        self.refusal = refusal


class MissingMarkersError(BrokerUnavailable):
    """The marker topic does not exist, or has no partition for the shard."""


class ShardSession:
    """The transactions of one shard, one at a time. ``open_session`` makes it."""

    def __init__(self, producer: AIOKafkaProducer, markers: TopicPartition) -> None:
        self._producer = producer
        self._markers = markers
        #: What the next transaction repeats.
        self._again: list[bytes] = []
        self._ends_sent = 0
        send_end = producer._sender._do_txn_commit
        producer._sender._do_txn_commit = partial(self._count_end, send_end)

    async def begin(self, rules: Kafka, delivered: DeliveredKeys) -> None:
        """Learn what earlier sessions delivered. Raises ``KafkaError``, ``BrokerUnavailable``."""
        opened = await self._write([], [b""], None)
        await read_markers(rules, self._markers, opened, delivered)
        self._again = delivered.repeated(int(time.time() * 1000))

    def sound(self) -> bool:
        """Return whether another transaction may follow.

        An end that was sent twice may reach the broker late, and would end the next transaction before its time.
        """
        return self._ends_sent <= 1

    async def refusal_of(self, tp: TopicPartition) -> Refusal | None:
        """Return why nothing can be sent to a partition now, as far as new metadata tell."""
        client = self._producer.client
        if not has_leader(client.cluster, tp):
            await client.force_metadata_update()
        return refusals.unreachable(client.cluster, tp)

    async def commit(
        self, flights: Sequence[tuple[TopicPartition, OutgoingRecord[Any]]], keys: Sequence[bytes], codec: int | None
    ) -> None:
        """Deliver records in one transaction, with markers for ``keys``.

        Raises ``RefusedRecordsError`` after which nothing is delivered. After ``KafkaError`` and
        ``BrokerUnavailable`` that is unknown.
        """
        values = list(written([*self._again, *keys]))
        await self._write(flights, values, codec)
        self._again = []

    async def _write(
        self, flights: Sequence[tuple[TopicPartition, OutgoingRecord[Any]]], values: Sequence[bytes], codec: int | None
    ) -> int:
        """Commit records and markers. Return the offset of the last marker."""
        producer = self._producer
        if not has_leader(producer.client.cluster, self._markers):  # sending would ask for the topic by name
            raise MissingMarkersError(_missing(self._markers, producer.client.cluster))
        await producer.begin_transaction()
        sent: list[_Sent] = []
        try:
            for tp, batch, records in _batches(flights, producer, codec):
                sent.append((tp, records, await self._send(tp, batch)))
            sent += [(self._markers, [], await self._send(self._markers, self._marker(value))) for value in values]
            await self._all_written(sent)
            self._ends_sent = 0
            await producer.commit_transaction()
            offset: int = sent[-1][2].result().offset
            return offset
        finally:
            for _, _, answer in sent:
                if not answer.cancel():
                    _read(answer)

    async def _send(self, tp: TopicPartition, batch: Any) -> asyncio.Future[Any]:
        """Put a batch into the transaction. Return its answer."""
        answer: asyncio.Future[Any] = await self._producer.send_batch(batch, tp.topic, partition=tp.partition)
        queued = last_batch(self._producer, tp)
        for future in (queued.future, queued._drain_waiter):
            future.add_done_callback(_read)
        return answer

    async def _all_written(self, sent: Sequence[_Sent]) -> None:
        """Wait for all answers. aiokafka would also commit if it had dropped a batch that the broker refused."""
        failed = self._producer._txn_manager.wait_for_transaction_end()
        waiting = {answer for _, _, answer in sent}
        while waiting:
            done, _ = await asyncio.wait({*waiting, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed in done:
                self._raise_refused(failed.exception(), sent)
            if any(answer.exception() is not None for answer in done):
                break
            waiting -= done
        for tp, records, answer in sent:
            if answer.done() and (error := answer.exception()) is not None:
                self._raise_batch(error, tp, records)

    def _raise_refused(self, error: BaseException | None, sent: Sequence[_Sent]) -> None:
        """Kafka did not let a partition into the transaction, or ended the session."""
        assert error is not None
        if not isinstance(error, TopicAuthorizationFailedError):
            raise error
        topics: set[str] = set(*error.args)
        if self._markers.topic in topics:
            raise BrokerUnavailable(_no_markers(self._markers.topic)) from error
        topic = min(topics)
        records = [record for tp, batch, _ in sent if tp.topic == topic for record in batch]
        raise RefusedRecordsError(records, topic, refusals.forbidden(topic)) from error

    def _raise_batch(self, error: BaseException, tp: TopicPartition, records: Sequence[OutgoingRecord[Any]]) -> None:
        if isinstance(error, TopicAuthorizationFailedError) and tp == self._markers:
            raise BrokerUnavailable(_no_markers(tp.topic)) from error
        keyless = len(records) == 1 and records[0].key is None
        refusal = refusals.of_error(error, tp, keyless) if isinstance(error, KafkaError) else None
        if refusal is None or tp == self._markers:
            raise error
        raise RefusedRecordsError(records, tp.topic, refusal) from error

    def _marker(self, value: bytes) -> Any:
        batch = self._producer.create_batch()
        batch.append(timestamp=None, key=None, value=value)
        batch.close()
        return batch

    async def _count_end(self, send_end: Any, result: Any) -> None:
        self._ends_sent += 1
        await send_end(result)

    async def abort(self) -> None:
        """Abort the transaction, so that consumers need not wait for its timeout. Then close."""
        try:
            with suppress(KafkaError, AssertionError, OSError):
                async with asyncio.timeout(_ABORT_S):
                    await self._producer.abort_transaction()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close within a few seconds. Kafka aborts an open transaction when the next session begins, or in time."""
        await give_up_producer(self._producer)
        waiter = self._producer._txn_manager.wait_for_transaction_end()
        if waiter is not None and waiter.done():
            waiter.exception()  # it has no other reader


async def open_session(rules: Kafka, markers: TopicPartition, delivered: DeliveredKeys) -> ShardSession:
    """Fence all earlier sessions of the shard with these markers, and learn what they delivered. Raises
    ``BrokerUnavailable``, the errors of aiokafka and of the network."""
    producer = new_transactional_producer(rules, f"{markers.topic}.{markers.partition}", TIMEOUT_MS)
    session = ShardSession(producer, markers)
    try:
        await start(producer, rules)
        await producer.client.force_metadata_update()
        await session.begin(rules, delivered)
    except BaseException:
        await session.close()
        raise
    return session


def _read(answer: asyncio.Future[Any]) -> None:
    """Read a late error, which has no other reader."""
    if not answer.cancelled():
        answer.exception()


def _missing(markers: TopicPartition, cluster: Any) -> str:
    partitions = len(cluster.partitions_for_topic(markers.topic) or ())
    if not partitions:
        return f"topic '{markers.topic}' does not exist, or postdate may not see it. Run `postdate setup`"
    if partitions > markers.partition:
        return f"partition {markers.partition} of topic '{markers.topic}' has no leader at the moment"
    return f"topic '{markers.topic}' has too few partitions: {partitions}. Run `postdate check`"


def _no_markers(topic: str) -> str:
    return f"postdate may not write to topic '{topic}'. Grant its user Read, Write and Describe"


# -- batches ----------------------------------------------------------------------------------------------------------


def _batches(
    flights: Iterable[tuple[TopicPartition, OutgoingRecord[Any]]], producer: AIOKafkaProducer, codec: int | None
) -> Iterator[tuple[TopicPartition, Any, list[OutgoingRecord[Any]]]]:
    """Return the batches of each partition, in the order of their records."""
    now_ms = int(time.time() * 1000)
    by_partition: dict[TopicPartition, list[OutgoingRecord[Any]]] = {}
    for tp, flight in flights:
        by_partition.setdefault(tp, []).append(flight)
    for tp, records in by_partition.items():
        batch, taken = None, list[OutgoingRecord[Any]]()
        for flight in records:
            if batch is not None and (flight.odd is not taken[-1].odd or not _append(batch, flight, now_ms)):
                batch.close()
                yield tp, batch, taken
                batch, taken = None, []
            if batch is None:
                batch = new_batch(producer, flight.odd, codec, transactional=True)
                _append(batch, flight, now_ms)
            taken.append(flight)
        if batch is not None:
            batch.close()
            yield tp, batch, taken


def _append(batch: Any, flight: OutgoingRecord[Any], now_ms: int) -> bool:
    timestamp = now_ms if flight.timestamp is None else flight.timestamp
    appended = batch.append(timestamp=timestamp, key=flight.key, value=flight.value, headers=flight.headers)
    return appended is not None


# -- markers ----------------------------------------------------------------------------------------------------------


async def read_markers(rules: Kafka, tp: TopicPartition, end: int, delivered: DeliveredKeys) -> None:
    """Read the markers before the offset ``end``, which is a committed marker itself, as far back as ``delivered``
    reaches. Reading up to a record of our own misses none, whatever a broker takes for the end of the partition."""
    consumer = new_reader(rules)
    try:
        await start(consumer, rules)
        consumer.assign([tp])
        begin = (await consumer.beginning_offsets([tp]))[tp]
        first = await _first_wanted(consumer, tp, begin, end, delivered.window_ms)
        async for at_ms, keys in _markers(consumer, tp, first, end):
            if keys:
                delivered.add(at_ms, keys)
    finally:
        await give_up_consumer(consumer)


async def _first_wanted(consumer: AIOKafkaConsumer, tp: TopicPartition, begin: int, end: int, window_ms: int) -> int:
    """Return where to begin: ``window_ms`` before the last marker with keys. An empty one is no sign of deliveries."""
    back, last_ms = _LOOK_BACK, -1
    while last_ms < 0:
        first = max(begin, end - back)
        async for at_ms, keys in _markers(consumer, tp, first, end):
            last_ms = at_ms if keys else last_ms
        if first == begin:
            return begin
        back *= 16
    found = (await consumer.offsets_for_times({tp: max(0, last_ms - window_ms)}))[tp]
    return begin if found is None else int(found.offset)


async def _markers(
    consumer: AIOKafkaConsumer, tp: TopicPartition, first: int, end: int
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Read committed markers from ``first`` on, up to and without that at ``end``."""
    consumer.seek(tp, first)
    while True:
        for record in (await consumer.getmany(tp, timeout_ms=_READ_MS)).get(tp, ()):
            if record.offset >= end:
                return
            yield record.timestamp, read(record.value)
