"""What an operator can do with stored messages: list, show, find, cancel, reschedule, deliver, retry, count.

``Desk`` is the protocol that each store implements, ``Desks`` joins the desks of several stores. A desk is not on the
path of a message: it reads heads and not bodies, in small steps, so that it never blocks the store for long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from bridge.core.journal import FlowRow
from bridge.core.orders import Actor, RouteOrders, RouteState, latest
from bridge.core.ports import Found
from bridge.core.state import State
from bridge.desk.numbers import Stats, together
from bridge.desk.past import AuditEntry, PastCursor, PastDesk, PastFilter, PastSlot, newest_first
from bridge.desk.rows import Answer, Cursor, Filter, Row, Stored
from bridge.parking.history import HistoryRow

T = TypeVar("T")

#: Documents about bulk operations that a store keeps.
OPERATIONS_MAX = 200


class Desk(PastDesk, Protocol):
    """A store as an operator uses it. Every method raises ``StoreUnavailable``."""

    async def now_ms(self) -> int:
        """Return the store's clock (Unix ms)."""

    def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        """Iterate over the messages in one state, by ``at_ms`` and id, from the first one beyond ``after``. Payloads
        are cut to ``HEAD_BYTES``."""

    async def identity(self) -> str:
        """Return what distinguishes this store from every other, and from itself before it was emptied."""

    def stored(self) -> AsyncIterator[Stored]:
        """Iterate over the messages in all states, in no order. One that is stored from the beginning to the end comes
        at least once, whatever moves it makes meanwhile."""

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        """Return those messages that exist, with at most ``payload_bytes`` of each payload (-1: all)."""

    async def find(self, route: str, key: bytes) -> Found:
        """Return the ids of the messages with this key."""

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        """Delete parked messages and dead letters. Return the state in which each one was; a claimed one stays.

        ``reason`` is for the history.
        """

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        """Move parked messages to another due moment (0: now). Return the state of each; only PARKED was moved."""

    async def retry(self, ids: Sequence[bytes]) -> int:
        """Park dead letters again, due now. Return how many of the ids were dead letters."""

    async def stats(self) -> Stats:
        """Return the numbers. It is cheap enough to be asked every few seconds."""

    async def orders(self) -> RouteOrders:
        """Return the orders of the routes that are paused or drain."""

    async def order(self, route: str, state: RouteState, by: Actor, reason: str) -> None:
        """Pause a route, drain it, or let it run. All instances follow within about a second.

        The caller checks that the settings have the route, and that it has a store.
        """

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        """Return how many parked messages are due between each two of the ascending moments (the second exclusive)."""

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        """Return whether ``who`` holds the lease ``what``, taken or extended for ``ttl_ms`` if no other holds it.

        With 0 ``who`` gives its lease back."""

    async def note_restored(self, messages: int | None = None) -> None:
        """Note that a restore is under way, and how many more of the lost messages are back. None: all that the journal
        has, so the loss is over."""

    async def note_reported(self, numbers: Mapping[str, int]) -> None:
        """Keep what the webhook has reported, for the instance that reports next."""

    async def put_operation(self, name: str, document: str) -> None:
        """Keep a small document about a bulk operation. The store keeps ``OPERATIONS_MAX``, those with the last ids."""

    async def operations(self) -> dict[str, str]:
        """Return the documents about bulk operations by id."""


class Desks:
    """The desks of several stores as one ``Desk``. An id is in one store at most, so each desk is asked for all ids."""

    def __init__(self, desks: Sequence[Desk]) -> None:
        self._desks = desks
        # What is about no message is in the first.
        first = desks[0]
        self.limits, self.now_ms, self.lead = first.limits, first.now_ms, first.lead
        self.note, self.note_reported = first.note, first.note_reported
        self.operations, self.put_operation = first.operations, first.put_operation
        self.remember, self.remember_parked = first.remember, first.remember_parked

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        readers = [desk.rows(state, wanted, after) for desk in self._desks]
        async for row in _merged(readers, lambda row: (row.at_ms, row.id)):
            yield row

    async def identity(self) -> str:
        return " ".join([await desk.identity() for desk in self._desks])

    async def stored(self) -> AsyncIterator[Stored]:
        for desk in self._desks:
            async for stored in desk.stored():
                yield stored

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        found = {row.id: row for desk in self._desks for row in await desk.look(ids, payload_bytes)}
        return [found[message_id] for message_id in ids if message_id in found]

    async def find(self, route: str, key: bytes) -> Found:
        return Found.merged([await desk.find(route, key) for desk in self._desks])

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        return _joined([await desk.cancel(ids, reason) for desk in self._desks])

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        return _joined([await desk.reschedule(ids, due_ms) for desk in self._desks])

    async def retry(self, ids: Sequence[bytes]) -> int:
        return sum([await desk.retry(ids) for desk in self._desks])

    async def note_restored(self, messages: int | None = None) -> None:
        for desk in self._desks:
            await desk.note_restored(messages)

    async def stats(self) -> Stats:
        return together([await desk.stats() for desk in self._desks])

    async def orders(self) -> RouteOrders:
        return latest([await desk.orders() for desk in self._desks])

    async def order(self, route: str, state: RouteState, by: Actor, reason: str) -> None:
        """Write the order to all stores. Those without the route ignore it."""
        for desk in self._desks:
            await desk.order(route, state, by, reason)

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        return [sum(counts) for counts in zip(*[await desk.density(bounds_ms) for desk in self._desks], strict=True)]

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        async for row in _merged([desk.history(wanted, after) for desk in self._desks], newest_first):
            yield row

    async def history_since_ms(self) -> int:
        return max([await desk.history_since_ms() for desk in self._desks])

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return what the journals of all stores know. Several stores may have one database."""
        rows = {row for desk in self._desks for row in await desk.flow(message_id)}
        return sorted(rows)

    async def past(self, from_ms: int, to_ms: int, step_ms: int) -> list[PastSlot]:
        """Return the deliveries of all stores. A route has one store."""
        slots = [slot for desk in self._desks for slot in await desk.past(from_ms, to_ms, step_ms)]
        return sorted(slots, key=lambda slot: (slot.at_ms, slot.route))

    async def audit(self, limit: int, before: str = "") -> list[AuditEntry]:
        found = [entry for desk in self._desks for entry in await desk.audit(limit, before)]
        return sorted(found, key=lambda entry: entry.at_ms, reverse=True)[:limit]


async def _merged(readers: Sequence[AsyncIterator[T]], place: Callable[[T], tuple[int, bytes]]) -> AsyncIterator[T]:
    """Merge iterators, each of which is sorted by ``place``."""
    heads = [await anext(reader, None) for reader in readers]
    while found := [(place(head), number, head) for number, head in enumerate(heads) if head is not None]:
        _, number, head = min(found, key=lambda entry: entry[:2])
        yield head
        heads[number] = await anext(readers[number], None)


def _joined(answers: Iterable[Mapping[bytes, Answer]]) -> dict[bytes, Answer]:
    """Return for each id the answer of the desk that has the message."""
    found: dict[bytes, Answer] = {}
    for answer_of in answers:
        for message_id, answer in answer_of.items():
            if found.get(message_id, Answer.NONE) is Answer.NONE:
                found[message_id] = answer
    return found
