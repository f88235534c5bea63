"""Why a message was refused, or became a dead letter: a kind, our sentence, and what it says of this one message.

The log groups messages by ``Reason.cause``. The store and the commands have the text, ``str(reason)``. A reason is made
only for a message that is not delivered, so it costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReasonKind(StrEnum):
    """The first word of a reason. Users filter by it (`postdate list --reason WORD`)."""

    # of a message as it arrives
    BAD_HEADER = "bad_header"
    EXHAUSTED = "exhausted"
    FULL = "full"
    LONG_KEY = "long_key"
    NOT_ALLOWED = "not_allowed"
    NOT_POSSIBLE = "not_possible"
    NOT_UNIQUE = "not_unique"
    OVERDUE = "overdue"
    PARKED_BEFORE = "parked_before"
    SAME_KEY = "same_key"
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    # of a message as it leaves
    BAD_TARGET = "bad_target"
    BAD_TIMESTAMP = "bad_timestamp"
    EARLY = "early"
    FEW_REPLICAS = "few_replicas"
    FORBIDDEN = "forbidden"
    LOOP = "loop"
    MISSING_EXCHANGE = "missing_exchange"
    MISSING_TOPIC = "missing_topic"
    NACKED = "nacked"
    NO_LEADER = "no_leader"
    NO_ROUTE = "no_route"
    NO_TARGET = "no_target"
    NOT_KNOWN = "not_known"
    REJECTED = "rejected"
    UNROUTABLE = "unroutable"


#: The kinds for which a message becomes a dead letter as it arrives.
ARRIVAL_KINDS = (
    ReasonKind.BAD_HEADER,
    ReasonKind.EXHAUSTED,
    ReasonKind.FULL,
    ReasonKind.LONG_KEY,
    ReasonKind.NOT_ALLOWED,
    ReasonKind.NOT_POSSIBLE,
    ReasonKind.NOT_UNIQUE,
    ReasonKind.SAME_KEY,
    ReasonKind.TOO_LARGE,
    ReasonKind.UNREADABLE,
)
#: The kinds of a target that is not there. Such a reason is about no single message.
MISSING_TARGET = frozenset({ReasonKind.MISSING_EXCHANGE, ReasonKind.MISSING_TOPIC})


@dataclass(slots=True, frozen=True)
class Reason:
    """``text`` is a template for ``str.format``, and ``values`` are the message's own.

    The template is ours alone: a name, a number, or a broker's text goes into ``values``.
    """

    kind: ReasonKind
    text: str
    values: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def cause(self) -> tuple[ReasonKind, str]:
        """What this reason has in common with those of other messages."""
        return self.kind, self.text

    @property
    def sentence(self) -> str:
        """The text with the values."""
        return self.text.format_map(self.values)

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


def bad_headers(fault: str) -> Reason:
    """Return the reason for headers that the source could not read. ``fault`` is a sentence of the adapter's."""
    return Reason(ReasonKind.BAD_HEADER, "{fault}", {"fault": fault})


def over_body_max(size: int, body_max: int) -> Reason:
    """Return the reason for a message above ``limits.max_body``."""
    text = "it has {size} bytes and limits.max_body is {body_max}"
    return Reason(ReasonKind.TOO_LARGE, text, {"size": size, "body_max": body_max})


def unreadable(error: ValueError) -> Reason:
    """Return the reason for a message whose bytes cannot be read."""
    return Reason(ReasonKind.UNREADABLE, "{error}", {"error": str(error)})
