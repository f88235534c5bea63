"""Turns a letter into the outgoing record: the producer's record without delay headers, with audit headers. Pure.

These headers are all that differs between what a producer sent and what a consumer gets, besides the timestamp
(``kafka.timestamp``) and the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

from adapters.kafka.failure import Returns, read_failure
from adapters.kafka.raw.record import Header, Record
from adapters.kafka.routing import Target
from bridge.core.ports import L, Letter
from bridge.settings import Partitioner

ID_HEADER = "x-delay-id"
DUE_HEADER = "x-delay-due"
#: Dropped before they are added. Otherwise a record that a consumer forwards with its headers would have them twice.
AUDIT_HEADERS = frozenset({ID_HEADER.encode(), DUE_HEADER.encode()})


class OddName:
    """A header name that is not UTF-8. Kafka's brokers accept it; aiokafka writes only text."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self, encoding: str) -> bytes:
        """The raw name, whatever the encoding."""
        return self._raw


@dataclass(frozen=True)
class KafkaOut:
    """How a route's records leave: the topic, the headers to drop, and whether to add the audit headers.

    ``partitioner``: None for ``kafka.partitioner``. ``headers_max`` bounds the headers of a record; None for no bound.
    ``compress_always``: compress a record that is too large, whatever its size. Dead letters need that, because there
    is no other place for them. ``transactional``: records leave in transactions. ``returns``: of a retry route.
    """

    target: Target
    drop: frozenset[bytes]
    audit: bool
    partitioner: Partitioner | None = None
    headers_max: int | None = None
    compress_always: bool = False
    transactional: bool = False
    returns: Returns | None = None


class OutgoingRecord(Generic[L]):
    """One record on its way out. ``timestamp`` is Unix milliseconds, None for the send time.

    ``odd``: a header name is not UTF-8. ``audited``: the last two headers are postdate's. ``stripped``: they were
    left out. ``size`` is the size of the letter's payload in bytes.
    """

    __slots__ = (
        "audited",
        "compress_always",
        "headers",
        "key",
        "letter",
        "odd",
        "size",
        "stripped",
        "timestamp",
        "value",
    )

    def __init__(self, letter: L, record: Record, out: KafkaOut, keep_timestamp: bool) -> None:
        self.letter = letter
        self.size = len(letter.payload)
        self.key = record.key
        self.value = record.value
        self.timestamp = record.timestamp if keep_timestamp else None
        self.odd = False
        self.compress_always = out.compress_always
        drop, kept = out.drop, record.headers
        retried: list[tuple[str, bytes]] = []
        if out.returns is not None:
            kept, retried = _returned(out.returns, record.headers, letter)
        headers: list[tuple[Any, bytes | None]]
        try:
            headers = [(name.decode(), content) for name, content in kept if name not in drop]
        except UnicodeDecodeError:
            headers = [(_name(name), content) for name, content in kept if name not in drop]
            self.odd = True
        headers += retried
        self.audited, self.stripped = out.audit, False
        if out.audit:
            headers.append((ID_HEADER, letter.public_id))
            headers.append((DUE_HEADER, b"%d" % letter.due_ms))
        self.headers = headers

    def strip(self) -> None:
        """Remove the audit headers."""
        self.audited, self.stripped = False, True
        del self.headers[-2:]


def _returned(
    returns: Returns, headers: Sequence[Header], letter: Letter
) -> tuple[list[Header], list[tuple[str, bytes]]]:
    """Return what a returned record keeps of its headers, and what it gets."""
    failure = read_failure(headers)
    kept = [header for header in headers if not returns.drops(header[0], failure)]
    return kept, returns.added(failure, letter.arrived_ms, letter.public_id)


def _name(raw: bytes) -> str | OddName:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return OddName(raw)
