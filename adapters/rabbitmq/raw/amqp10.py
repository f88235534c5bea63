"""Reads what RabbitMQ 3.x packs into one header of an AMQP 1.0 message: its application properties and annotations.

The plugin ``rabbitmq_amqp1_0`` of 3.10 to 3.13 keeps each of these sections as the bytes that came. So no binding sees
the headers within. RabbitMQ 4 makes a header of each. Layout: AMQP 1.0, part 1, section 1.6: a byte for the type, whose
high half says how long the value is, and the value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from adapters.rabbitmq.raw.fields import TooManyEntries, UnreadableTable
from bridge.core.message import HeaderValue, Unreadable

#: The headers with a packed section.
SECTIONS = frozenset({b"x-amqp-1.0-app-properties", b"x-amqp-1.0-message-annotations"})
_DESCRIBED = 0x00
_MAPS = {0xC1: 1, 0xD1: 4}
#: Bytes of a value, and bytes of the size in front of it, by the high half of its type.
_FIXED = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZED = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
_CONSTANTS: dict[int, HeaderValue] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
#: Integers by type, and whether they are signed. 0x83 is a timestamp: Unix milliseconds.
_INTEGERS = {0x50: False, 0x51: True, 0x52: False, 0x53: False, 0x54: True, 0x55: True, 0x60: False, 0x61: True}
_INTEGERS |= {0x70: False, 0x71: True, 0x80: False, 0x81: True, 0x83: True}
_FLOATS = {0x72: ">f", 0x82: ">d"}
_TEXTS = frozenset({0xA1, 0xA3, 0xB1, 0xB3})
_BYTES = frozenset({0xA0, 0xB0})


def unpacked(
    headers: dict[str, HeaderValue], wanted: frozenset[bytes], entries_max: int | None
) -> dict[str, HeaderValue]:
    """Return these headers with those of ``wanted`` that are packed in them; a header of its own wins. Raises as
    ``read_section``."""
    found: dict[str, HeaderValue] = {}
    names = frozenset(name.decode() for name in wanted)
    for section in SECTIONS & {name.encode() for name in headers}:
        packed = headers[section.decode()]
        if not isinstance(packed, bytes):
            raise UnreadableTable("a section of AMQP 1.0 is not bytes")
        found |= read_section(packed, names, entries_max)
    return found | {name: value for name, value in headers.items() if name.encode() not in SECTIONS}


def read_section(raw: bytes, names: frozenset[str], entries_max: int | None) -> dict[str, HeaderValue]:
    """Return the entries in ``names``. Raises UnreadableTable, and TooManyEntries above ``entries_max``."""
    found: dict[str, HeaderValue] = {}
    try:
        for number, (name, value) in enumerate(_entries(raw)):
            if entries_max is not None and number >= entries_max:
                raise TooManyEntries(f"it has more than {entries_max} header entries (limits.header_entries)")
            if isinstance(name, str) and name in names:
                found[name] = value
    except (IndexError, struct.error):
        raise UnreadableTable("a section of AMQP 1.0 is cut off") from None
    return found


def _entries(raw: bytes) -> Iterator[tuple[HeaderValue, HeaderValue]]:
    """Yield the entries of a described map."""
    if raw[0] != _DESCRIBED:
        raise UnreadableTable("a section of AMQP 1.0 does not begin with its descriptor")
    at = _end(raw, 1)
    width = _MAPS.get(raw[at])
    if width is None:
        raise UnreadableTable("a section of AMQP 1.0 is no map")
    end, at = _end(raw, at), at + 1 + 2 * width
    while at < end:
        value_at = _end(raw, at)
        stop = _end(raw, value_at)
        yield _value(raw, at, value_at), _value(raw, value_at, stop)
        at = stop


def _end(raw: bytes, at: int) -> int:
    """Return where the value at ``at`` ends. Raises as ``read_section``."""
    half = raw[at] >> 4
    if half in _FIXED:
        end = at + 1 + _FIXED[half]
    elif half in _SIZED:
        width = _SIZED[half]
        end = at + 1 + width + int.from_bytes(raw[at + 1 : at + 1 + width], "big")
    else:
        raise UnreadableTable(f"a section of AMQP 1.0 has a value of unknown type 0x{raw[at]:02x}")
    if end > len(raw):
        raise UnreadableTable("a section of AMQP 1.0 is cut off")
    return end


def _value(raw: bytes, at: int, end: int) -> HeaderValue:
    kind = raw[at]
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in _INTEGERS:
        return int.from_bytes(raw[at + 1 : end], "big", signed=_INTEGERS[kind])
    if kind in _FLOATS:
        value: float = struct.unpack(_FLOATS[kind], raw[at + 1 : end])[0]
        return value
    if kind == 0x56:
        return raw[at + 1] != 0
    if kind in _TEXTS or kind in _BYTES:
        content = raw[at + 1 + _SIZED[kind >> 4] : end]
        try:
            return content.decode() if kind in _TEXTS else content
        except UnicodeDecodeError:
            return content
    return Unreadable(f"a value of AMQP 1.0 type 0x{kind:02x}")
