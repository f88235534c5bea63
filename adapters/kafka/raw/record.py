"""The stored form of a Kafka record: everything that its producer wrote, with its topic and partition.

::

    version u8 | partition i32 | timestamp i64 | key length i32 | value length i32 | headers u32
    | topic length u8 | topic | (name length u32 | value length i32 | name | value) for each header | key | value

All integers are big-endian. A length of -1 is null, which differs from empty. The topic is the one that the record
was read from: it and the settings at the due time decide the target (``routing.py``). Header names are bytes,
because Kafka's brokers do not check that they are UTF-8.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bridge.delay.duration import write_moment

#: A header. Names may repeat and may be empty.
Header = tuple[bytes, bytes | None]

VERSION = 2
_HEAD = struct.Struct(">BiqiiI")
_LENGTHS = struct.Struct(">Ii")
_pack_head = _HEAD.pack
_unpack_head = _HEAD.unpack_from
_pack_lengths = _LENGTHS.pack
_unpack_lengths = _LENGTHS.unpack_from
_HEAD_BYTES = _HEAD.size
_VERSION_BYTE = bytes((VERSION,))
_LENGTHS_BYTES = _LENGTHS.size


class Record(NamedTuple):
    """A record as Kafka gave it. ``timestamp`` is Unix milliseconds, -1 if there is none."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def pack(
    partition: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[bytes, bytes | None]],
    topic: bytes = b"",
) -> bytes:
    """Pack a record. ``topic`` is the one that it was read from, at most 255 bytes."""
    parts = [
        _pack_head(
            VERSION,
            partition,
            timestamp,
            -1 if key is None else len(key),
            -1 if value is None else len(value),
            len(headers),
        ),
        bytes((len(topic),)),
        topic,
    ]
    for name, content in headers:
        if content is None:
            parts += (_pack_lengths(len(name), -1), name)
        else:
            parts += (_pack_lengths(len(name), len(content)), name, content)
    if key:
        parts.append(key)
    if value:
        parts.append(value)
    return b"".join(parts)


def topic_of(data: bytes) -> bytes:
    """The topic that a packed record was read from; empty if it has none."""
    if data[:1] != _VERSION_BYTE:
        return b""
    start = _HEAD_BYTES + 1
    return data[start : start + data[_HEAD_BYTES]] if len(data) > _HEAD_BYTES else b""


def head_of(head: bytes) -> tuple[bytes, int, bytes | None]:
    """Read topic, partition and key from the first bytes of a packed record. The key is None if it is null, or beyond
    these bytes. Raises ``ValueError`` if they are no record."""
    try:
        version, partition, _, key_bytes, _, count = _unpack_head(head)
        if version != VERSION:
            raise ValueError("not a Kafka record: it has another head")
        at = _HEAD_BYTES + 1 + head[_HEAD_BYTES]
        for _ in range(count):
            name_bytes, content_bytes = _unpack_lengths(head, at)
            at += _LENGTHS_BYTES + name_bytes + max(0, content_bytes)
    except (struct.error, IndexError):
        key_bytes, at = -1, 0
        if len(head) < _HEAD_BYTES:
            raise ValueError("not a Kafka record: it is cut short") from None
    reached = key_bytes >= 0 and at + key_bytes <= len(head)
    return topic_of(head), partition, head[at : at + key_bytes] if reached else None


def unpack(data: bytes, in_part: bool = False) -> Record:
    """Unpack a record. Raises ``ValueError`` for bytes that ``pack`` did not make.

    ``in_part``: bytes may be missing at its end, but not of its headers.
    """
    try:
        version, partition, timestamp, key_bytes, value_bytes, count = _unpack_head(data)
        if version != VERSION or key_bytes < -1 or value_bytes < -1:
            raise ValueError("not a Kafka record: it has another head")
        at = _HEAD_BYTES + 1 + data[_HEAD_BYTES]
        headers: list[Header] = []
        for _ in range(count):
            name_bytes, content_bytes = _unpack_lengths(data, at)
            start = at + _LENGTHS_BYTES
            at = start + name_bytes
            name = data[start:at]
            if content_bytes < 0:
                if content_bytes != -1:
                    raise ValueError("not a Kafka record: a header has no length")
                headers.append((name, None))
            else:
                start, at = at, at + content_bytes
                headers.append((name, data[start:at]))
    except (struct.error, IndexError):
        raise ValueError("not a Kafka record: it is cut short") from None
    key_end = at if key_bytes < 0 else at + key_bytes
    end = key_end if value_bytes < 0 else key_end + value_bytes
    if end != len(data) and not (in_part and at <= len(data) < end):
        raise ValueError(f"not a Kafka record: it has {len(data)} bytes instead of {end}")
    key = None if key_bytes < 0 else data[at:key_end]
    return Record(partition, timestamp, key, None if value_bytes < 0 else data[key_end:], headers)


def describe(record: Record, topic: bytes) -> Mapping[str, object]:
    """The parts of a record other than its value, for display. Bytes that are not text become base64."""
    found: dict[str, object] = {"topic": shown(topic)} if topic else {}
    found |= {"partition": record.partition, "key": shown(record.key)}
    if record.timestamp >= 0:
        found["timestamp"] = write_moment(record.timestamp)
    if record.value is None:
        found["value"] = None
    found["headers"] = [{"name": shown(name), "value": shown(value)} for name, value in record.headers]
    return found


def shown(raw: bytes | None) -> object:
    """Return bytes as text, or where they are none as base64."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode()}
