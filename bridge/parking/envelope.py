"""The envelope: what the store keeps of a message, as bytes.

::

    version u8 | due_ms u64 | tries u16 | arrived_ms u64 | route u8+text | key u8+text | first u8+text | payload

All integers big-endian. ``adapters/redis/lua/include/envelope.lua`` reads and rewrites the head, so a change here is a
change there and a new version. ``first`` is the id of the first copy when this is a redelivered one, else empty. A
newer version is refused by name and its bytes are left alone: a newer instance wrote it and can deliver it. It is
claimed like any other, so that it blocks nobody, and comes back when that lease ends; for this version and due_ms stand
in the same place in every version. A damaged envelope, which no instance can deliver, becomes a dead letter.
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
#: Versions beyond this are taken for damage: no upgrade skips so many.
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


class UnopenedEnvelope(PostdateError):
    """An envelope that this code cannot read. The message is one sentence, and begins with a word for its kind."""


class NewerEnvelope(UnopenedEnvelope):
    """The envelope was written by a newer version of postdate."""


class DamagedEnvelope(UnopenedEnvelope):
    """No version of postdate can have written the envelope."""


def seal(due_ms: int, arrived_ms: int, route: bytes, key: bytes, first: bytes, payload: bytes) -> bytes:
    """One new message as bytes. ``route``, ``key`` and ``first`` are at most 255 bytes each."""
    return b"".join(
        (
            _pack_head(VERSION, due_ms, 0, arrived_ms),
            bytes((len(route),)),
            route,
            bytes((len(key),)),
            key,
            bytes((len(first),)),
            first,
            payload,
        )
    )


def found_key(message_id: bytes) -> bytes:
    """A message id as a key that finds a message and never replaces one.

    The NUL in front keeps it apart from a key of the producer's own, which cannot begin with one (``delay.header``):
    or a new ``x-delay-key`` would replace messages that only have the same word for a ``message_id``. Empty where it
    has no room for the NUL: a message of which the id has 255 bytes is not found by it.
    """
    return b"\0" + message_id if len(message_id) < 255 else b""


def plain_key(key: bytes) -> bytes:
    """A key as the producer wrote it."""
    return key[1:] if key[:1] == b"\0" else key


def index_fields(route: bytes, key: bytes) -> tuple[bytes, ...]:
    """All fields under which a message may be found by ``key``: as its own key, which begins with no NUL, and as its
    message id."""
    fields = [] if key[:1] == b"\0" else [index_field(route, key)]
    if found := found_key(key):
        fields.append(index_field(route, found))
    return tuple(fields)


def index_field(route: bytes, key: bytes) -> bytes:
    """The field of the key index under which a message with this key is found."""
    return route + b"\0" + key


def unseal(data: bytes) -> Envelope:
    """Raise ``NewerEnvelope`` or ``DamagedEnvelope`` for an envelope this code cannot read."""
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
    return Envelope(due_ms, tries, arrived_ms, route, key, data[at + 1 : end], data[end:])
