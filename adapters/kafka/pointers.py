"""Dead-letter records of share groups (KIP-1191, Kafka 4.4). Each points at the record that failed.

The broker writes topic, partition and offset of the original as headers. It adds key and value only where the group
asks for copies, and never the headers of the original. Those have the number of attempts, so postdate fetches it
always.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, LeaderNotAvailableError, OffsetOutOfRangeError

from adapters.kafka.client import has_leader
from adapters.kafka.raw.poison import RawBatch, fetch_batch
from adapters.kafka.raw.record import Header, Record

TOPIC, PARTITION = b"__dlq.errors.topic", b"__dlq.errors.partition"
#: A record with this header points at another one. postdate removes it when it has resolved the pointer.
OFFSET = b"__dlq.errors.offset"
_OFFSET_TEXT = OFFSET.decode()
_DIGITS_MAX = 18
#: Originals fetched before the rest of a poll waits for its turn, in bytes.
_BYTES_MAX = 8 << 20
#: By how much an original's clock may be ahead of the broker's. A later record belongs to a recreated topic.
_AHEAD_MS = 60_000
#: How long a record may be missing at the end of its partition: a new leader may not have it yet.
_MISSING_S = 10.0
_ANSWER_S = 3.0
#: A fetch of 1 byte brings one whole batch.
_ONE_BATCH = 1
#: A share group reads uncommitted records unless it is told otherwise.
_READ_UNCOMMITTED = 0


class Pointer(NamedTuple):
    """Where the original is, or was."""

    tp: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset} of partition {self.tp.partition} of topic '{self.tp.topic}'"


class Followed(NamedTuple):
    """The first records of a poll, with their originals in place of pointers.

    ``faults``: by offset, what is wrong with a record. ``trouble``: why the next one cannot be fetched now.
    """

    records: list[ConsumerRecord]
    faults: dict[int, str]
    trouble: str = ""


#: Fetch the batch with this record; None if there is none. Raises ``KafkaError`` or ``OSError`` if it fails for now.
Fetch = Callable[[Pointer], Awaitable[RawBatch | None]]


def points(record: ConsumerRecord) -> bool:
    """Return whether a record is a pointer."""
    return any(name == _OFFSET_TEXT for name, _ in record.headers)


def pointer_in(headers: Sequence[tuple[str, bytes | None]]) -> Pointer | None:
    """Return where the headers of a pointer point; None if that cannot be read. If a header repeats, the last one
    counts."""
    found = {name.encode(): value or b"" for name, value in headers}
    topic, partition, offset = (found.get(name, b"") for name in (TOPIC, PARTITION, OFFSET))
    numbers = all(text.isdigit() and len(text) <= _DIGITS_MAX for text in (partition, offset))
    return Pointer(TopicPartition(topic.decode(errors="replace"), int(partition)), int(offset)) if numbers else None


def resolved(record: ConsumerRecord, original: Record) -> ConsumerRecord:
    """Return the original, with what the broker says of its failure. Raises ``UnicodeDecodeError``."""
    kept: list[Header] = [*original.headers, *((name.encode(), value) for name, value in record.headers)]
    headers = tuple((name.decode(), value) for name, value in kept if name != OFFSET)
    return replace(record, partition=original.partition, key=original.key, value=original.value, headers=headers)


def _is_another(record: ConsumerRecord, original: Record) -> bool:
    """Return whether the record at the original's offset is not the one that failed, as far as that shows."""
    return (
        original.timestamp > record.timestamp + _AHEAD_MS
        or record.key not in (None, original.key)
        or record.value not in (None, original.value)
    )


async def follow(records: Sequence[ConsumerRecord], allowed: frozenset[str], fetch: Fetch) -> Followed:
    """Put the original in place of each pointer. Stop at the first that cannot be fetched now, and at many bytes."""
    done: list[ConsumerRecord] = []
    faults: dict[int, str] = {}
    size, at, batch = 0, Pointer(TopicPartition("", 0), 0), RawBatch([], 0)
    for record in records:
        if size > _BYTES_MAX:
            break
        if not points(record):
            done.append(record)
            continue
        pointer = pointer_in(record.headers)
        fault = _refusal(pointer, allowed)
        if pointer is not None and not fault:
            try:
                if pointer.tp != at.tp or not at.offset <= pointer.offset < batch.end:
                    at, batch = pointer, await fetch(pointer) or RawBatch([], 0)
            except (KafkaError, OSError) as error:
                return Followed(done, faults, f"{pointer}: {error or type(error).__name__}")
            record, fault = _with_original(record, pointer, batch)
        if fault:
            faults[record.offset] = fault
        done.append(record)
        size += len(record.value or b"")
    return Followed(done, faults)


def _refusal(pointer: Pointer | None, allowed: frozenset[str]) -> str:
    if pointer is None:
        return f"the headers {TOPIC.decode()}, {PARTITION.decode()} and {_OFFSET_TEXT} name no record"
    if pointer.tp.topic not in allowed:
        return (
            f"it points at topic '{pointer.tp.topic}', which is neither in the route's deliver_to nor in its originals"
        )
    return ""


def _with_original(record: ConsumerRecord, pointer: Pointer, batch: RawBatch) -> tuple[ConsumerRecord, str]:
    """Return what a pointer becomes, and what is wrong with it."""
    original = next((original for offset, original in batch.records if offset == pointer.offset), None)
    if original is None:
        fault = f"it points at {pointer}, and Kafka has that record no more, or its bytes cannot be read"
    elif _is_another(record, original):
        fault = f"it points at {pointer}, and another record is there: the topic was recreated"
    else:
        try:
            return resolved(record, original), ""
        except UnicodeDecodeError:
            fault = f"it points at {pointer}, whose header names are not UTF-8"
    if record.value is None:
        return record, fault
    headers = tuple(header for header in record.headers if header[0] != _OFFSET_TEXT)  # so the copy can be retried
    return replace(record, headers=headers), f"{fault}. This is the broker's copy of it, without its own headers"


class Originals:
    """Fetches originals through a consumer's client."""

    def __init__(self) -> None:
        #: Partitions that end before a pointer, and since when.
        self._short: dict[TopicPartition, float] = {}

    async def follow(
        self, consumer: AIOKafkaConsumer, records: Sequence[ConsumerRecord], allowed: frozenset[str]
    ) -> Followed:
        """Put the original in place of each pointer (``follow``)."""

        async def fetch(pointer: Pointer) -> RawBatch | None:
            async with asyncio.timeout(_ANSWER_S):
                return await self._fetch(consumer, pointer)

        return await follow(records, allowed, fetch)

    async def _fetch(self, consumer: AIOKafkaConsumer, pointer: Pointer) -> RawBatch | None:
        client, tp = consumer._client, pointer.tp
        numbers = client.cluster.partitions_for_topic(tp.topic)
        if numbers and tp.partition not in numbers:
            return None
        try:
            if not has_leader(client.cluster, tp):
                raise LeaderNotAvailableError(f"topic '{tp.topic}' is missing, or its partition has no leader")
            batch = await fetch_batch(consumer, tp, pointer.offset, _ONE_BATCH, _READ_UNCOMMITTED)
        except OffsetOutOfRangeError:
            return None
        except (KafkaError, OSError):
            client.force_metadata_update()
            raise
        if batch.records:
            self._short.pop(tp, None)
        elif time.monotonic() < self._short.setdefault(tp, time.monotonic()) + _MISSING_S:
            raise LeaderNotAvailableError("the leader does not have it yet")
        return batch
