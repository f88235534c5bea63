"""A fetch of all partitions of one leader, spelled out in bytes.

aiokafka's own codec takes a third of a millisecond for twelve partitions, and a meter that asks for every record as
soon as it is there asks thousands of times a second. Layout: the Kafka protocol guide, "Fetch API", version 4, which
brokers from 0.11 to 4.x know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from struct import Struct
from typing import NamedTuple, Self

from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Schema

_REPLICA, _BYTES_MAX, _PARTITION_BYTES_MAX, _READ_COMMITTED = -1, 16 << 20, 1 << 20, 1
#: replica, longest wait in ms, fewest bytes, most bytes, isolation, number of topics, length of the topic's name
_HEAD = Struct(">iiiibih")
_COUNT = Struct(">i")
#: partition, offset, most bytes
_WANTED = Struct(">iqi")
#: throttle, number of topics, length of the topic's name
_ANSWER_HEAD = Struct(">iih")
#: partition, error, high watermark, last stable offset, number of aborted transactions
_ANSWER = Struct(">ihqqi")
_ABORTED_BYTES = 16


class Fetched(NamedTuple):
    """The batches that came of a partition, as bytes."""

    partition: int
    batches: bytes


class _Answer(Response):
    API_KEY = 1
    API_VERSION = 4
    SCHEMA = Schema()

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def decode(cls, data: BytesIO | bytes) -> Self:
        return cls(data if isinstance(data, bytes) else data.read())


class _FetchStruct(RequestStruct):
    API_KEY = 1
    API_VERSION = 4
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema()

    def __init__(self, data: bytes) -> None:
        self.data = data

    def encode(self) -> bytes:
        return self.data


class Fetch(Request[_FetchStruct]):
    """Asks for what stands at these offsets; the answer waits up to ``wait_ms`` for the first byte."""

    API_KEY = 1

    def __init__(self, topic: bytes, offsets: Mapping[int, int], wait_ms: int) -> None:
        head = _HEAD.pack(_REPLICA, wait_ms, 1, _BYTES_MAX, _READ_COMMITTED, 1, len(topic))
        wanted = [_WANTED.pack(number, offset, _PARTITION_BYTES_MAX) for number, offset in offsets.items()]
        self._data = b"".join((head, topic, _COUNT.pack(len(wanted)), *wanted))

    def build(self, request_struct_class: type[_FetchStruct]) -> _FetchStruct:
        return request_struct_class(self._data)


def fetched(answer: _Answer) -> Iterator[Fetched]:
    """The partitions of which something came. Raises ``KafkaError`` for one that cannot be read."""
    data = answer.data
    _, topics, name = _ANSWER_HEAD.unpack_from(data)
    if not topics:
        return
    at = _ANSWER_HEAD.size + name
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    for _ in range(count):
        partition, error, _, _, aborted = _ANSWER.unpack_from(data, at)
        if error:
            raise for_code(error)
        at += _ANSWER.size + max(0, aborted) * _ABORTED_BYTES
        (length,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        if length > 0:
            yield Fetched(partition, data[at : at + length])
            at += length
