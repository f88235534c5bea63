"""What the store keeps of a RabbitMQ message: ``routing key u8+bytes | properties u32+bytes | body``.

It omits the exchange: a message goes to the ``deliver_to`` that its route has when the message is due.
"""

from __future__ import annotations

from typing import NamedTuple


class Payload(NamedTuple):
    """A message from RabbitMQ. ``properties`` are the uninterpreted bytes of the content header."""

    routing_key: bytes
    properties: bytes
    body: bytes


def pack(routing_key: bytes, properties: bytes, body: bytes) -> bytes:
    return b"".join((bytes((len(routing_key),)), routing_key, len(properties).to_bytes(4, "big"), properties, body))


def unpack(data: bytes) -> Payload:
    """Return the parts of a packed message. Raises ``ValueError`` for other bytes."""
    try:
        at = 1 + data[0]
        start = at + 4
        end = start + int.from_bytes(data[at:start], "big")
    except IndexError:
        raise ValueError("not a RabbitMQ message: it is empty") from None
    if end > len(data):
        raise ValueError("not a RabbitMQ message: it is cut short")
    return Payload(data[1:at], data[start:end], data[end:])


def routing_key(data: bytes) -> bytes:
    """Return the routing key of a packed message; its first 256 bytes are enough."""
    return data[1 : 1 + data[0]] if data else b""
