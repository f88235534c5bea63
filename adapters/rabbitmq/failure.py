"""Reads from a dead-lettered message how its consumers failed, and says how it returns to them. Pure.

RabbitMQ describes each dead-lettering in the header ``x-death``, an array of tables with the newest first (3.10 and
4.3, quorum and classic queues). It names the queue, the reason, the exchange and routing key of the last publish, and
the expiration that RabbitMQ took off. Source and sink read the same bytes, so the store keeps nothing beside them.

Producers can write all of these headers, and RabbitMQ 3 keeps what they wrote in ``x-death``. So the intake believes
only a state with postdate's signature (``bridge.delay.seal``), and drops any other before the message is parked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from adapters.rabbitmq.raw import fields
from adapters.rabbitmq.raw.expiration import X_DEATH, Death, deaths, is_expiration
from adapters.rabbitmq.raw.properties import locate
from bridge.core.message import Failure
from bridge.delay.seal import SIGNATURE, Seal
from bridge.settings import Settings
from bridge.settings.own_names import BACK

_ATTEMPT = b"x-retry-attempt"
_REASON = b"x-retry-reason"
_FIRST_FAILED = b"x-retry-first-failed"
_ID = b"x-retry-id"
_SIGNATURE = SIGNATURE.encode()
#: What postdate adds to a message that returns.
RETRY_HEADERS = frozenset({_ATTEMPT, _REASON, _FIRST_FAILED, _ID, _SIGNATURE})
_READ = RETRY_HEADERS | {X_DEATH}
_REASON_MAX = 255
_ID_MAX = 64
#: Above it, an attempt is no number of ours: a year of retries each millisecond stays below.
_ATTEMPT_MAX = 2**36
#: The year 10000.
_MOMENT_MAX_MS = 253_402_300_800_000
#: What becomes of rejected messages without an intake queue, and what became of them.
FAILED_GONE = "RabbitMQ drops rejected messages, except from queues with at-least-once dead-lettering, which keep them"
FAILED_LOST = "RabbitMQ dropped rejected messages, except from queues with at-least-once dead-lettering"


def back_exchange(intake: str) -> str:
    """Return the name of the exchange that leads back to the consumers' queue alone."""
    return f"{intake}.{BACK}"


@dataclass(frozen=True)
class FailingQueue:
    """The consumers' queue of a retry route, and the exchange by which postdate returns messages to it.

    ``seal`` checks what arrives; None for what postdate has parked.
    """

    queue: bytes
    back: bytes
    seal: Seal | None = None


class Rejected(NamedTuple):
    """A message that came back from its consumers.

    ``routing_key`` is the producer's; None where RabbitMQ recorded none. ``expiration`` is what RabbitMQ took off; b""
    for nothing. ``forged``: it has retry headers that postdate did not write.
    """

    failure: Failure
    routing_key: bytes | None
    expiration: bytes
    forged: bool = False


def read_rejected(props: bytes, failing: FailingQueue, entries_max: int | None = None) -> Rejected:
    """Read a failure. Raises UnreadableTable, and TooManyEntries above ``entries_max``.

    ``x-retry-attempt`` counts only with postdate's signature, and if postdate published the message to this queue: its
    newest death there names the exchange ``back``. Otherwise a producer wrote the header, or a consumer published the
    message once more with it, or another route wrote it. Then this is the first failure.
    """
    shape, starts = locate(props)
    if shape.headers < 0:
        return Rejected(Failure(1), None, b"")
    found: dict[bytes, fields.Field] = {}
    for field in fields.entries(props, starts[shape.headers] + 4, starts[shape.headers + 1], entries_max):
        if field[0] in _READ:
            found.setdefault(field[0], field)
    died = [*deaths(props, found.get(X_DEATH)), Death({}, None)]
    here = next((death for death in died if death.texts.get(b"queue") == failing.queue), None)
    death = here or died[0]
    attempt = _number(props, found.get(_ATTEMPT), 1, _ATTEMPT_MAX)
    first_ms = _number(props, found.get(_FIRST_FAILED), 0, _MOMENT_MAX_MS)
    own_id, signature = _text(props, found.get(_ID), _ID_MAX), _text(props, found.get(_SIGNATURE), _ID_MAX)
    forged = False
    if failing.seal is not None and found.keys() & RETRY_HEADERS:
        forged = attempt is None or first_ms is None or not failing.seal.fits(own_id, attempt, first_ms, signature)
    returned_here = here is not None and here.texts.get(b"exchange") == failing.back
    if attempt is None or forged or not returned_here:
        attempt, first_ms, own_id = 0, None, b""
    reason = death.texts.get(b"reason", b"")[:_REASON_MAX].decode(errors="ignore")
    expiration = here.texts.get(b"original-expiration", b"") if here is not None else b""
    failure = Failure(attempt + 1, reason, first_ms, own_id)
    return Rejected(failure, death.routing_key, expiration if is_expiration(expiration) else b"", forged)


def retry_entries(failure: Failure, arrived_ms: int, public_id: bytes, seal: Seal | None = None) -> bytes:
    """Return the header entries that describe a failure, which reached postdate at ``arrived_ms`` and got that id."""
    first_ms = arrived_ms if failure.first_ms is None else failure.first_ms
    own_id = failure.id or public_id
    written = fields.long_entry(_ATTEMPT, failure.attempt) + fields.text_entry(_REASON, failure.reason.encode())
    written += fields.long_entry(_FIRST_FAILED, first_ms) + fields.text_entry(_ID, own_id)
    if seal is not None:
        written += fields.text_entry(_SIGNATURE, seal.sign(own_id, failure.attempt, first_ms))
    return written


def _text(props: bytes, field: fields.Field | None, most: int) -> bytes:
    """Return a text of at most ``most`` bytes; b"" for any other value."""
    if field is None:
        return b""
    _, tag, value, end, _ = field
    return props[value + 4 : end] if tag == fields.TEXT and end - value - 4 <= most else b""


def _number(props: bytes, field: fields.Field | None, least: int, below: int) -> int | None:
    """Return a whole number within these bounds; None for any other value."""
    if field is None:
        return None
    _, tag, value, end, _ = field
    found = fields.read_value(tag, props[value:end])
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if least <= found < below else None


def failing_queue(settings: Settings, name: str) -> FailingQueue:
    """Return the consumers' queue of a retry route."""
    return FailingQueue(settings.routes[name].queue.encode(), back_exchange(settings.queue_of(name)).encode())
