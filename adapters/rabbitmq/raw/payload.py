"""What the store keeps of a RabbitMQ message: ``routing key u8+bytes | properties u32+bytes | body``.

The exchange is not in it: a message goes to its route's ``deliver_to`` as it is configured when the message is due.
"""

from __future__ import annotations

from typing import NamedTuple


class Payload(NamedTuple):
    """A message as RabbitMQ gave it: ``properties`` are the bytes of the content header, uninterpreted."""

    routing_key: bytes
    properties: bytes
    body: bytes


def pack(routing_key: bytes, properties: bytes, body: bytes) -> bytes:
    """The message as one piece of bytes."""
    return b"".join((bytes((len(routing_key),)), routing_key, len(properties).to_bytes(4, "big"), properties, body))


def unpack(data: bytes) -> Payload:
    """The pieces of what ``pack`` made. Raises ``ValueError`` for bytes it did not make."""
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
    """The routing key of what ``pack`` made, from its first 256 bytes."""
    return data[1 : 1 + data[0]] if data else b""
