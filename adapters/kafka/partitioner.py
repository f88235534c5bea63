"""Chooses the partition of the target topic, as the producer's own client would.

``murmur2`` is the choice of the Java client and of everything built on it. ``crc32`` is librdkafka's ``consistent``.
``same`` keeps the number of the intake partition, for topics with equally many partitions. Records without a key are
spread; those that leave in one batch share a partition, as with the clients.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from zlib import crc32

from bridge.settings import Partitioner

#: Cached keys, over all topics. The hash in Python takes a microsecond for every eight bytes.
_KEYS_MAX = 10_000
_SEED = 0x9747B28C
_M = 0x5BD1E995
_U32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Murmur2 as Kafka's Java client computes it (``org.apache.kafka.common.utils.Utils``), unsigned."""
    length = len(data)
    words = length >> 2
    hashed = _SEED ^ length
    for word in struct.unpack_from(f"<{words}I", data):
        word = word * _M & _U32
        hashed = (hashed * _M & _U32) ^ ((word ^ word >> 24) * _M & _U32)
    rest = data[words << 2 :]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _M & _U32
    hashed = (hashed ^ hashed >> 13) * _M & _U32
    return hashed ^ hashed >> 15


def _by_murmur2(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def _by_crc32(key: bytes, partitions: int) -> int:
    return crc32(key) % partitions


class PartitionChoice:
    """Chooses partitions, and caches the choice for recent keys."""

    def __init__(self, partitioner: Partitioner) -> None:
        self._same = partitioner == "same"
        self._of_key: Callable[[bytes, int], int] = _by_crc32 if partitioner == "crc32" else _by_murmur2
        self._known: dict[tuple[int, bytes], int] = {}
        self._turn = 0

    def next_batch(self) -> None:
        """Move to the next partition for records without a key."""
        self._turn += 1

    def partition(self, key: bytes | None, source: int, partitions: int) -> int:
        """The partition, of ``partitions``, for a record that came from partition ``source``.

        A number that the topic does not have is not kept. Then the key decides, as with ``murmur2``.
        """
        if self._same and 0 <= source < partitions:
            return source
        if key is None:
            return self._turn % partitions
        known = self._known.get((partitions, key))
        if known is None:
            known = self._of_key(key, partitions)
            if len(self._known) >= _KEYS_MAX:
                self._known.clear()
            self._known[partitions, key] = known
        return known
