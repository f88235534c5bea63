"""A record for a person's eyes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from adapters.kafka.raw.record import Record
from bridge.delay.duration import write_moment


def describe(record: Record, topic: bytes) -> Mapping[str, object]:
    """What a record from ``topic`` has beside its value; bytes that are no text in base64."""
    found: dict[str, object] = {"topic": _shown(topic)} if topic else {}
    found |= {"partition": record.partition, "key": _shown(record.key)}
    if record.timestamp >= 0:
        found["timestamp"] = write_moment(record.timestamp)
    if record.value is None:
        found["value"] = None
    found["headers"] = [{"name": _shown(name), "value": _shown(value)} for name, value in record.headers]
    return found


def _shown(raw: bytes | None) -> object:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode()}
