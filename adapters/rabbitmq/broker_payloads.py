"""RabbitMQ's part ``payloads`` of ``bridge.app.brokers.Broker``: a message as the store keeps it."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pika
from pika.exceptions import ShortStringTooLong

from adapters.rabbitmq.failure import failing_queue, read_rejected
from adapters.rabbitmq.raw import payload as stored
from adapters.rabbitmq.raw.fields import text_entry
from adapters.rabbitmq.raw.properties import edit, read
from adapters.rabbitmq.raw.values import describe
from bridge.core.errors import Refused, SettingsError
from bridge.core.message import Failure
from bridge.delay.trust import no_such_queue
from bridge.desk.payload import Draft, Opened, Packed, text_of
from bridge.desk.rows import Row
from bridge.settings import Settings

_SHORT_TEXT_MAX = 255
#: As much of a text that is too long is repeated.
_NAMED_MAX = 20
KEY_NAME = "routing key"
#: The W3C trace headers, and where the producer's goes when it is replaced.
_TRACE = frozenset({b"traceparent", b"tracestate"})
_KEPT_TRACE = b"x-delay-traceparent"


def pack(settings: Settings, route: str, draft: Draft) -> Packed:
    """Pack a message made here. Raises ``SettingsError`` for options that RabbitMQ does not have or AMQP cannot carry,
    ``Refused`` for a routing key with which it would become a dead letter."""
    if strange := draft.given("record_key", "topic"):
        raise SettingsError(f"Options for Kafka routes only: {strange}. Route {route!r} is on RabbitMQ.")
    if draft.routing_key is None:
        # It may be empty but not forgotten: without the right one no queue takes the message.
        raise SettingsError(
            f"{draft.word('routing_key')} is missing. Give the consumers' routing key, or '' for an empty one."
        )
    key, allowed = os.fsencode(draft.routing_key), settings.allowed_routing_keys_of(route)
    if allowed is not None and key not in allowed:
        raise Refused(f"Nothing was sent: {no_such_queue(key).sentence}.")
    if len(key) > _SHORT_TEXT_MAX:
        raise SettingsError(f"The routing key has {len(key)} bytes. AMQP allows {_SHORT_TEXT_MAX}.")
    try:
        properties = pika.BasicProperties(
            draft.content_type, headers=draft.headers or None, delivery_mode=2, message_id=draft.message_id
        ).encode()
    except UnicodeEncodeError:
        raise SettingsError("A header, the content type or the message id is not UTF-8 text.") from None
    except ShortStringTooLong as error:
        text = error.args[0].decode()
        what = f"{text[:_NAMED_MAX]!r} … has {len(text.encode())} bytes"
        raise SettingsError(
            f"{what}. AMQP allows {_SHORT_TEXT_MAX} for a header name, content type or message id."
        ) from None
    return Packed(key, stored.pack(key, b"".join(properties), draft.body))


def open_payload(row: Row) -> Opened:
    _, properties, body = stored.unpack(row.payload)
    described = describe(properties)
    return Opened(described, {}, described, body, row.size - len(row.payload) + len(body))


def headers_of(payload: bytes) -> Iterable[tuple[str, object]]:
    headers = describe(stored.unpack(payload).properties).get("headers")
    return headers.items() if isinstance(headers, dict) else ()


def failure_of(settings: Settings, route: str, payload: bytes) -> Failure:
    return read_rejected(stored.unpack(payload).properties, failing_queue(settings, route)).failure


def trace_headers(payload: bytes) -> dict[str, str]:
    found = read(stored.unpack(payload).properties, _TRACE).headers
    return {name: value for name, value in found.items() if isinstance(value, str)}


def with_traceparent(payload: bytes, traceparent: str) -> bytes:
    routing_key, properties, body = stored.unpack(payload)
    added = text_entry(b"traceparent", traceparent.encode())
    if before := trace_headers(payload).get("traceparent"):
        added += text_entry(_KEPT_TRACE, before.encode())
    return stored.pack(routing_key, edit(properties, _TRACE | {_KEPT_TRACE}, False, added), body)


def body_of(payload: bytes) -> bytes:
    return stored.unpack(payload).body


def origin_of(row: Row) -> dict[str, object]:
    """Return the routing key, as far as the first bytes of the payload tell."""
    return {"routing_key": text_of(stored.routing_key(row.payload))}
