"""What a store remembers beside the messages it holds: the history, counts of deliveries, the audit log.

``PastDesk`` is this part of the protocol ``Desk``. Pure functions sum up the counts for charts and percentiles.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Protocol

from bridge.core.journal import FlowRow
from bridge.core.orders import Actor
from bridge.parking.history import HistoryLimits, HistoryRow, PastState
from bridge.telemetry.lateness import LATENESS_BOUNDS_MS

#: Deliveries are counted in slots of 30 s, which are kept for 26 h, and in slots of an hour, kept for 8 days.
SLOT_MS, SLOT_KEPT_MS = 30_000, 26 * 3_600_000
HOUR_MS, HOUR_KEPT_MS = 3_600_000, 8 * 24 * 3_600_000
#: Classes of lateness: up to each bound, and more.
PLACES = len(LATENESS_BOUNDS_MS) + 1
#: The audit log keeps about this many entries.
AUDIT_MAX = 10_000

#: Bounds of the classes that a chart shows: on time, up to a second late, up to ten, more.
_COARSE_MS = (100, 1000, 10_000)


@dataclass(frozen=True, slots=True)
class PastFilter:
    """Which entries of the history to list; None does not restrict.

    ``from_ms`` (inclusive) and ``before_ms`` (exclusive) are about ``HistoryRow.ended_ms``. ``reason`` is the start of
    the reason.
    """

    route: str | None = None
    key: bytes | None = None
    id: bytes | None = None
    state: PastState | None = None
    from_ms: int | None = None
    before_ms: int | None = None
    reason: str | None = None

    def takes(self, row: HistoryRow) -> bool:
        """Return whether an entry matches."""
        return (
            (self.route is None or row.route == self.route)
            and (self.key is None or row.key == self.key)
            and (self.id is None or row.id == self.id)
            and (self.state is None or row.state is self.state)
            and (self.from_ms is None or row.ended_ms >= self.from_ms)
            and (self.before_ms is None or row.ended_ms < self.before_ms)
            and (self.reason is None or row.reason.startswith(self.reason))
        )


class PastCursor(NamedTuple):
    """The last entry of a page. The history is listed by ``ended_ms`` descending, then by id."""

    ended_ms: int
    id: bytes


def newest_first(row: HistoryRow) -> tuple[int, bytes]:
    """Return the sort key of an entry."""
    return -row.ended_ms, row.id


@dataclass(frozen=True, slots=True)
class PastSlot:
    """Deliveries of a route in one slot of time.

    ``late`` has a count for each class of lateness: up to each of ``LATENESS_BOUNDS_MS``, and more.
    """

    at_ms: int
    route: str
    late: tuple[int, ...]


def judge_step(from_ms: int, step_ms: int) -> int:
    """Return the start of the first slot at or after ``from_ms``. Raises ValueError for a wrong step. Pure."""
    if step_ms < SLOT_MS or step_ms % SLOT_MS:
        raise ValueError("the step must be a multiple of 30 s")
    return -(-from_ms // step_ms) * step_ms


def summed(slots: Iterable[PastSlot]) -> list[int]:
    """Return the sum of the counts by class of lateness. Pure."""
    return [sum(counts) for counts in zip([0] * PLACES, *(slot.late for slot in slots), strict=True)]


def percentile_ms(late: Sequence[int], share: float) -> float | None:
    """Return the lateness in ms that ``share`` (0 to 1) of the deliveries did not exceed; None without any. Pure.

    Interpolated within its class, as Prometheus does it. In the last class it is that class's lower bound.
    """
    found = percentile_class_ms(late, share)
    if found is None:
        return None
    lower, upper = found
    if upper is None:
        return lower
    place = LATENESS_BOUNDS_MS.index(upper)
    left = share * sum(late) - sum(late[:place])
    return lower + (upper - lower) * max(0.0, left) / late[place]


def percentile_class_ms(late: Sequence[int], share: float) -> tuple[float, float | None] | None:
    """Return the bounds (ms) of the class that the lateness of ``percentile_ms`` lies in; None for no upper bound, and
    without any delivery. Pure."""
    left = share * sum(late)
    if not sum(late):
        return None
    place = 0
    while not (late[place] and left <= late[place]):
        left -= late[place]
        place += 1
    upper = LATENESS_BOUNDS_MS[place] if place < len(LATENESS_BOUNDS_MS) else None
    return (LATENESS_BOUNDS_MS[place - 1] if place else 0.0), upper


def coarse(late: Sequence[int]) -> list[int]:
    """Return counts for a chart: up to 100 ms late, up to 1 s, up to 10 s, more. Pure."""
    counts = [0] * (len(_COARSE_MS) + 1)
    for place, count in enumerate(late):
        bound = LATENESS_BOUNDS_MS[place] if place < len(LATENESS_BOUNDS_MS) else float("inf")
        counts[sum(bound > coarse_ms for coarse_ms in _COARSE_MS)] += count
    return counts


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that a person did to messages or routes.

    ``what`` names the ids, the key or the filter. ``messages`` is how many were changed. ``id`` and ``at_ms`` (Unix ms)
    are the store's; leave them out of an entry to be written.
    """

    by: Actor
    verb: str
    what: str
    messages: int = 0
    reason: str = ""
    id: str = ""
    at_ms: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        facts = asdict(self)
        return {**facts.pop("by"), **facts}

    def content(self) -> dict[str, Any]:
        """Return what is written: all but what the store adds."""
        return {name: value for name, value in self.as_dict().items() if name not in ("id", "at_ms")}


def read_entry(facts: Mapping[str, Any]) -> AuditEntry:
    """Return an entry from JSON values. Other members are ignored."""
    names = [field.name for field in fields(AuditEntry) if field.name != "by"]
    return AuditEntry(Actor(facts["who"], facts["via"]), **{name: facts[name] for name in names})


class Remembered(NamedTuple):
    """A request that was seen before: the digest of its content, and the id that it was given. ``due_ms`` is there once
    its message was parked."""

    digest: bytes
    id: bytes
    due_ms: int | None = None


class PastDesk(Protocol):
    """The part of ``Desk`` about the past. Every method raises ``StoreUnavailable``."""

    limits: HistoryLimits

    def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        """Iterate over the history, newest first, from the entry that follows ``after``.

        A filter with an id reads one shard, from the moment on in which the message arrived. An entry that was written
        more than ten seconds late, after an outage of the store, may be missing behind a cursor.
        """

    async def history_since_ms(self) -> int:
        """Return from which moment on the history is complete (Unix ms): it is bounded by time and by number."""

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return what happened to a message between its arrival and its end; nothing without a journal."""

    async def past(self, from_ms: int, to_ms: int, step_ms: int) -> list[PastSlot]:
        """Return the deliveries in slots of ``step_ms``, a multiple of 30 s, that begin from ``from_ms`` to ``to_ms``.

        Slots begin at multiples of ``step_ms``. Slots without deliveries are left out. Multiples of an hour reach back
        8 days, others 26 hours. Raises ValueError for another step.
        """

    async def note(self, entry: AuditEntry) -> None:
        """Write an entry of the audit log. It keeps about 10,000."""

    async def audit(self, limit: int, before: str = "") -> list[AuditEntry]:
        """Return entries of the audit log, newest first, from the one that follows the entry with the id ``before``."""

    async def remember(self, key: bytes, digest: bytes, message_id: bytes, ttl_ms: int) -> Remembered | None:
        """Remember for ``ttl_ms`` which id a request with this Idempotency-Key got; None if the key is new.

        A key that is known keeps its first digest and id, which are returned.
        """

    async def remember_parked(self, key: bytes, request: Remembered, ttl_ms: int) -> None:
        """Remember that the message of a request was parked, whatever becomes of it. ``remember`` returns that."""
