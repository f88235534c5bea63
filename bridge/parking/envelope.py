"""The envelope: what the store keeps of a message, as bytes.

::

    version u8 | due_ms u64 | tries u16 | arrived_ms u64 | route u8+text | key u8+text | first u8+text | payload

All integers are big-endian. The lower ten bits of ``tries`` count failed tries. On a route with several destinations,
each of the upper six stands for one that has confirmed the message: a later try goes to the others only. ``first`` is
the id of the first copy of a redelivered message, else empty. ``adapters/redis/lua/include/envelope.lua`` reads and
rewrites the head, so a change here is a change there, and a new version.

An envelope of a newer version is left untouched: a newer instance wrote it and can deliver it. It is claimed like any
other, so that it blocks nothing, and parked again when that lease expires. That is why version and due_ms have the same
place in every version. A damaged envelope, which no instance can deliver, becomes a dead letter.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from bridge.core.errors import PostdateError

VERSION = 1
_HEAD = struct.Struct(">BQHQ")
_pack_head = _HEAD.pack
_unpack_head = _HEAD.unpack_from
_HEAD_BYTES = _HEAD.size
_DAMAGED = "damaged: the stored bytes are not an envelope, so route and body are unknown"
_TRIES_BITS = 10
#: The most failed tries that an envelope counts.
TRIES_MAX = (1 << _TRIES_BITS) - 1
#: A version above this counts as damage: no upgrade skips that many.
_NEWEST = VERSION + 15


class Envelope(NamedTuple):
    """An opened envelope. Times are Unix milliseconds by the store's clock."""

    due_ms: int
    tries: int
    arrived_ms: int
    route: str
    key: bytes
    first: bytes
    payload: bytes
    reached: int = 0


class UnopenedEnvelope(PostdateError):
    """An envelope that this code cannot read. The text begins with a word for the kind."""


class NewerEnvelope(UnopenedEnvelope):
    """The envelope was written by a newer version of postdate."""


class DamagedEnvelope(UnopenedEnvelope):
    """No version of postdate can have written the envelope."""


def seal(due_ms: int, arrived_ms: int, route: bytes, key: bytes, first: bytes, payload: bytes, tries: int = 0) -> bytes:
    """Return a new message as bytes. ``route``, ``key`` and ``first`` have at most 255 bytes each."""
    return b"".join(
        (
            _pack_head(VERSION, due_ms, min(tries, TRIES_MAX), arrived_ms),
            bytes((len(route),)),
            route,
            bytes((len(key),)),
            key,
            bytes((len(first),)),
            first,
            payload,
        )
    )


def with_first(data: bytes, envelope: Envelope, message_id: bytes) -> bytes:
    """Return the bytes ``data`` of an envelope that has no first id yet with this one. Pure."""
    at = len(data) - len(envelope.payload)
    return data if envelope.first else data[: at - 1] + bytes((len(message_id),)) + message_id + data[at:]


def as_loaded(message_id: bytes, data: bytes) -> bytes:
    """Return an envelope with its own id as that of the first copy: the mark of a message that was cold. Pure."""
    try:
        return with_first(data, unseal(data), message_id)
    except UnopenedEnvelope:
        return data


def tries_and_reached(tries: int, reached: int) -> int:
    """Return the number that the envelope keeps of both. ``reached``: a bit for each destination that confirmed."""
    return min(tries, TRIES_MAX) | reached << _TRIES_BITS


def found_key(message_id: bytes) -> bytes:
    """Return a message id as a key that finds a message and never replaces one.

    The NUL in front distinguishes it from a producer's own key, which cannot begin with one (``delay.header``).
    Otherwise an ``x-delay-key`` would replace messages that have the same text as their ``message_id``. Empty for an id
    of 255 bytes, which has no room for the NUL: such a message is not found by its id.
    """
    return b"\0" + message_id if len(message_id) < 255 else b""


def plain_key(key: bytes) -> bytes:
    return key[1:] if key[:1] == b"\0" else key


def index_fields(route: bytes, key: bytes) -> tuple[bytes, ...]:
    """Return all fields under which ``key`` may find a message: as its own key, and as its message id."""
    fields = [] if key[:1] == b"\0" else [index_field(route, key)]
    if found := found_key(key):
        fields.append(index_field(route, found))
    return tuple(fields)


def index_field(route: bytes, key: bytes) -> bytes:
    """Return the field of the key index for messages with this key."""
    return route + b"\0" + key


def due_in(data: bytes) -> int:
    """Return the due moment, which every version writes to the same place; 0 for a damaged envelope."""
    return int.from_bytes(data[1:9], "big") if len(data) > 9 else 0


def with_due(data: bytes, due_ms: int) -> bytes:
    """Return an envelope of any version with another due moment."""
    return data[:1] + due_ms.to_bytes(8, "big") + data[9:]


def route_in(data: bytes) -> bytes:
    """Return the route of an envelope, b"" for one of another version or without a route. It reads nothing else."""
    if len(data) <= _HEAD_BYTES or data[0] != VERSION:
        return b""
    end = _HEAD_BYTES + 1 + data[_HEAD_BYTES]
    return data[_HEAD_BYTES + 1 : end] if end <= len(data) else b""


def unseal(data: bytes) -> Envelope:
    """Open an envelope. Raises ``NewerEnvelope`` or ``DamagedEnvelope`` for one that this code cannot read."""
    if len(data) > 9 and VERSION < data[0] <= _NEWEST:
        raise NewerEnvelope(f"newer: it has envelope version {data[0]}, and this postdate reads {VERSION}")
    if not data or data[0] != VERSION:
        raise DamagedEnvelope(_DAMAGED)
    try:
        _, due_ms, tries, arrived_ms = _unpack_head(data)
        at = _HEAD_BYTES
        end = at + 1 + data[at]
        route = data[at + 1 : end].decode()
        at, end = end, end + 1 + data[end]
        key = data[at + 1 : end]
        at, end = end, end + 1 + data[end]
    except (IndexError, struct.error, UnicodeDecodeError):
        raise DamagedEnvelope(_DAMAGED) from None
    if end > len(data):
        raise DamagedEnvelope(_DAMAGED)
    reached = tries >> _TRIES_BITS
    return Envelope(due_ms, tries & TRIES_MAX, arrived_ms, route, key, data[at + 1 : end], data[end:], reached)


def contents(data: bytes) -> Envelope:
    """Open an envelope. One that this code cannot read has all its bytes as payload, and nothing else."""
    try:
        return unseal(data)
    except UnopenedEnvelope:
        return Envelope(0, 0, 0, "", b"", b"", data)
