"""Where each basic property lies in the bytes of a content header.

A content header's property part is a 2-byte word of flags and then the properties that are present, without gaps, in
the order of their flags from the highest bit down (AMQP 0-9-1, section 4.2.6.1; the list is that of its class basic).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from adapters.rabbitmq.raw.fields import UnreadableTable

#: What a property is made of: a number of bytes, or one of the two that carry their own length.
SHORT_TEXT = 0
FIELD_TABLE = -1

#: The fourteen properties in wire order; the first has flag bit 15.
PROPERTIES = (
    ("content_type", SHORT_TEXT),
    ("content_encoding", SHORT_TEXT),
    ("headers", FIELD_TABLE),
    ("delivery_mode", 1),
    ("priority", 1),
    ("correlation_id", SHORT_TEXT),
    ("reply_to", SHORT_TEXT),
    ("expiration", SHORT_TEXT),
    ("message_id", SHORT_TEXT),
    ("timestamp", 8),
    ("type", SHORT_TEXT),
    ("user_id", SHORT_TEXT),
    ("app_id", SHORT_TEXT),
    ("cluster_id", SHORT_TEXT),
)
FLAG = {name: 0x8000 >> place for place, (name, _) in enumerate(PROPERTIES)}

_u16 = struct.Struct(">H").unpack_from
_u32 = struct.Struct(">I").unpack_from


class Shape(NamedTuple):
    """What one word of flags says. The numbers are places in the list of starts from ``locate``; -1 is absent.

    ``headers_go`` is where the headers are, or would have to be put in.
    """

    flags: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    headers: int
    headers_go: int
    message_id: int
    user_id: int


@lru_cache(maxsize=512)
def shape(flags: int) -> Shape:
    """The properties that ``flags`` announces. A service sees a handful of flag words, so they are remembered.

    Raises UnreadableTable for the two bits that mean no property: bit 0 announces another word of flags, which no
    client sends, and bit 1 is reserved. RabbitMQ 3.10 ignores both; what a newer peer means by them cannot be known.
    """
    if flags & 0b11:
        raise UnreadableTable(f"the property flags {flags:#06x} name properties that AMQP 0-9-1 does not have")
    present = [(name, size) for name, size in PROPERTIES if flags & FLAG[name]]
    names = tuple(name for name, _ in present)
    places = {name: place for place, name in enumerate(names)}
    return Shape(
        flags,
        names,
        tuple(size for _, size in present),
        places.get("headers", -1),
        sum(name in places for name in ("content_type", "content_encoding")),
        places.get("message_id", -1),
        places.get("user_id", -1),
    )


def locate(props: bytes) -> tuple[Shape, list[int]]:
    """The shape of ``props`` and where each property starts, with the end of the last one as one more start.

    Raises UnreadableTable unless the properties fill ``props`` exactly (the broker asks for the same). The content of
    the headers table is not looked at.
    """
    starts: list[int] = []
    at = 2
    try:
        found = shape(_u16(props)[0])
        for size in found.sizes:
            starts.append(at)
            if size > 0:
                at += size
            elif size == SHORT_TEXT:
                at += 1 + props[at]
            else:
                at += 4 + _u32(props, at)[0]
    except (IndexError, struct.error):
        raise UnreadableTable(f"the properties are cut off at byte {len(props)}") from None
    if at != len(props):
        raise UnreadableTable(f"the properties end at byte {at}, but there are {len(props)} bytes")
    starts.append(at)
    return found, starts
