"""Ids and shards. The id of a parked message has 20 characters that sort in the order of arrival.

::

    rank, 4 bits | milliseconds, 42 | counter, 14 | instance, 30 | shard, 10        in base 32, digits before letters

The rank is 0, except on routes with priority: there a lower rank, of a higher priority, sorts first. The store orders
equal due moments by the bytes of the id. So messages with the same due moment leave in the order they
came. A number from the store (INCR) was rejected: the park script would have to draw it, and a repeated script would
draw another. An id that the caller chose makes parking repeatable.
Twenty characters are what a 24-byte string in Redis holds (32 on Debian), and every message pays for two of them.

A shard is the unit of order and of scaling: one instance at a time drains it (``bridge.process.deal``).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from zlib import crc32

ID_BYTES = 20
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_DIGIT_BYTES = _DIGITS.encode()
#: Ids of one instance in one millisecond. After that it uses the next millisecond.
_COUNTS = 2**14
#: The lowest bit of the milliseconds stands in the character of the counter.
_MS_BITS = 41
#: Priorities from this one on are equal.
PRIORITY_MAX = 15


def _text(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        digits.append(_DIGITS[number & 31])
        number >>= 5
    return "".join(reversed(digits))


_COUNTERS = [_text(n, 3).encode() for n in range(2 * _COUNTS)]
SHARD_TEXTS = [_text(n, 2).encode() for n in range(1024)]
_SHARDS = {shard: n for n, shard in enumerate(SHARD_TEXTS)}


def new_instance() -> str:
    """Return a name for this process: six characters of base 32, 30 random bits."""
    return _text(secrets.randbits(30), 6)


def shard_of(message_id: bytes) -> int:
    """Return the shard of an id. Raises ``ValueError`` for bytes that are not an id."""
    if len(message_id) != ID_BYTES:
        raise ValueError("not a message id: it has 20 characters")
    if message_id.translate(None, _DIGIT_BYTES):
        raise ValueError("not a message id: it has digits and the letters a to v")
    return _SHARDS[message_id[18:]]


def ids_by_shard(ids: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Return these ids by their shard, in their order. Raises as ``shard_of``."""
    found: dict[int, list[bytes]] = {}
    for message_id in ids:
        found.setdefault(shard_of(message_id), []).append(message_id)
    return found


def arrived_ms_of(message_id: bytes) -> int:
    """Return the moment in an id: that of the arrival (Unix ms), or a little later. Pure."""
    upper = int(message_id[:9], 32) & ((1 << _MS_BITS) - 1)
    return upper << 1 | int(message_id[9:12], 32) // _COUNTS


def arrival_of(message_id: bytes) -> tuple[int, bytes]:
    """Return what sorts ids of all ranks in the order of arrival. Pure."""
    return arrived_ms_of(message_id), message_id[9:]


def ids_of_rank(rank: int) -> tuple[bytes, bytes]:
    """Return the start of the ids of a rank, and what is greater than each of them. Pure."""
    return _DIGITS[2 * rank].encode(), _DIGITS[2 * rank + 1].encode() + b"~"


def rank_of(priority: int | None) -> int:
    """Return the rank of a priority, which sorts the highest one first; 0 on a route without priorities. Pure."""
    return 0 if priority is None else PRIORITY_MAX - max(0, min(priority, PRIORITY_MAX))


def id_within(message_id: bytes, shards: int) -> bytes:
    """Return an id for a store with this number of shards: the same one, or one of the shard modulo that number. Pure.

    All messages of a shard come to one shard, so their order stays. No other message has the new id: its counter and
    its instance tell it apart.
    """
    shard = shard_of(message_id)
    return message_id if shard < shards else message_id[:18] + SHARD_TEXTS[shard % shards]


def id_of_record(log: bytes, offset: int, at_ms: int, shard: int, rank: int = 0) -> bytes:
    """Return the id of a record that is read once more from its log: the same one each time, by its timestamp. Pure."""
    head = _text(rank << _MS_BITS | at_ms >> 1, 9) + _text((at_ms & 1) * _COUNTS + offset % _COUNTS, 3)
    return (head + _text(crc32(b"%b/%d" % (log, offset)) >> 2, 6)).encode() + SHARD_TEXTS[shard]


class Ids:
    """Makes the ids of one instance. They rise even when the clock steps back."""

    def __init__(self, instance: str) -> None:
        self._instance = instance.encode()
        self._tails = [self._instance + text for text in SHARD_TEXTS]
        self._ms = -1
        self._count = 0
        self._odd = 0
        self._heads: dict[int, bytes] = {}

    def next(self, now_ms: int, shard: int, rank: int = 0) -> bytes:
        """Return the next id. ``now_ms`` is the store's clock; a moment before the last one counts as the last one.

        ``rank``, 0 to 15, sorts before the moment.
        """
        if now_ms > self._ms:
            self._start(now_ms)
        elif self._count == _COUNTS:
            self._start(self._ms + 1)
        count = self._count
        self._count = count + 1
        head = self._heads.get(rank)
        if head is None:
            head = self._heads[rank] = _text(rank << _MS_BITS | self._ms >> 1, 9).encode()
        return head + _COUNTERS[self._odd + count] + self._tails[shard]

    def _start(self, ms: int) -> None:
        self._ms = ms
        self._count = 0
        self._odd = (ms & 1) * _COUNTS
        self._heads.clear()


def shard_for(order_key: bytes, shards: int) -> int:
    """Return the shard of an order key. CRC-32 gives the same answer in every process and every version. Pure."""
    return crc32(order_key) % shards


def shard_of_record(log: bytes, offset: int, shards: int) -> int:
    """Return the shard of a record whose order does not matter. A record that is read again has the same one. Pure."""
    return (crc32(log) + offset) % shards
