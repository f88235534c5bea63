"""Stored messages as operators see them: a row, and the filter of a list."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bridge.core.orders import HELD_MS
from bridge.core.state import State
from bridge.parking.envelope import UnopenedEnvelope, plain_key, unseal

#: A list reads this much of a payload: enough for the routing key, which comes first, and usually for a record's key.
HEAD_BYTES = 1024


class Cursor(NamedTuple):
    """A place in a list: the ``at_ms`` and the id of its last message."""

    at_ms: int
    id: bytes


class Answer(StrEnum):
    """The state in which a command found a message. ``NONE``: there is no message with this id."""

    PARKED = "parked"
    CLAIMED = "claimed"
    DEAD = "dead"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages to list; None does not restrict.

    Moments are Unix milliseconds by the store's clock, the first inclusive and the second exclusive. A parked
    message counts with the moment of its next try. ``reason`` is the start of the reason.
    """

    route: str | None = None
    key: bytes | None = None
    due_from_ms: int | None = None
    due_before_ms: int | None = None
    reason: str | None = None
    min_size: int = 0
    min_tries: int = 0
    parked_from_ms: int | None = None
    parked_before_ms: int | None = None

    @property
    def narrow(self) -> Filter:
        """The same moments without the criteria for which every message must be read."""
        return Filter(due_from_ms=self.due_from_ms, due_before_ms=self.due_before_ms)

    def takes(self, row: Row) -> bool:
        """Return whether a message matches."""
        due_ms = row.at_ms if row.state is State.PARKED else row.due_ms
        return (
            (self.route is None or row.route == self.route)
            and (self.key is None or row.key == self.key)
            and (self.due_from_ms is None or due_ms >= self.due_from_ms)
            and (self.due_before_ms is None or due_ms < self.due_before_ms)
            and (self.reason is None or row.reason.startswith(self.reason))
            and row.size >= self.min_size
            and row.tries >= self.min_tries
            and (self.parked_from_ms is None or row.arrived_ms >= self.parked_from_ms)
            and (self.parked_before_ms is None or row.arrived_ms < self.parked_before_ms)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a person sees it.

    ``at_ms`` depends on the state. Parked: the next try, or the due moment if it is ``held``, because its route is
    paused, at its rate or missing. Claimed: the end of the lease, 0 if unknown. Dead: when it died. ``size`` is the
    payload's size in bytes, and ``payload`` holds as many of them as were asked for.
    ``reason`` is the last reason why it was not delivered. ``first`` is the id of the first copy of a redelivered one.
    ``cold``: it waits in the journal alone. ``broker`` tells how to read the payload. It is "" for an envelope that
    cannot be opened: then route and key are empty too, and the payload is the whole envelope.
    """

    id: bytes
    state: State
    at_ms: int
    due_ms: int
    arrived_ms: int
    tries: int
    route: str
    key: bytes
    first: bytes
    size: int
    payload: bytes
    reason: str
    broker: str
    held: bool = False
    cold: bool = False


class Stored(NamedTuple):
    """A message with all of its payload, and its envelope as the store keeps it."""

    row: Row
    envelope: bytes


def row_of(broker: str, message_id: bytes, state: State, at_ms: int, size: int, head: bytes, reason: str) -> Row:
    """Return a message as a row. ``head`` is the start of its envelope, which has ``size`` bytes. Pure."""
    held = state is State.PARKED and at_ms >= HELD_MS
    at_ms -= HELD_MS if held else 0
    try:
        envelope = unseal(head)
    except UnopenedEnvelope as error:
        return Row(message_id, state, at_ms, at_ms, 0, 0, "", b"", b"", size, head, reason or str(error), "", held)
    due_ms, tries, arrived_ms, route, key, first, payload, _ = envelope
    payload_size = size - (len(head) - len(payload))
    key = plain_key(key)
    return Row(
        message_id,
        state,
        at_ms,
        due_ms,
        arrived_ms,
        tries,
        route,
        key,
        b"" if first == message_id else first,  # the mark of a message that was cold
        payload_size,
        payload,
        reason,
        broker,
        held,
    )
