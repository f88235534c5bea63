"""The journal: every parked message and what became of it, in a database beside the store. Optional.

A message has a row from the moment on at which it was parked. The store's moves write a log (``MoveLog``), which
``bridge.pipeline.move_tail`` carries into the journal. So a row says whether its message still waits, and what waits
can be parked again when the store has lost it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from bridge.core.errors import StoreUnavailable
from bridge.core.message import Origin


class JournalUnavailable(StoreUnavailable):
    """The journal's database does not answer, or refuses the call."""


class JournalMissing(JournalUnavailable):
    """The database is not the journal: it was moved away or replaced, or has no tables yet. ``fact`` and ``advice`` are
    its two sentences."""

    def __init__(self, fact: str, advice: str) -> None:
        super().__init__(f"{fact}. {advice}")
        self.fact = fact
        self.advice = advice


class Written(IntEnum):
    """What the journal knows of a message. The database has the number, so numbers never change their meaning."""

    WAITING = 0
    DEAD = 1
    DELIVERED = 2
    CANCELLED = 3
    REPLACED = 4
    #: It was overdue at a restore, and the operator did not want it.
    SKIPPED = 5
    #: It waits, and only the journal has it: its row says where it is found. The store may have it, too.
    COLD = 6

    @property
    def ended(self) -> bool:
        """Whether the message has left the store for good."""
        return self not in (Written.WAITING, Written.DEAD, Written.COLD)


#: What `restore --cancelled` brings back.
UNDONE = (Written.CANCELLED, Written.REPLACED, Written.SKIPPED)


class JournalEntry(NamedTuple):
    """A message to be written. ``dead``: why it is a dead letter from the start; None where it is parked."""

    id: bytes
    due_ms: int
    envelope: bytes
    origin: Origin | None = None
    dead: str | None = None


class StoreMove(NamedTuple):
    """What happened to messages at one moment.

    ``at`` sorts the moves of a shard, whatever the clock does; 0 where the journal has all earlier ones. ``state`` is
    None where the move changes only ``due_ms``. ``name`` and ``by`` are for people.
    """

    ids: Sequence[bytes]
    at: int
    at_ms: int
    name: str
    state: Written | None
    due_ms: int | None = None
    by: str = ""
    reason: str = ""


class LoggedMoves(NamedTuple):
    """Moves of a shard, oldest first, and the names of what was read for ``MoveLog.forget``."""

    moves: Sequence[StoreMove]
    names: Sequence[bytes]


class JournalMessage(NamedTuple):
    """A row of the journal. ``envelope`` is empty where only the end of the message is known. ``size`` is that of the
    whole envelope, where the row has it, or its start. ``changed``: the place of its last move, 0 without one."""

    id: bytes
    route: str
    key: bytes
    due_ms: int
    arrived_ms: int
    state: Written
    reason: str
    ended_ms: int | None
    envelope: bytes = b""
    size: int = 0
    changed: int = 0


class FlowRow(NamedTuple):
    """What happened to a message between its arrival and its end. ``due_ms``: the new due moment, if it changed."""

    at_ms: int
    move: str
    by: str
    reason: str
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class JournalFilter:
    """Which rows to read; None does not restrict. ``due_before_ms`` alone is exclusive."""

    states: tuple[Written, ...] = (Written.WAITING, Written.DEAD)
    route: str | None = None
    key: bytes | None = None
    ids: tuple[bytes, ...] | None = None
    due_from_ms: int | None = None
    due_before_ms: int | None = None
    arrived_until_ms: int | None = None


#: Where reading goes on: the due moment and the id of the last row.
Place = tuple[int, bytes]
START: Place = (-1, b"")


class Journal(Protocol):
    """The rows of one store. Every method raises ``JournalUnavailable``, and is safe to repeat."""

    async def open(self) -> None:
        """Check that the tables are those of this version and of this store. Raises ``StoreUnfit`` if not, and
        ``JournalMissing`` where there are none."""

    async def write(self, entries: Sequence[JournalEntry], moves: Sequence[StoreMove] = ()) -> None:
        """Write messages, then moves. A known id gets no second row.

        A row with the origin of a new one is replaced: its message was never parked, or the store has lost it.
        """

    async def propose(self, entries: Sequence[JournalEntry]) -> dict[bytes, bytes]:
        """Write messages that are not parked yet. A row with the origin of a new one stays: another instance may be
        parking the same record. Return the ids of such rows, each with the id of the new one."""

    async def rivals(self, ids: Sequence[bytes]) -> list[tuple[bytes, JournalMessage]]:
        """Return ids with other rows of the same record, without their envelopes."""

    async def lacking(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return those of the ids that have no row, or one without its envelope."""

    async def drop(self, ids: Sequence[bytes]) -> None:
        """Delete rows of messages that were not parked in the end."""

    async def record(self, moves: Sequence[StoreMove]) -> None:
        """Write moves in one transaction. A row keeps what a later move made of it."""

    async def shift(self, ids: Sequence[bytes], before: Written, after: Written) -> list[bytes]:
        """Change whole rows that are ``before``. Return those of the ids whose rows are ``after`` then."""

    async def page(self, wanted: JournalFilter, after: Place, limit: int, head: int = 0) -> list[JournalMessage]:
        """Return the next rows by due moment and id, with their envelopes; with ``head``, only so much of each."""

    async def named(self, pairs: Sequence[tuple[str, bytes]], limit: int) -> list[JournalMessage]:
        """Return the cold messages of each route and key, without their envelopes; ``limit`` of each pair at most."""

    async def cold_counts(self, due_from_ms: int = 0) -> dict[int, dict[str, int]]:
        """Return the number of cold messages by shard and route, of those that are due from a moment on."""

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        """Return how many cold messages are due between each two of the moments (the second exclusive)."""

    async def newest(self, limit: int) -> list[JournalMessage]:
        """Return those of the last arrivals of all priorities that wait, the youngest first, without envelopes."""

    async def ended(self, wanted: JournalFilter, limit: int, head: int) -> list[JournalMessage]:
        """Return the rows of messages that left the store, the last first, with ``head`` bytes of each envelope."""

    async def look(self, ids: Sequence[bytes]) -> dict[bytes, JournalMessage]:
        """Return the rows of those messages that have one, without their envelopes."""

    async def count(self, wanted: JournalFilter) -> int:
        """Return how many rows match."""

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return what happened to a message, oldest first."""

    async def prune(self, before_ms: int, limit: int) -> int:
        """Delete up to ``limit`` rows of messages that ended before ``before_ms``. Return how many."""

    async def close(self) -> None:
        """Close all connections."""


class Tables(Journal, Protocol):
    """A journal whose tables can be made."""

    async def is_new(self) -> bool:
        """Return whether the tables are missing, or were not made for this store yet."""

    async def missing(self) -> list[str]:
        """Return the SQL that creates or upgrades the tables; nothing where they are those of this version."""

    async def create(self) -> list[str]:
        """Create or upgrade the tables for this store. Return the SQL that was run. Raises as ``open``."""


class TierMoved(StoreUnavailable):
    """A message came from the journal or went there since the caller read the mark of its shard."""


class FarPage(NamedTuple):
    """Messages that may go to the journal, as (id, due ms), and the ids of others, which stay."""

    messages: list[tuple[bytes, int]]
    stay: list[bytes]


class Tiers(Protocol):
    """What a store does for its cold tier: messages that the journal alone has. Raises ``StoreUnavailable``.

    Each shard has a mark, which changes with every step between the tiers. So a caller that looked into the journal
    learns that what it saw is no longer true.
    """

    async def marks(self, shards: Iterable[int]) -> dict[int, bytes]:
        """Return the marks; b"" for a shard without a cold tier."""

    async def begin(self, shard: int, counts: Mapping[str, int], mark: bytes = b"") -> None:
        """Give a shard its number of cold messages by route, if it has this mark; b"": if it has none. Then it gets its
        first one."""

    async def far(self, shard: int, from_ms: int, skip: int, limit: int) -> FarPage:
        """Look at messages that are due from a moment on, without the first ``skip`` of them. Those that were tried or
        loaded stay. Nothing comes after an empty page."""

    async def unload(self, shard: int, messages: Sequence[tuple[bytes, int]]) -> int:
        """Remove messages whose rows are cold, unless they are due at another moment, or were tried or loaded. Return
        how many left the store."""

    async def load(
        self, shard: int, mark: bytes, messages: Sequence[tuple[bytes, int, bytes]], known: Sequence[bytes]
    ) -> bool:
        """Park (id, due ms, envelope) that the store lacks, if the shard has this mark. Return whether it has.

        Neither these nor the ``known`` ones, which the store had, are unloaded again.
        """

    async def cold(self) -> dict[int, dict[str, int]]:
        """Return the number of cold messages by shard and route, as the store counts them."""


class MoveLog(Protocol):
    """The log that the store's moves write while there is a journal. Every method raises ``StoreUnavailable``."""

    async def read(
        self,
        shards: Iterable[int],
        limit: int,
        parks: bool = False,
        from_ms: int = 0,
        ends: Mapping[int, bytes] | None = None,
    ) -> dict[int, LoggedMoves]:
        """Return the oldest moves of each shard that has any. A shard without a log begins one.

        ``parks``: the other log, of what was parked or rejected, instead of what left or changed. ``from_ms``: only
        moves from this moment on. ``ends``: by shard the last move, as ``ends`` returns it; without one, all moves.
        """

    async def ends(self, shards: Iterable[int]) -> dict[int, bytes]:
        """Return what names the last entry in each log of parks that has any. A shard without a log begins one."""

    async def forget(self, shard: int, names: Sequence[bytes], parks: bool = False) -> None:
        """Delete what was read and is in the journal (``LoggedMoves.names``), and nothing else: the log may be a new
        one with lower places, where the store lost the other one and its clock was set back."""

    async def pass_by(self, places: Mapping[int, int]) -> None:
        """Let all later moves of each shard have higher places, and begin its log if it is missing. A log that was lost
        may begin with lower ones."""

    async def envelopes(self, ids: Sequence[bytes]) -> list[JournalEntry]:
        """Return those of the messages that the store has."""

    async def known(self, ids: Sequence[bytes]) -> set[bytes]:
        """Return those of the ids that the store has, in any state."""
