"""Basic properties as plain values for a person to look at (``postdate show``). Never used on the way of a message."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from adapters.rabbitmq.raw.fields import ARRAY, DECIMAL, TABLE, UnreadableTable, read_value, walk, walk_array
from adapters.rabbitmq.raw.layout import FIELD_TABLE, SHORT_TEXT, shape
from bridge.core.message import HeaderValue, Timestamp, Unreadable

#: Tables and arrays within each other, the headers table being the first. The wire allows 20,000 in a frame.
DEPTH_MAX = 16

#: What stands in the place of the rest where a reading had to end; the text says why.
UNREADABLE = "(unreadable)"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def describe(props: bytes) -> dict[str, object]:
    """Every property that is present, by name, in values that JSON has: for any bytes at all, without raising.

    Text and byte arrays become text, with ``\\xNN`` for bytes that are not UTF-8; moments become ISO 8601 text in UTC;
    decimals and the floats that JSON lacks become text. A name that comes twice gets `` #2`` behind it. Where bytes
    cannot be understood, what was understood before them is given, and ``(unreadable)`` says why there is no more.
    The result holds whatever a producer put there, control characters too: print it escaped.
    """
    found: dict[str, object] = {}
    at = 2
    try:
        present = shape(int.from_bytes(props[:2], "big")) if len(props) >= 2 else None
        if present is None:
            raise UnreadableTable(f"{len(props)} bytes are too few for the property flags")
        for name, size in zip(present.names, present.sizes, strict=True):
            end = _end(props, at, size)
            found[name] = _property(props, at, end, size)
            at = end
        if at != len(props):
            raise UnreadableTable(f"{len(props) - at} bytes behind the last property")
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
        return _table(props, at + 4, end, 1)
    if size == 1:
        return props[at]
    return _moment(int.from_bytes(props[at:end], "big"))


def _table(raw: bytes, start: int, end: int, depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    seen: dict[str, int] = {}
    try:
        for name, tag, value, stop, _ in walk(raw, start, end):
            _put(found, seen, _text(name), _value(raw, tag, value, stop, depth))
    except UnreadableTable as error:
        _put(found, seen, UNREADABLE, str(error))
    return found


def _put(found: dict[str, object], seen: dict[str, int], name: str, value: object) -> None:
    # The count is remembered, because to look for a free number anew for 20,000 equal names would take minutes.
    free = name
    while free in found:
        seen[name] = seen.get(name, 1) + 1
        free = f"{name} #{seen[name]}"
    found[free] = value


def _array(raw: bytes, start: int, end: int, depth: int) -> list[object]:
    found: list[object] = []
    try:
        for tag, value, stop in walk_array(raw, start, end):
            found.append(_value(raw, tag, value, stop, depth))
    except UnreadableTable as error:
        found.append(f"{UNREADABLE} {error}")
    return found


def _value(raw: bytes, tag: int, start: int, end: int, depth: int) -> object:
    if tag in (TABLE, ARRAY):
        if depth >= DEPTH_MAX:
            return f"{UNREADABLE} more than {DEPTH_MAX} tables within each other"
        inner = _table if tag == TABLE else _array
        return inner(raw, start + 4, end, depth + 1)
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
        # Far more often a producer's milliseconds than a year beyond 9999.
        return f"{seconds} seconds since 1970"
