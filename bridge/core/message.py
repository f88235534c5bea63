"""What moves through the house: a delivery comes in, is parked, claimed, and has an outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class Timestamp(NamedTuple):
    """A header value of AMQP's timestamp type: whole seconds since 1970, UTC (AMQP 0-9-1, section 4.2.5.4)."""

    seconds: int


class Unreadable(NamedTuple):
    """A header value that can be no moment, whatever it holds: a table, an array, an unknown type.

    ``kind`` is a word for the reason text: "a table", "an array", "a value of unknown type '?'".
    """

    kind: str


#: What a source hands over as the value of a delay header, already freed of the broker's own encoding.
HeaderValue = int | float | str | bytes | bool | None | Timestamp | Unreadable


#: Where a record stands in a log that can be read again: the name of the log and the offset in it. Offsets rise, with
#: gaps; below the next one that is new the store takes nothing of that name again. So a log that begins anew (a topic
#: that was deleted and made again) needs another name, or its records would count as parked. A name has no NUL.
Origin = tuple[bytes, int]


@dataclass(slots=True)
class Delivery:
    """One message as a source hands it over, not yet accepted.

    ``tag`` is the source's own handle to accept it; ``payload`` is opaque to the house and only the same
    broker's sink reads it; ``order_key`` is the RabbitMQ routing key or the Kafka key; ``headers`` holds only
    the headers that the route's dialects name; ``arrived_ms`` is Unix milliseconds by the store's clock; ``fault`` says
    why the source could not read the headers at all; ``digest`` is 8 bytes that a redelivery of the message repeats;
    ``origin`` is None where the broker names no message. A source gives one to all its deliveries or to none, those of
    one log with rising offsets and with one ``order_key``; it leaves none out that it has not accepted. ``tombstone``
    says that it ends its ``message_id``: it cancels what waits under that, unless it is to be delivered later itself.
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
    tombstone: bool = False


@dataclass(slots=True)
class Claim:
    """A parked message that this instance has taken until its lease ends.

    ``due_ms`` and ``lease_ends`` differ in their clocks: due is Unix milliseconds by the store's clock, the lease's
    end is this process's monotonic seconds, so that no clock jump can make a dead lease look alive.
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


def unopened(message_id: bytes, shard: int, token: bytes, lease_ends: float) -> Claim:
    """A claim of which nothing but the identity can be read."""
    return Claim(message_id, shard, token, 0, 0, 0, "", b"", b"", message_id, lease_ends)


class Outcome(Enum):
    """What became of one publish. UNKNOWN: it was sent and no answer came, so it may have arrived."""

    CONFIRMED = "confirmed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


#: The reason of a refusal for want of a route.
NO_ROUTE = "no_route"
_NO_ROUTE_MS = 5000


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a broker would not take a message. ``lasting``: another try cannot help, bury at once. ``again_ms``: it was
    not tried at all, so this counts no try and it is looked at again after so long."""

    reason: str
    text: str
    lasting: bool = False
    again_ms: int | None = None


def no_route(route: str) -> Refusal:
    """Its route is not in the settings here; perhaps in another instance's, while they are changed one by one."""
    return Refusal(NO_ROUTE, f"the settings of this instance have no route '{route}'", again_ms=_NO_ROUTE_MS)
