"""AMQP 0-9-1 field tables as bytes: walked, read where a value is needed, never re-encoded.

Layout of an entry: name length (1 byte), name, type tag (1 byte), value (AMQP 0-9-1, section 4.2.5.5). The tags are
RabbitMQ's, which differ from the specification's (https://www.rabbitmq.com/amqp-0-9-1-errata.html, section 3 "Field
types"). The sizes are those of the broker's own parser, ``rabbit_binary_parser.erl``. So ``s`` is a 16-bit integer,
not a short string, and ``L`` is signed like ``l``. The broker does not know ``U``. The specification and pika read it
as a signed 16-bit integer, and so does this file.

Rejected: decoding and encoding again. No Python client keeps all types through a round trip (pika 1.4.4 cuts doubles).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice

from bridge.core.message import HeaderValue, Timestamp, Unreadable

#: (name, type tag, where the value starts, where it ends, where the entry starts), offsets into the walked bytes.
#: The value is as on the wire: for text, bytes, tables and arrays it starts with its 4-byte length.
Field = tuple[bytes, int, int, int, int]

TEXT, BYTES, TABLE, ARRAY = ord("S"), ord("x"), ord("F"), ord("A")
BOOL, VOID, TIMESTAMP, DECIMAL = ord("t"), ord("V"), ord("T"), ord("D")
INT32, INT64, OTHER_INT64 = ord("I"), ord("l"), ord("L")

_NUMBERS = {
    ord(tag): struct.Struct(form)
    for tag, form in {
        "b": ">b", "B": ">B", "s": ">h", "U": ">h", "u": ">H", "I": ">i", "i": ">I",
        "l": ">q", "L": ">q", "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
_OTHERS = {BOOL: 1, VOID: 0, TIMESTAMP: 8, DECIMAL: 5}
_BY_LENGTH = -1
_UNKNOWN = -2


def _size_of(tag: int) -> int:
    if tag in _NUMBERS:
        return _NUMBERS[tag].size
    return _BY_LENGTH if tag in (TEXT, BYTES, TABLE, ARRAY) else _OTHERS.get(tag, _UNKNOWN)


_SIZES = tuple(_size_of(tag) for tag in range(256))
_u32 = struct.Struct(">I").unpack_from
_seconds = struct.Struct(">q").unpack
_decimal = struct.Struct(">Bi").unpack


class UnreadableTable(ValueError):
    """Bytes that are not properties or a field table. The text says where."""


class TooManyEntries(UnreadableTable):
    """A header table with more entries than ``limits.header_entries`` allows."""


def entries(raw: bytes, start: int, end: int, entries_max: int | None = None) -> list[Field]:
    """Return the entries of a table as ``walk`` yields them. Raises TooManyEntries above ``entries_max``.

    An entry may be two bytes on the wire, and takes a microsecond here: a header table of 128 KiB could delay every
    route. The content of nested tables and arrays is not counted: it is skipped and costs nothing.
    """
    if (
        entries_max is not None
        and end - start > 2 * entries_max
        and sum(1 for _ in islice(walk(raw, start, end), entries_max + 1)) > entries_max
    ):
        raise TooManyEntries(f"it has more than {entries_max} header entries (limits.header_entries)")
    found: list[Field] = []
    append, at = found.append, start
    try:
        while at < end:
            tag_at = at + 1 + raw[at]
            size = _SIZES[raw[tag_at]]
            stop = tag_at + 1 + size
            if size < 0 or stop > end:
                stop = _value_end(raw, tag_at, end)
            append((raw[at + 1 : tag_at], raw[tag_at], tag_at + 1, stop, at))
            at = stop
    except IndexError:
        raise UnreadableTable(f"the header entry at byte {at} is cut off") from None
    return found


def walk(raw: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the entries of the table whose content is ``raw[start:end]`` (after its 4-byte length), in order.

    Does not read values, and skips nested tables by their length, so no depth can hurt. Raises UnreadableTable at the
    first entry with an unknown tag or with a length beyond the table, after yielding those before it.
    """
    if not 0 <= start <= end <= len(raw):
        raise UnreadableTable(f"the header table from byte {start} to {end} is not within the {len(raw)} bytes")
    at = start
    try:
        while at < end:
            tag_at = at + 1 + raw[at]
            stop = _value_end(raw, tag_at, end)
            yield raw[at + 1 : tag_at], raw[tag_at], tag_at + 1, stop, at
            at = stop
    except IndexError:
        raise UnreadableTable(f"the header entry at byte {at} is cut off") from None


def walk_array(raw: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the elements of the array whose content is ``raw[start:end]``: (type tag, value start, value end).

    Raises as ``walk``.
    """
    if not 0 <= start <= end <= len(raw):
        raise UnreadableTable(f"the array from byte {start} to {end} is not within the {len(raw)} bytes")
    at = start
    while at < end:
        stop = _value_end(raw, at, end)
        yield raw[at], at + 1, stop
        at = stop


def _value_end(raw: bytes, tag_at: int, end: int) -> int:
    size = _SIZES[raw[tag_at]]
    stop = tag_at + 1 + size
    if size < 0:
        if size == _UNKNOWN:
            raise UnreadableTable(f"at byte {tag_at} is {_unknown(raw[tag_at])}, so its end is not known")
        stop = tag_at + 5
        if stop <= end:
            stop += _u32(raw, tag_at + 1)[0]
    if stop > end:
        raise UnreadableTable(f"the value at byte {tag_at} ends beyond its container, which ends at byte {end}")
    return stop


def _unknown(tag: int) -> str:
    return f"a value of unknown type {chr(tag)!r}"


def read_value(tag: int, raw: bytes) -> HeaderValue:
    """Return one value from ``raw``, the bytes from value start to value end as ``walk`` gives them.

    Integers keep sign and width. Text that is not UTF-8 stays bytes. A timestamp is signed, as the POSIX ``time_t`` of
    section 4.2.5.4. NaN and infinities stay floats. A decimal is an int, or a float where it has a fraction. Tables,
    arrays and unknown tags are Unreadable. Raises UnreadableTable when the length of ``raw`` does not fit its tag.
    """
    number = _NUMBERS.get(tag)
    try:
        if number is not None:
            value: int | float = number.unpack(raw)[0]
            return value
        if tag in (TEXT, BYTES):
            return _text_or_bytes(tag, raw)
        return _other(tag, raw)
    except struct.error:
        raise UnreadableTable(f"a value of type {chr(tag)!r} cannot be {len(raw)} bytes long") from None


def _text_or_bytes(tag: int, raw: bytes) -> str | bytes:
    content = raw[4:]
    if _u32(raw)[0] != len(content):
        raise UnreadableTable(f"a value of {len(content)} bytes declares another length")
    if tag == BYTES:
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _other(tag: int, raw: bytes) -> HeaderValue:
    if tag == TIMESTAMP:
        return Timestamp(_seconds(raw)[0])
    if tag == DECIMAL:
        # Section 4.2.5.5: the number of decimal places, then a signed integer. (RabbitMQ's parser calls it unsigned.)
        places, scaled = _decimal(raw)
        whole, fraction = divmod(scaled, 10**places)
        return int(whole) if fraction == 0 else float(scaled / 10**places)
    if tag in (TABLE, ARRAY):
        return Unreadable("a table" if tag == TABLE else "an array")
    if tag not in _OTHERS:
        return Unreadable(_unknown(tag))
    if len(raw) != _OTHERS[tag]:
        raise UnreadableTable(f"a value of type {chr(tag)!r} cannot be {len(raw)} bytes long")
    return raw != b"\0" if tag == BOOL else None


def entry(name: bytes, tag: int, value: bytes) -> bytes:
    """Return a table entry from a value in its wire form. Raises ValueError for a name above 255 bytes."""
    if len(name) > 255:
        raise ValueError(f"a header name has {len(name)} bytes. AMQP allows 255 bytes")
    return bytes((len(name),)) + name + bytes((tag,)) + value


def text_entry(name: bytes, value: bytes) -> bytes:
    """Return a table entry with text (``S``). Raises ValueError for a name above 255 bytes."""
    return entry(name, TEXT, len(value).to_bytes(4, "big") + value)


def long_entry(name: bytes, value: int) -> bytes:
    """Return a table entry with a signed 64-bit integer (``l``). Raises ValueError for a number or name too large."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} does not fit into a 64-bit header")
    return entry(name, INT64, value.to_bytes(8, "big", signed=True))


def negated_entry(name: bytes, delay_ms: int, given: int | None) -> bytes:
    """Return ``-delay_ms`` as the delayed-message plugin leaves it in the header (``headers.compat = "plugin"``).

    ``given`` is the producer's type tag: an int32 stays one while it fits, all else becomes int64. The
    plugin for RabbitMQ 3.x always wrote an int32 (wrapping around), that for 4.x an integer without a type
    (``swap_delay_header`` in rabbit_delayed_message_utils.erl). Neither is worth copying.
    """
    if given == INT32 and -(2**31) <= -delay_ms < 2**31:
        return entry(name, INT32, (-delay_ms).to_bytes(4, "big", signed=True))
    return long_entry(name, min(-delay_ms, 2**63 - 1))  # the smallest int64 has no negative
