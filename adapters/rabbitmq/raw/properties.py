"""Basic properties as the bytes of a content header: a few values read, a few entries edited.

Everything else stays uninterpreted, byte for byte and in order. ``read`` and ``edit`` refuse the same bytes, so a
message that could be parked can be published.

The properties of a content header are a 2-byte word of flags and then the properties that are present, without gaps,
in the order of their flags from the highest bit down (AMQP 0-9-1, section 4.2.6.1, class basic).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from adapters.rabbitmq.raw.fields import (
    INT64,
    OTHER_INT64,
    Field,
    TooManyEntries,
    UnreadableTable,
    entries,
    entry,
    read_value,
    walk,
)
from bridge.core.message import HeaderValue, Unreadable
from bridge.delay.header import NATIVE

#: The size of a property: a number of bytes, or one of the two that carry their own length.
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
    """The properties that one word of flags announces. Numbers are indexes in the starts of ``locate``; -1 is absent.

    ``headers_go`` is the index where the headers are or would be inserted.
    """

    flags: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    headers: int
    headers_go: int
    message_id: int
    correlation_id: int
    user_id: int


@lru_cache(maxsize=512)
def shape(flags: int) -> Shape:
    """Return the properties that ``flags`` announces. A service sees a handful of flag words, so results are cached.

    Raises UnreadableTable for the two bits without a property: bit 0 announces another word of flags, which no client
    sends, and bit 1 is reserved. RabbitMQ 3.10 ignores both, but a newer peer may give them a meaning.
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
        places.get("correlation_id", -1),
        places.get("user_id", -1),
    )


def locate(props: bytes) -> tuple[Shape, list[int]]:
    """Return the shape of ``props`` and where each property starts, with the end of the last one as one more start.

    Raises UnreadableTable unless the properties fill ``props`` exactly, as the broker demands. Does not read the
    content of the headers table.
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


def priority_in(props: bytes) -> int:
    """Return the priority; 0 without one. Raises UnreadableTable as ``locate``."""
    found, starts = locate(props)
    return props[starts[found.names.index("priority")]] if "priority" in found.names else 0


__all__ = ["TooManyEntries", "UnreadableTable"]

#: Set to Unix milliseconds by the broker on arrival, where the operator has asked for it: the plugin
#: rabbitmq-message-timestamp up to 3.11, ``message_interceptors.incoming.set_header_timestamp`` since 3.12.
BROKER_TIME = b"timestamp_in_ms"

#: A table may contain a name twice, and clients differ in which one they see. Choosing one would guess when to deliver,
#: so a wanted header that comes twice counts as unreadable.
GIVEN_TWICE = Unreadable("given twice")

# Dropped at delivery unless a setting keeps them. Why, in the order of the list:
# - CC and BCC route a copy on every publish through an exchange that reads routing keys
#   (https://www.rabbitmq.com/docs/sender-selected). The front exchange does not read them, so a kept CC takes effect
#   once, when the message is due. Sending copies only where an operator allows it is the safer default.
# - x-death and its like are the broker's record of dead-lettering. Most versions before 4.0 trust a republished one and
#   may drop the message because of it (https://www.rabbitmq.com/docs/dlx).
# - The two counts belong to the intake quorum queue and say nothing about the target.
# - x-opt-delivery-time makes a quorum queue of RabbitMQ 4.4 hold the message again; far values stop the queue for good
#   (Erlang's timers end in the year 2244). So no setting keeps it, and not even a dead letter has it.
# x-stream-offset stays: an intake queue is never a stream, so the producer wrote it.
_CC = frozenset({b"CC"})
_BCC = frozenset({b"BCC"})
_X_DEATH = frozenset(
    {b"x-death"}
    | {b"x-%s-death-%s" % (n, of) for n in (b"first", b"last") for of in (b"exchange", b"queue", b"reason")}
)
_DELIVERY_COUNT = frozenset({b"x-delivery-count", b"x-acquired-count"})
NATIVE_DELAY = NATIVE.encode()


def dropped(
    delay_headers: Iterable[bytes],
    cc: bool = False,
    bcc: bool = False,
    x_death: bool = False,
    delivery_count: bool = False,
) -> frozenset[bytes]:
    """Return the header names to drop: the route's delay headers and what no setting keeps (``cc`` …)."""
    groups = ((cc, _CC), (bcc, _BCC), (x_death, _X_DEATH), (delivery_count, _DELIVERY_COUNT))
    names = (name for keep, group in groups if not keep for name in group)
    return frozenset((*delay_headers, NATIVE_DELAY, *names))


class Read(NamedTuple):
    """What postdate reads of a message.

    ``headers`` holds the wanted headers that are present. ``message_id`` is None where its property is absent.
    ``timestamp_ms`` is Unix milliseconds by the broker's clock, or None. ``in_order``: the headers are sorted by name.
    ``fields`` is the whole table, so that ``ordered`` need not walk it again.
    """

    headers: dict[str, HeaderValue]
    message_id: bytes | None
    timestamp_ms: int | None
    in_order: bool = True
    fields: Sequence[Field] = ()


def read(
    props: bytes,
    names: frozenset[bytes],
    broker_time: bool = False,
    entries_max: int | None = None,
    correlated: bool = False,
) -> Read:
    """Read the headers in ``names`` (exact match), the message id and, with ``broker_time``, the broker's timestamp.

    With ``correlated``, the property ``correlation_id`` is the message id. A wanted header that comes twice is
    ``GIVEN_TWICE``. A broker timestamp that is not one non-negative integer counts as absent: it improves the base of
    a delay and is no condition for one. RabbitMQ cuts the fraction of a millisecond, so this returns the next
    millisecond: a delay from the cut moment would end early. Raises UnreadableTable, and TooManyEntries above
    ``entries_max``.
    """
    shape, starts = locate(props)
    headers: dict[str, HeaderValue] = {}
    times: list[HeaderValue] = []
    last, in_order = b"", True
    place = shape.headers
    fields: Sequence[Field] = ()
    if place >= 0:
        fields = entries(props, starts[place] + 4, starts[place + 1], entries_max)
        for name, tag, value, end, _ in fields:
            if name < last:
                in_order = False
            last = name
            if name in names:
                key = name.decode("utf-8", "surrogateescape")
                headers[key] = GIVEN_TWICE if key in headers else read_value(tag, props[value:end])
            if broker_time and name == BROKER_TIME:
                times.append(read_value(tag, props[value:end]))
    place = shape.correlation_id if correlated else shape.message_id
    message_id = props[starts[place] + 1 : starts[place + 1]] if place >= 0 else None
    return Read(headers, message_id, _one_moment(times) if times else None, in_order, fields)


def _one_moment(times: list[HeaderValue]) -> int | None:
    first = times[0]
    if len(times) == 1 and isinstance(first, int) and not isinstance(first, bool) and first >= 0:
        return first + 1
    return None


def header_field(props: bytes, name: bytes) -> Field | None:
    """Return the first header called ``name``; None without one. Raises UnreadableTable."""
    shape, starts = locate(props)
    if shape.headers < 0:
        return None
    fields = walk(props, starts[shape.headers] + 4, starts[shape.headers + 1])
    return next((field for field in fields if field[0] == name), None)


def edit(props: bytes, drop: frozenset[bytes], drop_user_id: bool, add: bytes, entries_max: int | None = None) -> bytes:
    """Return ``props`` without the headers in ``drop``, without ``user_id`` if asked, and with ``add`` at the end.

    The broker closes the channel over a publish whose ``user_id`` is not the connection's user
    (https://www.rabbitmq.com/docs/validated-user-id). Federation clears it by default, too.

    ``add`` is one or more encoded entries (``text_entry``, ``long_entry``), or empty. It creates the headers property
    where that is absent. A table that becomes empty stays: every client reads an empty table and none alike. Returns
    the same object when nothing changes. With an empty ``drop`` it does not read the table. Otherwise it raises
    UnreadableTable where ``read`` would, and TooManyEntries above ``entries_max``.
    """
    shape, starts = locate(props)
    flags = shape.flags
    head_end = table_end = starts[shape.headers_go]
    kept: list[bytes] = []
    changed = bool(add)
    if shape.headers >= 0:
        table_end = starts[shape.headers + 1]
        run = head_end + 4
        if drop:
            for name, _, _, end, start in entries(props, run, table_end, entries_max):
                if name in drop:
                    kept.append(props[run:start])
                    run = end
                    changed = True
        kept.append(props[run:table_end])
    if drop_user_id and shape.user_id >= 0:
        flags &= ~FLAG["user_id"]
        tail = props[table_end : starts[shape.user_id]] + props[starts[shape.user_id + 1] :]
    elif changed:
        tail = props[table_end:]
    else:
        return props
    if shape.headers >= 0 or add:
        flags |= FLAG["headers"]
        table = b"".join(kept) + add
        return b"".join((flags.to_bytes(2, "big"), props[2:head_end], len(table).to_bytes(4, "big"), table, tail))
    return b"".join((flags.to_bytes(2, "big"), props[2:head_end], tail))


def ordered(props: bytes, drop: frozenset[bytes] = frozenset(), fields: Sequence[Field] | None = None) -> bytes:
    """Return ``props`` with sorted headers, without those in ``drop``. For comparing only. Raises UnreadableTable.

    RabbitMQ may deliver them like this the next time: it sorts the headers by name (a quorum queue of 3.x for a
    redelivery, 4.x always) and writes an integer of tag L with tag l. ``fields`` is the table, if already read.
    """
    shape, starts = locate(props)
    if shape.headers < 0:
        return props
    start, end = starts[shape.headers] + 4, starts[shape.headers + 1]
    if fields is None:
        fields = entries(props, start, end)
    kept = sorted((field for field in fields if field[0] not in drop), key=itemgetter(0))
    table = b"".join(
        entry(name, INT64 if tag == OTHER_INT64 else tag, props[value:stop]) for name, tag, value, stop, _ in kept
    )
    return b"".join((props[: start - 4], len(table).to_bytes(4, "big"), table, props[end:]))


def alike(value: bytes, other: bytes) -> bool:
    """Return whether RabbitMQ may have made one of the other."""
    try:
        return value == other or ordered(value) == ordered(other)
    except UnreadableTable:
        return False
