"""Shards: which one a message belongs to, and which instance drains which.

A shard is the unit of order and of scaling: one instance at a time drains it. All functions are pure. ``process.deal``
deals the shards by load. ``share`` is the rule of older versions, which all instances follow while one of those runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32


def shard_for(order_key: bytes, shards: int) -> int:
    """The shard of an order key. CRC-32 because it must be the same in every process and every version."""
    return crc32(order_key) % shards


def shard_of_record(log: bytes, offset: int, shards: int) -> int:
    """The shard of a record whose order does not matter. A record that is read again has the same shard."""
    return (crc32(log) + offset) % shards


def share(instances: Sequence[str], me: str, shards: int) -> frozenset[int]:
    """The shards that ``me`` should drain: dealt out in turn to the instances in alphabetical order.

    No instance has more than one shard more than another. A ring of hashes would move fewer shards when an instance
    comes or goes, but would deal eight shards unevenly, and a move costs milliseconds.
    """
    if me not in instances:
        return frozenset()
    place = sorted(instances).index(me)
    return frozenset(range(place, shards, len(instances)))
