"""Basic properties made from scratch, for messages that postdate itself is the producer of (``postdate send``)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from adapters.rabbitmq.raw.fields import BOOL, BYTES, INT32, TIMESTAMP, VOID, entry, long_entry, text_entry
from adapters.rabbitmq.raw.layout import FLAG
from bridge.core.message import HeaderValue, Timestamp

_DOUBLE = ord("d")


def build(
    headers: Mapping[str, HeaderValue] | None = None,
    *,
    content_type: str | None = None,
    content_encoding: str | None = None,
    delivery_mode: int | None = 2,
    priority: int | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    expiration: str | None = None,
    message_id: str | None = None,
    timestamp: int | None = None,
    type: str | None = None,
    app_id: str | None = None,
) -> bytes:
    """The properties given, in wire form; None is absent, an empty text or mapping is present and empty.

    ``delivery_mode`` 2 is persistent, ``expiration`` is milliseconds as text, ``timestamp`` is Unix seconds.
    ``user_id`` cannot be set: the broker refuses all but the connection's own. Raises ValueError for what AMQP
    cannot carry: short text over 255 bytes, numbers out of range, NaN and infinities, an Unreadable.
    """
    parts = {
        "content_type": _short_text("content_type", content_type),
        "content_encoding": _short_text("content_encoding", content_encoding),
        "headers": None if headers is None else _table(headers),
        "delivery_mode": _unsigned("delivery_mode", delivery_mode, 1),
        "priority": _unsigned("priority", priority, 1),
        "correlation_id": _short_text("correlation_id", correlation_id),
        "reply_to": _short_text("reply_to", reply_to),
        "expiration": _short_text("expiration", expiration),
        "message_id": _short_text("message_id", message_id),
        "timestamp": _unsigned("timestamp", timestamp, 8),
        "type": _short_text("type", type),
        "app_id": _short_text("app_id", app_id),
    }
    flags = sum(FLAG[name] for name, part in parts.items() if part is not None)
    return flags.to_bytes(2, "big") + b"".join(part for part in parts.values() if part is not None)


def _short_text(name: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    raw = text.encode()
    if len(raw) > 255:
        raise ValueError(f"{name} has at most 255 bytes, this one has {len(raw)}")
    return bytes((len(raw),)) + raw


def _unsigned(name: str, number: int | None, size: int) -> bytes | None:
    if number is None:
        return None
    if not 0 <= number < 256**size:
        raise ValueError(f"{name} cannot be {number}")
    return number.to_bytes(size, "big")


def _table(headers: Mapping[str, HeaderValue]) -> bytes:
    table = b"".join(_header(name.encode(), value) for name, value in headers.items())
    return len(table).to_bytes(4, "big") + table


def _header(name: bytes, value: HeaderValue) -> bytes:
    # bool before int, because a bool is an int.
    match value:
        case None:
            return entry(name, VOID, b"")
        case bool():
            return entry(name, BOOL, b"\1" if value else b"\0")
        case int() if -(2**31) <= value < 2**31:
            # int32 while it fits, as most clients choose: consumers with a fixed type expect it.
            return entry(name, INT32, value.to_bytes(4, "big", signed=True))
        case int():
            return long_entry(name, value)
        case float():
            return entry(name, _DOUBLE, _double(value))
        case str():
            return text_entry(name, value.encode())
        case bytes():
            return entry(name, BYTES, len(value).to_bytes(4, "big") + value)
        case Timestamp(seconds):
            return entry(name, TIMESTAMP, seconds.to_bytes(8, "big", signed=True))
    raise ValueError(f"a header cannot be made from {value!r}")


def _double(value: float) -> bytes:
    # RabbitMQ's parser has no NaN and no infinity: it closes the connection that sends one.
    if not math.isfinite(value):
        raise ValueError(f"a header cannot be {value}")
    return struct.pack(">d", value)
