"""What moves through the pipeline: a delivery comes in, is parked, is claimed, and has an outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from bridge.core.reasons import Reason, ReasonKind


class Timestamp(NamedTuple):
    """A header value of AMQP's timestamp type: whole seconds since 1970, UTC (AMQP 0-9-1, section 4.2.5.4)."""

    seconds: int


class Unreadable(NamedTuple):
    """A header value of a type that cannot be a moment: a table, an array, an unknown type.

    ``kind`` is its name in the reason: "a table", "an array", "a value of unknown type '?'".
    """

    kind: str


#: The value of a delay header as a source hands it over, decoded from the broker's own format.
HeaderValue = int | float | str | bytes | bool | None | Timestamp | Unreadable


#: The position of a record in a log that can be read again: the name of the log and the offset. Offsets rise, with
#: gaps. The store takes nothing below the next new offset of a name. So a log that starts over (a topic that was
#: deleted and recreated) needs another name, or its records would count as parked. A name has no NUL.
Origin = tuple[bytes, int]


class Failure(NamedTuple):
    """What a source reads of a message that a consumer rejected.

    ``attempt``: the number of this failure, from 1. ``reason``: in the broker's or the error handler's words.
    ``first_ms``: the first failure, Unix milliseconds; None if this is the first one. ``id``: the id of the message
    over all its attempts; b"" if this is the first failure, whose own id it gets.
    """

    attempt: int
    reason: str = ""
    first_ms: int | None = None
    id: bytes = b""


@dataclass(slots=True)
class Delivery:
    """One message as a source hands it over, not yet accepted.

    ``tag``: the source's own handle to accept it. ``payload``: opaque here, only the same broker's sink reads it.
    ``order_key``: messages with the same one keep their order: a RabbitMQ routing key, or topic/partition on Kafka.
    ``headers``: only those that the route's dialects name. ``arrived_ms``: Unix milliseconds by the store's clock.
    ``fault``: why the source could not read the headers. ``digest``: 8 bytes that a redelivery of the message repeats.
    ``tombstone``: it cancels what waits under its ``message_id``, unless it has a delay itself.
    ``failure`` is set on retry routes only. ``priority``: where the route has priorities.

    ``origin`` is None where the broker does not number messages. A source gives an origin to all its deliveries or to
    none. Those of one log have rising offsets and one ``order_key``, and none is left out that was not accepted.
    ``record_key``: the key of a record in its log.
    """

    tag: Any
    route: str
    payload: bytes
    order_key: bytes
    headers: dict[str, HeaderValue]
    arrived_ms: int
    published_ms: int | None = None
    message_id: bytes | None = None
    redelivered: bool = False
    fault: str = ""
    digest: bytes = bytes(8)
    origin: Origin | None = None
    record_key: bytes | None = None
    tombstone: bool = False
    failure: Failure | None = None
    priority: int | None = None


@dataclass(slots=True)
class Claim:
    """A parked message that this instance has taken until its lease expires.

    Two clocks: ``due_ms`` is Unix milliseconds by the store's clock, as are ``claimed_ms`` (the store's answer to the
    claim), ``published_ms`` (the publisher's pass) and ``let_go_ms`` (the end of a hold by a pause or by ``max_rate``;
    0 without one). ``lease_ends`` is monotonic seconds of this process, so that no step of a clock makes an expired
    lease look valid; so is ``sent_s``, when it was published, 0 before that and once it is answered. ``reached`` has a
    bit for each of several destinations that confirmed the message.
    """

    id: bytes
    shard: int
    token: bytes
    due_ms: int
    arrived_ms: int
    tries: int
    route: str
    key: bytes
    payload: bytes
    public_id: bytes
    lease_ends: float
    claimed_ms: int = 0
    published_ms: int = 0
    reached: int = 0
    let_go_ms: int = 0
    sent_s: float = 0.0

    @property
    def late_from_ms(self) -> int:
        """From when lateness counts: the due moment, or the end of a hold."""
        return self.due_ms if self.let_go_ms <= self.due_ms else self.let_go_ms


def unopened(message_id: bytes, shard: int, token: bytes, lease_ends: float) -> Claim:
    """Return a claim of a message of which only the identity can be read."""
    return Claim(message_id, shard, token, 0, 0, 0, "", b"", b"", message_id, lease_ends)


class Outcome(Enum):
    """What became of one publish. UNKNOWN: sent without an answer, so the message may have arrived."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


_NO_ROUTE_MS = 5000


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a broker did not take a message. ``lasting``: another try cannot help, so bury it at once.

    ``again_ms``: it was not tried at all. That counts no try, and it is published again after this time.
    """

    reason: Reason
    lasting: bool = False
    again_ms: int | None = None


def no_route(route: str) -> Refusal:
    """Return the refusal of a message whose route this instance lacks. Another instance may have it."""
    text = "the settings of this instance have no route '{route}'"
    return Refusal(Reason(ReasonKind.NO_ROUTE, text, {"route": route}), again_ms=_NO_ROUTE_MS)
