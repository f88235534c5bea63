"""What a failed record tells of its failures, and where it goes next. Pure.

An error handler writes the record to a retry route's intake topic. It copies the record's headers, and with them those
that postdate wrote when it returned the record before. Kafka does not tell who wrote a header. So the intake believes
only a state with postdate's signature (``bridge.delay.seal``), and drops any other before the record is parked. Most
handlers add headers of their own about the exception: Spring Kafka ``kafka_dlt-…`` (``KafkaHeaders``), Kafka Connect
``__connect.errors.…`` (``DeadLetterQueueReporter``). A broker adds ``__dlq.errors.…`` to what a share group gives up
(``pointers.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.kafka.pointers import OFFSET
from adapters.kafka.raw.record import Header
from adapters.kafka.routing import Router
from bridge.core.message import Failure, Refusal
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.header import OWN_HEADERS
from bridge.delay.seal import SIGNATURE, Seal

ATTEMPT = "x-retry-attempt"
REASON = "x-retry-reason"
FIRST = "x-retry-first-failed"
ID = "x-retry-id"
_OURS = frozenset(name.encode() for name in (ATTEMPT, REASON, FIRST, ID, SIGNATURE))
_DELAYS = frozenset(name.encode() for name in OWN_HEADERS)
#: The beginnings of the names of headers that error handlers add.
_HANDLERS = (b"kafka_dlt-", b"__connect.errors.", b"__dlq.errors.")
#: The exception's class, the most telling name first, and its message.
_CLASSES = (
    b"kafka_dlt-exception-cause-fqcn",
    b"kafka_dlt-exception-fqcn",
    b"__connect.errors.exception.class.name",
)
_MESSAGES = (b"kafka_dlt-exception-message", b"__connect.errors.exception.message", b"__dlq.errors.message")
_READ = frozenset((*_OURS, *_CLASSES, *_MESSAGES))
_REASON_MAX = 255
_ID_MAX = 64
_ATTEMPT_DIGITS, _MOMENT_DIGITS = 6, 15


def read_failure(headers: Iterable[Header]) -> Failure:
    """Return the number of this failure, its reason, and the first one. If a header repeats, the last one counts.

    A record without a readable number of attempts has failed for the first time.
    """
    found = {name: value for name, value in headers if name in _READ and value is not None}
    attempt = _number(found.get(ATTEMPT.encode()), _ATTEMPT_DIGITS) or 0
    first_ms = _number(found.get(FIRST.encode()), _MOMENT_DIGITS) if attempt else None
    own_id = found.get(ID.encode(), b"") if attempt else b""
    return Failure(attempt + 1, _reason(found), first_ms, own_id if len(own_id) <= _ID_MAX else b"")


def believed(headers: list[Header], seal: Seal | None) -> tuple[Failure, list[Header]]:
    """Return how a record failed, and its headers without a state that postdate did not write."""
    own = {name: value for name, value in headers if name in _OURS}
    if not own or seal is None:
        return read_failure(headers), headers
    attempt = _number(own.get(ATTEMPT.encode()), _ATTEMPT_DIGITS)
    first_ms = _number(own.get(FIRST.encode()), _MOMENT_DIGITS)
    own_id, signature = own.get(ID.encode()) or b"", own.get(SIGNATURE.encode()) or b""
    if attempt is None or first_ms is None or not seal.fits(own_id, attempt, first_ms, signature):
        headers = [header for header in headers if header[0] not in _OURS]
    return read_failure(headers), headers


def _number(text: bytes | None, digits: int) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= digits else None


def _reason(found: Mapping[bytes, bytes]) -> str:
    parts = [next((found[name] for name in names if name in found), b"") for names in (_CLASSES, _MESSAGES)]
    text = ": ".join(part.decode(errors="replace") for part in parts if part)
    return text.encode()[:_REASON_MAX].decode(errors="ignore")


@dataclass(frozen=True)
class Returns:
    """How a retry route's records leave. ``attempts``: how often a record returns. ``then``: the topic that gets it
    after that; "" if it becomes a dead letter. ``seal`` signs the state of what returns."""

    attempts: int
    then: str = ""
    seal: Seal | None = None

    def is_over(self, failure: Failure) -> bool:
        """Return whether the record leaves the schedule for ``then``."""
        return bool(self.then) and failure.attempt > self.attempts

    def drops(self, name: bytes, failure: Failure) -> bool:
        """Return whether a header stays behind. A record that leaves the schedule keeps what handlers say of it, and
        loses its delay headers: they would delay it again, or cancel another record."""
        return name in _OURS or (name in _DELAYS if self.is_over(failure) else name.startswith(_HANDLERS))

    def added(self, failure: Failure, arrived_ms: int, public_id: bytes) -> list[tuple[str, bytes]]:
        """Return the headers that describe a failure, which reached postdate at ``arrived_ms`` and got that id."""
        first_ms = arrived_ms if failure.first_ms is None else failure.first_ms
        own_id = failure.id or public_id
        headers = [
            (ATTEMPT, b"%d" % failure.attempt),
            (REASON, failure.reason.encode()),
            (FIRST, b"%d" % first_ms),
            (ID, own_id),
        ]
        if self.seal is not None:
            headers.append((SIGNATURE, self.seal.sign(own_id, failure.attempt, first_ms)))
        return headers


_UNRESOLVED = Refusal(
    Reason(ReasonKind.UNREADABLE, "it points at a record that postdate could not fetch. Publish that record again"),
    lasting=True,
)


class RetryRouter:
    """Chooses the targets of a retry route. No header of a record does: it belongs to the consumers."""

    def __init__(self, router: Router, returns: Returns) -> None:
        self._router = router
        self._returns = returns

    def target(self, topic: bytes, headers: Sequence[Header]) -> str | Refusal:
        """The target of a record, or why it has none. A pointer that was never resolved has no content to return."""
        if any(name == OFFSET for name, _ in headers):
            return _UNRESOLVED
        if self._returns.then and self._returns.is_over(read_failure(headers)):
            return self._returns.then
        return self._router.target(topic, ())
