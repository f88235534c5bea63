"""Reads from a dead-lettered message how its consumers failed, and says how it returns to them. Pure.

RabbitMQ describes each dead-lettering in the header ``x-death``, an array of tables with the newest first (3.10 and
4.3, quorum and classic queues). It names the queue, the reason, the exchange and routing key of the last publish, and
the expiration that RabbitMQ took off. Source and sink read the same bytes, so the store keeps nothing beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from adapters.rabbitmq.raw.expiration import is_expiration
from adapters.rabbitmq.raw.fields import (
    ARRAY,
    TABLE,
    TEXT,
    Field,
    entries,
    long_entry,
    read_value,
    text_entry,
    walk,
    walk_array,
)
from adapters.rabbitmq.raw.properties import locate
from bridge.core.message import Failure
from bridge.settings.own_names import BACK

_ATTEMPT = b"x-retry-attempt"
_REASON = b"x-retry-reason"
_FIRST_FAILED = b"x-retry-first-failed"
#: What postdate adds to a message that returns.
RETRY_HEADERS = frozenset({_ATTEMPT, _REASON, _FIRST_FAILED})
_X_DEATH = b"x-death"
_READ = RETRY_HEADERS | {_X_DEATH}
_REASON_MAX = 255
#: Above it, an attempt is no number of ours: a year of retries each millisecond stays below.
_ATTEMPT_MAX = 2**36
#: The year 10000.
_MOMENT_MAX_MS = 253_402_300_800_000
_ROUTING_KEY_MAX = 255


def back_exchange(intake: str) -> str:
    """Return the name of the exchange that leads back to the consumers' queue alone."""
    return f"{intake}.{BACK}"


@dataclass(frozen=True)
class FailingQueue:
    """The consumers' queue of a retry route, and the exchange by which postdate returns messages to it."""

    queue: bytes
    back: bytes


class Rejected(NamedTuple):
    """A message that came back from its consumers.

    ``routing_key`` is the producer's; None where RabbitMQ recorded none. ``expiration`` is what RabbitMQ took off; b""
    for nothing.
    """

    failure: Failure
    routing_key: bytes | None
    expiration: bytes


def read_rejected(props: bytes, failing: FailingQueue, entries_max: int | None = None) -> Rejected:
    """Read a failure. Raises UnreadableTable, and TooManyEntries above ``entries_max``.

    ``x-retry-attempt`` counts only if postdate published the message to this queue: its newest death there names the
    exchange ``back``. Otherwise a producer wrote the header, or a consumer published the message once more with it, or
    another route wrote it. Then this is the first failure.
    """
    shape, starts = locate(props)
    if shape.headers < 0:
        return Rejected(Failure(1), None, b"")
    found: dict[bytes, Field] = {}
    for field in entries(props, starts[shape.headers] + 4, starts[shape.headers + 1], entries_max):
        if field[0] in _READ:
            found.setdefault(field[0], field)
    deaths = _deaths(props, found[_X_DEATH]) if _X_DEATH in found else []
    here = next((one for one in deaths if one.texts.get(b"queue") == failing.queue), None)
    death = here or (deaths[0] if deaths else _Death({}, None))
    attempt, first_ms = 1, None
    if here is not None and here.texts.get(b"exchange") == failing.back:
        returned = _number(props, found.get(_ATTEMPT), 1, _ATTEMPT_MAX)
        if returned is not None:
            attempt, first_ms = returned + 1, _number(props, found.get(_FIRST_FAILED), 0, _MOMENT_MAX_MS)
    reason = death.texts.get(b"reason", b"")[:_REASON_MAX].decode(errors="ignore")
    expiration = here.texts.get(b"original-expiration", b"") if here is not None else b""
    failure = Failure(attempt, reason, first_ms)
    return Rejected(failure, death.routing_key, expiration if is_expiration(expiration) else b"")


def retry_entries(failure: Failure, arrived_ms: int) -> bytes:
    """Return the header entries that describe a failure. ``arrived_ms``: when it reached postdate."""
    first_ms = arrived_ms if failure.first_ms is None else failure.first_ms
    reason = text_entry(_REASON, failure.reason.encode())
    return long_entry(_ATTEMPT, failure.attempt) + reason + long_entry(_FIRST_FAILED, first_ms)


class _Death(NamedTuple):
    """The texts of a table in x-death, and the first of its routing keys."""

    texts: Mapping[bytes, bytes]
    routing_key: bytes | None


def _deaths(props: bytes, field: Field) -> list[_Death]:
    _, tag, value, end, _ = field
    if tag != ARRAY:
        return []
    return [_death(props, start + 4, stop) for kind, start, stop in walk_array(props, value + 4, end) if kind == TABLE]


def _death(props: bytes, start: int, end: int) -> _Death:
    texts: dict[bytes, bytes] = {}
    routing_key = None
    for name, tag, value, stop, _ in walk(props, start, end):
        if tag == TEXT:
            texts[name] = props[value + 4 : stop]
        elif name == b"routing-keys" and tag == ARRAY:
            first = next(walk_array(props, value + 4, stop), None)
            if first is not None and first[0] == TEXT and first[2] - first[1] - 4 <= _ROUTING_KEY_MAX:
                routing_key = props[first[1] + 4 : first[2]]
    return _Death(texts, routing_key)


def _number(props: bytes, field: Field | None, least: int, below: int) -> int | None:
    """Return a whole number within these bounds; None for any other value."""
    if field is None:
        return None
    _, tag, value, end, _ = field
    found = read_value(tag, props[value:end])
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if least <= found < below else None
