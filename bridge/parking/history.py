"""An entry of the history: what became of a message, as bytes. Pure.

::

    state u8 | tries u16 | size u32 | received, due, claimed, published, ended u64 each (Unix ms, 0: unknown)
    | id 20 | route u8+text | key u8+text | reason u8+text

All integers are big-endian. A message that was delivered after a hold by a pause or ``max_rate`` has state ``HELD``,
and, in place of a reason, the moment at which the hold ended (u64, Unix ms).

The entries of a shard are written in pieces of up to ``PIECE_MAX``, one after the other.
``adapters/redis/lua/include/history.lua`` writes the same layout, so a change here is a change there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bridge.parking.envelope import plain_key
from bridge.parking.identity import ID_BYTES

#: Entries of one piece. A larger one saves memory and calls, a smaller one is read faster.
PIECE_MAX = 64

_HEAD = struct.Struct(f">BHI5Q{ID_BYTES}s")
_TEXT_MAX = 255


class PastState(StrEnum):
    """What became of a message."""

    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    REPLACED = "replaced"
    DEAD = "dead"


#: The number of a state in an entry is its place here.
STATES = tuple(PastState)
DELIVERED = STATES.index(PastState.DELIVERED)
#: Delivered, too, after a hold.
HELD = len(STATES)
_LET_GO = struct.Struct(">Q")


class HistoryLimits(NamedTuple):
    """How long entries are kept (ms), and how many in all shards of a store. ``most`` 0: no history is written."""

    keep_ms: int = 0
    most: int = 0


NO_HISTORY = HistoryLimits()


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """An entry as a person sees it. Moments are Unix milliseconds by the store's clock, None where unknown.

    Exact to the message: ``received_ms``, ``due_ms``, and the end of what was not delivered. One for a batch:
    ``claimed_ms`` (the store's clock in the claim), ``published_ms`` (the publisher's pass), and the end of a delivery
    (when its confirm was read). When it was parked is not known: some milliseconds after it was received.

    ``let_go_ms``: when a pause or ``max_rate`` let go of a message that it held; None where neither did.
    ``ended_ms``: when the broker confirmed it, or when it was cancelled, replaced or became a dead letter. ``size`` is
    that of the payload. ``key`` is the producer's key or message id. ``broker`` is that of the store.
    """

    id: bytes
    route: str
    key: bytes
    state: PastState
    received_ms: int
    due_ms: int
    claimed_ms: int | None
    published_ms: int | None
    ended_ms: int
    tries: int
    size: int
    reason: str
    broker: str = ""
    let_go_ms: int | None = None

    @property
    def late_ms(self) -> int | None:
        """Return the lateness of a delivered message."""
        return self.ended_ms - max(self.due_ms, self.let_go_ms or 0) if self.state is PastState.DELIVERED else None


def text_field(text: bytes) -> bytes:
    """Return a text as a field: its length in one byte, and at most 255 bytes."""
    return bytes((min(len(text), _TEXT_MAX),)) + text[:_TEXT_MAX]


def pack_let_go(let_go_ms: int) -> bytes:
    """Return the field of a ``HELD`` message that has the end of its hold."""
    return text_field(_LET_GO.pack(let_go_ms))


#: For the historian, which packs thousands of deliveries a second: what comes before the texts, in order.
pack_head = _HEAD.pack


def unpack_entries(piece: bytes, broker: str = "") -> Iterator[HistoryRow]:
    """Yield the entries of a piece, in the order in which they were written. Stops at what is damaged."""
    at, end = 0, len(piece)
    while at + _HEAD.size < end:
        number, tries, size, received_ms, due_ms, claimed_ms, published_ms, ended_ms, message_id = _HEAD.unpack_from(
            piece, at
        )
        at += _HEAD.size
        texts = []
        for _ in range(3):
            stop = at + 1 + (piece[at] if at < end else 0)
            texts.append(piece[at + 1 : stop])
            at = stop
        if number > HELD or at > end or (number == HELD and len(texts[2]) != _LET_GO.size):
            return
        route, key, reason = texts
        let_go_ms = None
        if number == HELD:
            (let_go_ms,), number, reason = _LET_GO.unpack(reason), DELIVERED, b""
        yield HistoryRow(
            message_id,
            route.decode("utf-8", "replace"),
            plain_key(key),
            STATES[number],
            received_ms,
            due_ms,
            claimed_ms or None,
            published_ms or None,
            ended_ms,
            tries,
            size,
            reason.decode("utf-8", "replace"),
            broker,
            let_go_ms,
        )
