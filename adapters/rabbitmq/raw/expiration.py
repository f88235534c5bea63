"""A producer's own ``expiration``, put aside while its message waits in a queue.

In a queue whose messages expire, the shorter time wins: a message with an expiration of its own would leave a level
before its time, and early. So it travels as a header and is put back on the last hop.
"""

from __future__ import annotations

import re

from adapters.rabbitmq.raw.fields import TEXT, walk
from adapters.rabbitmq.raw.layout import FLAG, locate

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
