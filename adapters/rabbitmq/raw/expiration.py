"""A producer's own ``expiration``, put aside while its message waits in a queue.

In a queue whose messages expire, the shorter time wins: a message with an expiration of its own would leave a level
before its time, and early. So it travels as a header and is put back on the last hop.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from adapters.rabbitmq.raw.fields import ARRAY, TABLE, TEXT, walk, walk_array
from adapters.rabbitmq.raw.properties import FLAG, locate

#: Where it is kept meanwhile, as text.
EXPIRATION_HEADER = b"x-delay-expiration"
#: Ten years of 365 days, the longest that RabbitMQ takes (tried on 3.10.8, as the next).
_LONGEST_MS = 315_360_000_000
#: A sign and leading zeros may be there, blanks may not. An AMQP short text has 255 bytes.
_INTEGER = re.compile(rb"[+-]?\d{1,254}")


def is_expiration(text: bytes) -> bool:
    """Whether RabbitMQ takes this for the expiration of a message; over another it closes the channel."""
    return _INTEGER.fullmatch(text) is not None and 0 <= int(text) <= _LONGEST_MS


def expiration_of(props: bytes) -> bytes | None:
    """The expiration, milliseconds as text; None where there is none. Raises UnreadableTable."""
    shape, starts = locate(props)
    if "expiration" not in shape.names:
        return None
    place = shape.names.index("expiration")
    return props[starts[place] + 1 : starts[place + 1]]


def without_expiration(props: bytes) -> bytes:
    """``props`` without it. Raises UnreadableTable."""
    shape, starts = locate(props)
    if "expiration" not in shape.names:
        return props
    place = shape.names.index("expiration")
    flags = shape.flags & ~FLAG["expiration"]
    return flags.to_bytes(2, "big") + props[2 : starts[place]] + props[starts[place + 1] :]


def put_aside(props: bytes) -> bytes | None:
    """The expiration that the header keeps; None where it keeps none, or a text that a producer wrote into it and
    RabbitMQ would refuse. Raises UnreadableTable."""
    shape, starts = locate(props)
    if shape.headers < 0:
        return None
    for name, tag, value, end, _ in walk(props, starts[shape.headers] + 4, starts[shape.headers + 1]):
        if name == EXPIRATION_HEADER and tag == TEXT and is_expiration(text := props[value + 4 : end]):
            return text
    return None


def with_expiration(props: bytes, text: bytes) -> bytes:
    """``props``, which have none, with this expiration (at most 255 bytes). Raises UnreadableTable."""
    shape, starts = locate(props)
    before = sum(FLAG[name] > FLAG["expiration"] for name in shape.names)
    flags = shape.flags | FLAG["expiration"]
    at = starts[before]
    return b"".join((flags.to_bytes(2, "big"), props[2:at], bytes((len(text),)), text, props[at:]))


_X_DEATH = b"x-death"
_ORIGINAL = b"original-expiration"
#: How the note stands in the bytes: a message without it, as nearly all are, costs one search.
_NOTE = bytes((len(_ORIGINAL),)) + _ORIGINAL


class Taken(NamedTuple):
    """An expiration that RabbitMQ has taken off a message, and the queue that the message expired in."""

    queue: bytes
    expiration: bytes


def taken_last(props: bytes) -> Taken | None:
    """What RabbitMQ has taken off in the queue that a message left last; None where it has taken nothing off, and where
    the note is none that RabbitMQ writes. Raises UnreadableTable."""
    if _NOTE not in props:
        return None
    noted = _newest(props)
    expiration = noted.get(_ORIGINAL, b"")
    if noted.get(b"reason") != b"expired" or not is_expiration(expiration):
        return None
    return Taken(noted.get(b"queue", b""), expiration)


def _newest(props: bytes) -> dict[bytes, bytes]:
    """The texts in the first table of x-death."""
    shape, starts = locate(props)
    if shape.headers < 0:
        return {}
    for name, tag, value, end, _ in walk(props, starts[shape.headers] + 4, starts[shape.headers + 1]):
        if name == _X_DEATH:
            first = next(walk_array(props, value + 4, end), None) if tag == ARRAY else None
            return _texts(props, first[1] + 4, first[2]) if first is not None and first[0] == TABLE else {}
    return {}


def _texts(props: bytes, start: int, end: int) -> dict[bytes, bytes]:
    return {name: props[value + 4 : stop] for name, tag, value, stop, _ in walk(props, start, end) if tag == TEXT}
