"""What people do with messages that wait: look, cancel, move, retry. The words of the command line and of the page.

Nothing here is on the way of a message. A desk reads heads, not bodies, and never holds the store up for long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bridge.core.ports import Found
from bridge.core.state import State


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages; None leaves out no message. Moments are Unix milliseconds by the store's clock, the first one is
    inside and the second one outside; ``reason`` is how the reason begins."""

    route: str | None = None
    key: bytes | None = None
    due_from_ms: int | None = None
    due_before_ms: int | None = None
    reason: str | None = None

    def takes(self, row: Row) -> bool:
        """Whether a message is one of them."""
        return (
            (self.route is None or row.route == self.route)
            and (self.key is None or row.key == self.key)
            and (self.due_from_ms is None or row.due_ms >= self.due_from_ms)
            and (self.due_before_ms is None or row.due_ms < self.due_before_ms)
            and (self.reason is None or row.reason.startswith(self.reason))
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a person sees it.

    ``at_ms`` is where it stands: its next try when parked, the end of its lease when claimed (0 where there is none),
    its death when dead. ``size`` counts the payload's bytes, ``payload`` holds as many of them as were asked for.
    ``reason`` is the last one it was not delivered for, ``first`` the id of the first copy, if it is a redelivered one.
    ``broker`` says whose payload it is; "" where the envelope cannot be opened: then there is no route and no key, and
    the envelope is the payload.
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


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one server of the store; ``most`` is 0 where nothing limits it."""

    server: str
    used: int
    most: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The store in numbers. Moments are Unix milliseconds by its clock; ``ever`` counts what happened since it began;
    ``instances`` are names and how each says it is; ``bytes_each`` is an estimate, None where there is none;
    ``overdue`` goes by the next try, so ``refused`` counts those that were refused and are to be tried again.
    ``warnings`` are sentences about the store, without their stops."""

    now_ms: int
    parked: int
    claimed: int
    dead: int
    overdue: int
    next_due_ms: int | None
    ever: Mapping[str, int]
    instances: Mapping[str, Mapping[str, object]]
    memory: Sequence[Memory]
    bytes_each: int | None = None
    refused: int = 0
    warnings: Sequence[str] = ()


class Desk(Protocol):
    """Every method raises ``StoreUnavailable``."""

    async def now_ms(self) -> int:
        """The store's clock."""

    def rows(self, state: State, wanted: Filter) -> AsyncIterator[Row]:
        """Messages in one state, those of all shards in the order of ``at_ms``; read on while they are taken."""

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        """Messages by id, those that exist, with so many bytes of payload (-1: all)."""

    async def find(self, route: str, key: bytes) -> Found:
        """The ids under a producer's key."""

    async def cancel(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        """Remove parked messages and dead letters; each id's word is what it was: parked, dead, claimed (it stays),
        none."""

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, str]:
        """Move parked messages to another due moment (0: now); words: parked (moved), dead, claimed, none."""

    async def retry(self, ids: Sequence[bytes]) -> int:
        """Park dead letters again, due now; how many were dead letters."""

    async def stats(self) -> Stats:
        """The numbers."""
