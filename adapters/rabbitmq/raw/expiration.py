"""A producer's own ``expiration``, kept aside while its message waits in a level queue.

The shorter of expiration and queue TTL wins: a message with an expiration of its own would leave a level early. So
postdate keeps it in a header and restores it at delivery. Where RabbitMQ alone brings a message to its level, it takes
the expiration off and records it in x-death, an array of tables with the newest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from adapters.rabbitmq.raw.fields import ARRAY, TABLE, TEXT, Field, walk, walk_array
from adapters.rabbitmq.raw.properties import FLAG, header_field, locate

#: Keeps the expiration meanwhile, as text.
EXPIRATION_HEADER = b"x-delay-expiration"
#: Ten years of 365 days: the longest that RabbitMQ accepts (tried on 3.10.8, as the next).
_LONGEST_MS = 315_360_000_000
#: How many deaths are read, and entries of each. RabbitMQ writes a death for each queue and reason, with nine entries.
_DEATHS_MAX, _DEATH_ENTRIES_MAX = 16, 16
_ROUTING_KEY_MAX = 255
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
    field = header_field(props, EXPIRATION_HEADER)
    text = props[field[2] + 4 : field[3]] if field is not None and field[1] == TEXT else b""
    return text if is_expiration(text) else None


def with_expiration(props: bytes, text: bytes) -> bytes:
    """Return ``props``, which have no expiration, with this one (at most 255 bytes). Raises UnreadableTable."""
    shape, starts = locate(props)
    before = sum(FLAG[name] > FLAG["expiration"] for name in shape.names)
    flags = shape.flags | FLAG["expiration"]
    at = starts[before]
    return b"".join((flags.to_bytes(2, "big"), props[2:at], bytes((len(text),)), text, props[at:]))


X_DEATH = b"x-death"
_ORIGINAL = b"original-expiration"
#: The bytes of the name: a message without it, as nearly all are, costs one search.
_ORIGINAL_ENTRY = bytes((len(_ORIGINAL),)) + _ORIGINAL


def taken_last(props: bytes) -> tuple[bytes, bytes] | None:
    """Return the queue that a message left last, and the expiration that RabbitMQ took off it there. Raises
    UnreadableTable.

    None where it took nothing off, or the record is not one of RabbitMQ's. Ignores older records, and the same names
    elsewhere in the message.
    """
    if _ORIGINAL_ENTRY not in props:
        return None
    newest = next(deaths(props, header_field(props, X_DEATH)), Death({}, None)).texts
    expiration = newest.get(_ORIGINAL, b"")
    if newest.get(b"reason") != b"expired" or not is_expiration(expiration):
        return None
    return newest.get(b"queue", b""), expiration


class Death(NamedTuple):
    """The texts of a table in x-death, and the first of its routing keys."""

    texts: Mapping[bytes, bytes]
    routing_key: bytes | None


def deaths(props: bytes, field: Field | None) -> Iterator[Death]:
    """Yield the tables of this x-death, the newest first. Raises UnreadableTable."""
    if field is not None and field[1] == ARRAY:
        newest = islice(walk_array(props, field[2] + 4, field[3]), _DEATHS_MAX)
        yield from (_death(props, start + 4, stop) for kind, start, stop in newest if kind == TABLE)


def _death(props: bytes, start: int, end: int) -> Death:
    texts: dict[bytes, bytes] = {}
    routing_key = None
    for name, tag, value, stop, _ in islice(walk(props, start, end), _DEATH_ENTRIES_MAX):
        if tag == TEXT:
            texts[name] = props[value + 4 : stop]
        elif name == b"routing-keys" and tag == ARRAY:
            first = next(walk_array(props, value + 4, stop), None)
            if first is not None and first[0] == TEXT and first[2] - first[1] - 4 <= _ROUTING_KEY_MAX:
                routing_key = props[first[1] + 4 : first[2]]
    return Death(texts, routing_key)
