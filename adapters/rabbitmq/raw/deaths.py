"""What RabbitMQ itself has noted in x-death of the queue that a message left last.

x-death is an array of tables, the newest first. What a producer writes elsewhere under the names that stand in it, and
what is noted there of an earlier life, is not looked at.
"""

from __future__ import annotations

from typing import NamedTuple

from adapters.rabbitmq.raw.expiration import is_expiration
from adapters.rabbitmq.raw.fields import ARRAY, TABLE, TEXT, walk, walk_array
from adapters.rabbitmq.raw.layout import locate

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
