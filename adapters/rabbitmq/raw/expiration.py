"""A producer's own ``expiration``, kept aside while its message waits in a level queue.

The shorter of expiration and queue TTL wins: a message with an expiration of its own would leave a level early. So
postdate keeps it in a header and restores it at delivery. Where RabbitMQ alone brings a message to its level, it takes
the expiration off and records it in x-death, an array of tables with the newest first.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from adapters.rabbitmq.raw.fields import ARRAY, TABLE, TEXT, walk, walk_array
from adapters.rabbitmq.raw.properties import FLAG, locate

#: Keeps the expiration meanwhile, as text.
EXPIRATION_HEADER = b"x-delay-expiration"
#: Ten years of 365 days: the longest that RabbitMQ accepts (tried on 3.10.8, as the next).
_LONGEST_MS = 315_360_000_000
#: Sign and leading zeros are allowed, blanks are not. An AMQP short text has at most 255 bytes.
_INTEGER = re.compile(rb"[+-]?\d{1,254}")


def is_expiration(text: bytes) -> bool:
    """Return whether RabbitMQ accepts this as an expiration. Over another text it closes the channel."""
    return _INTEGER.fullmatch(text) is not None and 0 <= int(text) <= _LONGEST_MS


def expiration_of(props: bytes) -> bytes | None:
    """Return the expiration, milliseconds as text; None where it is absent. Raises UnreadableTable."""
    shape, starts = locate(props)
    if "expiration" not in shape.names:
        return None
    place = shape.names.index("expiration")
    return props[starts[place] + 1 : starts[place + 1]]


def without_expiration(props: bytes) -> bytes:
    """Return ``props`` without the expiration. Raises UnreadableTable."""
    shape, starts = locate(props)
    if "expiration" not in shape.names:
        return props
    place = shape.names.index("expiration")
    flags = shape.flags & ~FLAG["expiration"]
    return flags.to_bytes(2, "big") + props[2 : starts[place]] + props[starts[place + 1] :]


def put_aside(props: bytes) -> bytes | None:
    """Return the expiration in ``EXPIRATION_HEADER``. Raises UnreadableTable.

    None where the header is absent, or holds a text of a producer's that RabbitMQ would refuse.
    """
    shape, starts = locate(props)
    if shape.headers < 0:
        return None
    for name, tag, value, end, _ in walk(props, starts[shape.headers] + 4, starts[shape.headers + 1]):
        if name == EXPIRATION_HEADER and tag == TEXT and is_expiration(text := props[value + 4 : end]):
            return text
    return None


def with_expiration(props: bytes, text: bytes) -> bytes:
    """Return ``props``, which have no expiration, with this one (at most 255 bytes). Raises UnreadableTable."""
    shape, starts = locate(props)
    before = sum(FLAG[name] > FLAG["expiration"] for name in shape.names)
    flags = shape.flags | FLAG["expiration"]
    at = starts[before]
    return b"".join((flags.to_bytes(2, "big"), props[2:at], bytes((len(text),)), text, props[at:]))


_X_DEATH = b"x-death"
_ORIGINAL = b"original-expiration"
#: The bytes of the name: a message without it, as nearly all are, costs one search.
_ORIGINAL_ENTRY = bytes((len(_ORIGINAL),)) + _ORIGINAL


class TakenExpiration(NamedTuple):
    """An expiration that RabbitMQ took off a message, and the queue in which the message expired."""

    queue: bytes
    expiration: bytes


def taken_last(props: bytes) -> TakenExpiration | None:
    """Return what RabbitMQ took off in the queue that a message left last. Raises UnreadableTable.

    None where it took nothing off, or the record is not one of RabbitMQ's. Ignores older records, and the same names
    elsewhere in the message.
    """
    if _ORIGINAL_ENTRY not in props:
        return None
    newest = _newest_death(props)
    expiration = newest.get(_ORIGINAL, b"")
    if newest.get(b"reason") != b"expired" or not is_expiration(expiration):
        return None
    return TakenExpiration(newest.get(b"queue", b""), expiration)


def _newest_death(props: bytes) -> dict[bytes, bytes]:
    """Return the texts in the first table of x-death."""
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
