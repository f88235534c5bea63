"""Decodes a batch that aiokafka cannot decode, from the bytes of a fetch, so that no record is lost.

aiokafka expects UTF-8 header names. One that is not fails every read, and blocks everything after it in its batch.
Layout: the Kafka protocol guide, "Record Batch" (magic 2).
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest

from adapters.kafka.raw.record import Header, Record

_BATCH = struct.Struct(">qiibIhiqqqhii")
#: A batch's length excludes the base offset and the length.
_BEFORE_LENGTH = 12
_MAGIC = 2
_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
#: A control record's key: version and type. Type 0 ends an aborted transaction.
_ABORTED = bytes(4)
_DECODERS: dict[int, Callable[[bytes], bytes]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
_FETCH_BYTES = 1 << 20
_FETCH_WAIT_MS = 500
_READ_COMMITTED = 1
#: aiokafka keeps one connection per broker and request group. On the consumer's own, a fetch waits for the one before.
_GROUP = "raw"


class _Cursor:
    """Reads the parts of a record in order. Raises ``ValueError`` at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def varint(self) -> int:
        """A zigzag-encoded number of variable length."""
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
            shift += 7

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise ValueError("a record is cut short")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def maybe(self) -> bytes | None:
        """Bytes after their length, -1 for null."""
        length = self.varint()
        return None if length < 0 else self.take(length)


class RawBatch(NamedTuple):
    """The records of one batch with their offsets, and the offset after the batch. A record is None if its bytes cannot
    be decoded. Without records: where to read again."""

    records: Sequence[tuple[int, Record | None]]
    end: int


def first_batch(data: bytes, offset: int, partition: int, aborted: Iterable[tuple[int, int]] = ()) -> RawBatch:
    """The records, from ``offset`` on, of the batch that contains it, or of the next one; none if the data has none.

    ``aborted`` are the aborted transactions as a fetch lists them, each with its producer and first offset. Their
    batches are skipped. Raises ``ValueError`` for bytes that are no record batches of this version, and for an
    unknown codec.
    """
    reached = offset
    coming = sorted(aborted, key=lambda entry: entry[1], reverse=True)
    within: set[int] = set()
    at = 0
    while at + _BATCH.size <= len(data):
        head = _BATCH.unpack_from(data, at)
        base, length, _, magic, _, attributes, last, first_ms, max_ms, producer, _, _, count = head
        end = at + _BEFORE_LENGTH + length
        if magic != _MAGIC or length <= 0 or (end > len(data) and not at):
            raise ValueError("a record batch of another version, or cut short")
        if end > len(data):  # it begins a fetch of its own, which has all of it
            break
        while coming and coming[-1][1] <= base + last:
            within.add(coming.pop()[0])
        if attributes & _CONTROL:
            if (_record(_Cursor(data[at + _BATCH.size : end]))[2] or b"")[:4] == _ABORTED:
                within.discard(producer)
        elif base + last >= offset and not (attributes & _TRANSACTIONAL and producer in within):
            cursor = _Cursor(_uncompressed(data[at + _BATCH.size : end], attributes & _CODEC_MASK))
            records = []
            for _ in range(count):
                delta_ms, number, key, value, headers = _record(cursor)
                if base + number >= offset:
                    timestamp = max_ms if attributes & _LOG_APPEND_TIME else first_ms + delta_ms
                    records.append((base + number, Record(partition, timestamp, key, value, headers)))
            return RawBatch(records, base + last + 1)
        at, reached = end, max(reached, base + last + 1)
    return RawBatch([], reached)


def _uncompressed(data: bytes, codec: int) -> bytes:
    if not codec:
        return data
    try:
        return _DECODERS[codec](data)
    except (KeyError, RuntimeError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"compression codec {codec} cannot be read: {error}") from error


def _record(cursor: _Cursor) -> tuple[int, int, bytes | None, bytes | None, list[Header]]:
    cursor.varint()  # the record's length, which follows from its parts
    cursor.take(1)  # attributes: none are defined
    delta_ms, number = cursor.varint(), cursor.varint()
    key, value = cursor.maybe(), cursor.maybe()
    headers = [(cursor.take(cursor.varint()), cursor.maybe()) for _ in range(cursor.varint())]
    return delta_ms, number, key, value, headers


async def fetch_batch(
    consumer: AIOKafkaConsumer,
    tp: TopicPartition,
    offset: int,
    bytes_max: int = _FETCH_BYTES,
    isolation: int = _READ_COMMITTED,
) -> RawBatch:
    """Fetch and decode the record at an offset and the rest of its batch, or that record alone if its bytes cannot be
    decoded. A broker that has nothing there for now gives no records.

    With ``bytes_max`` 1 the broker sends that batch alone. Raises ``KafkaError`` if it cannot be fetched now.
    """
    wanted = [(tp.topic, [(tp.partition, offset, bytes_max)])]
    request = FetchRequest(_FETCH_WAIT_MS, 1, bytes_max, isolation, wanted, rack_id="")
    client = consumer._client
    answer = await client.send(client.cluster.leader_for_partition(tp), request, group=_GROUP)
    while not answer.topics:  # the quota of the user is used up
        await asyncio.sleep(_FETCH_WAIT_MS / 1000)
        answer = await client.send(client.cluster.leader_for_partition(tp), request, group=_GROUP)
    _, code, *others, data = answer.topics[0][1][0]
    if code:
        raise for_code(code)
    aborted = next((other for other in others if isinstance(other, list)), ())
    try:
        return first_batch(bytes(data or b""), offset, tp.partition, aborted)
    except ValueError:
        return RawBatch([(offset, None)], offset + 1)
