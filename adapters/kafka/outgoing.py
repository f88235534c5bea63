"""From a claim to the record that leaves: as its producer wrote it, less the delay, plus the audit headers.

Pure. What is taken out and put in is the whole list of what differs between what a producer sent and what a consumer
gets, beside the timestamp (``kafka.timestamp``) and the partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adapters.kafka.raw.record import Record
from adapters.kafka.routing import FixedTarget, Router
from bridge.core.ports import Letter

ID_HEADER = "x-delay-id"
DUE_HEADER = "x-delay-due"
#: Dropped before they are added, or a record that a consumer sends on with its headers would carry them twice.
AUDIT_HEADERS = frozenset({ID_HEADER.encode(), DUE_HEADER.encode()})


class OddName:
    """A header name that is no text."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self, encoding: str) -> bytes:
        """The name, whatever the encoding."""
        return self._raw


@dataclass(frozen=True)
class KafkaOut:
    """How a route's records leave: to which topic, without which headers, with or without the audit headers.

    ``keep_partition``: whatever the settings say of partitions, each keeps the number of the one it was in.
    ``headers_max``: headers that a record may have, as at the intake; None for no bound."""

    router: Router | FixedTarget
    drop: frozenset[bytes]
    audit: bool
    keep_partition: bool = False
    headers_max: int | None = None


class OutgoingRecord:
    """One record on its way out. ``timestamp`` is Unix milliseconds, None for the moment it is sent; ``odd`` says that
    a header's name is no UTF-8, ``audited`` that the last two headers are postdate's, ``stripped`` that they were left
    out; ``size`` is what its claim's payload has in bytes."""

    __slots__ = ("audited", "claim", "headers", "key", "odd", "size", "stripped", "timestamp", "value")

    def __init__(self, claim: Letter, record: Record, out: KafkaOut, keep_timestamp: bool) -> None:
        self.claim = claim
        self.size = len(claim.payload)
        self.key = record.key
        self.value = record.value
        self.timestamp = record.timestamp if keep_timestamp else None
        self.odd = False
        drop = out.drop
        headers: list[tuple[Any, bytes | None]]
        try:
            headers = [(name.decode(), content) for name, content in record.headers if name not in drop]
        except UnicodeDecodeError:
            headers = [(_name(name), content) for name, content in record.headers if name not in drop]
            self.odd = True
        self.audited, self.stripped = out.audit, False
        if out.audit:
            headers.append((ID_HEADER, claim.public_id))
            headers.append((DUE_HEADER, b"%d" % claim.due_ms))
        self.headers = headers

    def strip(self) -> None:
        """Leave out the audit headers."""
        self.audited, self.stripped = False, True
        del self.headers[-2:]


def _name(raw: bytes) -> str | OddName:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return OddName(raw)
