"""Kafka's part ``payloads`` of ``bridge.app.brokers.Broker``: a message as the store keeps it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from adapters.kafka.failure import read_failure
from adapters.kafka.raw import record
from bridge.core.errors import SettingsError
from bridge.core.message import Failure
from bridge.desk.payload import Draft, Opened, Packed, text_of
from bridge.desk.rows import Row
from bridge.settings import Settings

KEY_NAME = "record key"
#: The W3C trace headers, and where the producer's goes when it is replaced.
_TRACE = frozenset({b"traceparent", b"tracestate"})
_KEPT_TRACE = b"x-delay-traceparent"


def pack(settings: Settings, route: str, draft: Draft) -> Packed:
    """Pack a record made here, as if it had come on an intake topic of the route. Raises ``SettingsError`` for options
    that Kafka does not have."""
    if strange := draft.given("routing_key", "content_type", "message_id"):
        raise SettingsError(
            f"Options for RabbitMQ routes only: {strange}. On Kafka, {draft.word('record_key')} sets the key."
        )
    topic = _intake_topic(settings, route, draft)
    key = None if draft.record_key is None else os.fsencode(draft.record_key)
    named = [(os.fsencode(name), os.fsencode(text)) for name, text in draft.headers.items()]
    return Packed(key or b"", record.pack(-1, -1, key, draft.body, named, topic.encode()))


def open_payload(row: Row) -> Opened:
    unpacked = record.unpack(row.payload)
    described = record.describe(unpacked, record.topic_of(row.payload))
    other = {name: value for name, value in described.items() if name not in ("topic", "partition", "key")}
    origin = {"topic": described.get("topic"), "partition": described["partition"], "record_key": described["key"]}
    body = unpacked.value or b""
    return Opened(described, origin, other, body, len(body))


def headers_of(payload: bytes) -> Iterable[tuple[str, object]]:
    found = record.unpack(payload, in_part=True).headers
    return ((str(record.shown(name)), record.shown(content)) for name, content in found)


def failure_of(settings: Settings, route: str, payload: bytes) -> Failure:
    return read_failure(record.unpack(payload).headers)


def trace_headers(payload: bytes) -> dict[str, str]:
    headers = record.unpack(payload).headers
    return {name.decode(): value.decode() for name, value in headers if name in _TRACE and value is not None}


def with_traceparent(payload: bytes, traceparent: str) -> bytes:
    found = record.unpack(payload)
    kept = [header for header in found.headers if header[0] not in _TRACE and header[0] != _KEPT_TRACE]
    kept.append((b"traceparent", traceparent.encode()))
    if before := trace_headers(payload).get("traceparent"):
        kept.append((_KEPT_TRACE, before.encode()))
    return record.pack(found.partition, found.timestamp, found.key, found.value, kept, record.topic_of(payload))


def body_of(payload: bytes) -> bytes:
    return record.unpack(payload).value or b""


def origin_of(row: Row) -> dict[str, object]:
    """Return topic, partition and record key, as far as the first bytes of the payload tell; None where it cannot be
    opened."""
    try:
        topic, partition, key = record.head_of(row.payload)
    except ValueError:
        return {"topic": None, "partition": None, "record_key": None}
    return {
        "topic": text_of(topic) or None,
        "partition": partition,
        "record_key": None if key is None else text_of(key),
    }


def _intake_topic(settings: Settings, route: str, draft: Draft) -> str:
    topic, namings = draft.topic, settings.routes[route].namings()
    if topic is None:
        if len(namings) > 1 or namings[0].is_rule:
            raise SettingsError(f"Route {route!r} has several intake topics. Name one with {draft.word('topic')}.")
        return namings[0].intercept
    if all(naming.target(topic) is None for naming in namings):
        taken = ", ".join(naming.intercept for naming in namings)
        raise SettingsError(f"Route {route!r} has no intake topic {topic!r}. Its intake topics: {taken}.")
    return topic
