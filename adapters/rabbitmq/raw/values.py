"""Basic properties as plain values, for ``postdate show``."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from adapters.rabbitmq.raw.fields import ARRAY, DECIMAL, TABLE, UnreadableTable, read_value, walk, walk_array
from adapters.rabbitmq.raw.properties import FIELD_TABLE, SHORT_TEXT, shape
from bridge.core.message import HeaderValue, Timestamp, Unreadable

#: Depth of nested tables and arrays, counting the headers table. One frame can hold 20,000 levels.
DEPTH_MAX = 16
#: Values in all nested tables and arrays of one message. A frame can hold 63,000, which would take 0.15 s to read.
NESTED_MAX = 2000

#: Stands for the rest where reading had to end. The text says why.
UNREADABLE = "(unreadable)"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def describe(props: bytes) -> dict[str, object]:
    """Return every present property by name, in values that JSON has. Never raises, whatever the bytes are.

    Text and byte arrays become text, with ``\\xNN`` for bytes that are not UTF-8. Moments become ISO 8601 text in UTC.
    Decimals, and floats that JSON lacks, become text. A repeated name gets `` #2``. At unreadable bytes the result
    ends, and ``(unreadable)`` says why. It may hold control characters from a producer: print it escaped.
    """
    found: dict[str, object] = {}
    at = 2
    try:
        present = shape(int.from_bytes(props[:2], "big")) if len(props) >= 2 else None
        if present is None:
            raise UnreadableTable(f"{len(props)} bytes are too few for property flags")
        for name, size in zip(present.names, present.sizes, strict=True):
            end = _end(props, at, size)
            found[name] = _property(props, at, end, size)
            at = end
        if at != len(props):
            raise UnreadableTable(f"{len(props) - at} bytes after the last property")
    except UnreadableTable as error:
        found[UNREADABLE] = str(error)
    return found


def _end(props: bytes, at: int, size: int) -> int:
    if size == SHORT_TEXT:
        end = at + 1 + int.from_bytes(props[at : at + 1], "big")
    elif size == FIELD_TABLE:
        end = at + 4 + int.from_bytes(props[at : at + 4], "big")
    else:
        end = at + size
    if end > len(props):
        raise UnreadableTable(f"cut off at byte {len(props)}")
    return end


def _property(props: bytes, at: int, end: int, size: int) -> object:
    if size == SHORT_TEXT:
        return _text(props[at + 1 : end])
    if size == FIELD_TABLE:
        return _table(props, at + 4, end, _Nested(1, NESTED_MAX))
    if size == 1:
        return props[at]
    return _moment(int.from_bytes(props[at:end], "big"))


class _Nested:
    """Where in nested tables the reading is, and how many nested values it may still return."""

    def __init__(self, depth: int, left: int) -> None:
        self.depth = depth
        self.left = left

    def take(self) -> None:
        """Take one value. Raises UnreadableTable where too many were taken."""
        if self.depth > 1:
            self.left -= 1
            if self.left < 0:
                raise UnreadableTable(f"more than {NESTED_MAX} nested values")


def _table(raw: bytes, start: int, end: int, nested: _Nested) -> dict[str, object]:
    found: dict[str, object] = {}
    seen: dict[str, int] = {}
    try:
        for name, tag, value, stop, _ in walk(raw, start, end):
            nested.take()
            _put(found, seen, _text(name), _value(raw, tag, value, stop, nested))
    except UnreadableTable as error:
        _put(found, seen, UNREADABLE, str(error))
    return found


def _put(found: dict[str, object], seen: dict[str, int], name: str, value: object) -> None:
    # Counting from 1 again for each of 20,000 equal names would take minutes.
    free = name
    while free in found:
        seen[name] = seen.get(name, 1) + 1
        free = f"{name} #{seen[name]}"
    found[free] = value


def _array(raw: bytes, start: int, end: int, nested: _Nested) -> list[object]:
    found: list[object] = []
    try:
        for tag, value, stop in walk_array(raw, start, end):
            nested.take()
            found.append(_value(raw, tag, value, stop, nested))
    except UnreadableTable as error:
        found.append(f"{UNREADABLE} {error}")
    return found


def _value(raw: bytes, tag: int, start: int, end: int, nested: _Nested) -> object:
    if tag in (TABLE, ARRAY):
        if nested.depth >= DEPTH_MAX:
            return f"{UNREADABLE} more than {DEPTH_MAX} nested tables"
        inner = _table if tag == TABLE else _array
        nested.depth += 1
        found: object = inner(raw, start + 4, end, nested)
        nested.depth -= 1
        return found
    if tag == DECIMAL:
        places, scaled = struct.unpack_from(">Bi", raw, start)
        return str(Decimal(scaled).scaleb(-places))
    return _plain(read_value(tag, raw[start:end]))


def _plain(value: HeaderValue) -> object:
    match value:
        case bytes():
            return _text(value)
        case Timestamp(seconds):
            return _moment(seconds)
        case Unreadable(kind):
            return f"{UNREADABLE} {kind}"
        case float() if not math.isfinite(value):
            return str(value)
    return value


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _moment(seconds: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        # Most often milliseconds of a producer, not a year beyond 9999.
        return f"{seconds} seconds since 1970"
