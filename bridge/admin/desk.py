"""What an operator can do with stored messages: list, show, find, cancel, reschedule, deliver, retry, count.

``Desk`` is the protocol that each store implements, ``Desks`` joins the desks of several stores. A desk is not on the
path of a message: it reads heads and not bodies, in small steps, so that it never blocks the store for long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from bridge.admin.past import (
    AuditEntry,
    PastCursor,
    PastDesk,
    PastFilter,
    PastSlot,
    Remembered,
    newest_first,
)
from bridge.core.orders import HELD_MS, RouteOrders, RouteState, latest
from bridge.core.ports import Found
from bridge.core.state import State
from bridge.parking.envelope import UnopenedEnvelope, plain_key, unseal
from bridge.parking.history import HistoryRow

#: A list reads this much of a payload: enough for the routing key, which comes first, and usually for a record's key.
HEAD_BYTES = 1024
#: Documents about bulk operations that a store keeps.
OPERATIONS_MAX = 200


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

    Due moments are Unix milliseconds by the store's clock, the first inclusive and the second exclusive. A parked
    message counts with the moment of its next try. ``reason`` is the start of the reason.
    """

    route: str | None = None
    key: bytes | None = None
    due_from_ms: int | None = None
    due_before_ms: int | None = None
    reason: str | None = None
    min_size: int = 0
    min_tries: int = 0

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
        )


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a person sees it.

    ``at_ms`` depends on the state. Parked: the next try, or the due moment if it is ``held``, because its route is
    paused or at its rate. Claimed: the end of the lease, 0 if unknown. Dead: when it died. ``size`` is the payload's
    size in bytes, and ``payload`` holds as many of them as were asked for.
    ``reason`` is the last reason why it was not delivered. ``first`` is the id of the first copy of a redelivered one.
    ``broker`` tells how to read the payload. It is "" for an envelope that cannot be opened: then route and key are
    empty too, and the payload is the whole envelope.
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


def row_of(broker: str, one: bytes, state: State, at_ms: int, size: int, head: bytes, reason: str) -> Row:
    """Return a message as a row. ``head`` is the start of its envelope, which has ``size`` bytes. Pure."""
    held = state is State.PARKED and at_ms >= HELD_MS
    at_ms -= HELD_MS if held else 0
    try:
        envelope = unseal(head)
    except UnopenedEnvelope as error:
        return Row(one, state, at_ms, at_ms, 0, 0, "", b"", b"", size, head, reason or str(error), "", held)
    due_ms, tries, arrived_ms, route, key, first, payload, _ = envelope
    payload_size = size - (len(head) - len(payload))
    key = plain_key(key)
    return Row(
        one, state, at_ms, due_ms, arrived_ms, tries, route, key, first, payload_size, payload, reason, broker, held
    )


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory of one server of the store in bytes; ``most`` is 0 without a limit."""

    server: str
    used: int
    most: int


@dataclass(frozen=True, slots=True)
class RouteStats:
    """The messages of one route in numbers.

    ``parked`` (with the claimed ones), ``held`` and ``dead`` are exact, as long as no message is deleted by hand. The
    others come from a look at the first messages of each shard. They are exact while all overdue messages of a shard
    are among these. Beyond that ``overdue`` is an estimate by the shares that the look saw. ``oldest_overdue_ms`` (an
    age) of a route that the look did not see is an upper bound then. ``next_due_ms`` is None if the look did not see
    the route.
    """

    parked: int = 0
    held: int = 0
    dead: int = 0
    overdue: int = 0
    oldest_overdue_ms: int = 0
    next_due_ms: int | None = None


class ShardLook(NamedTuple):
    """What is known of the routes of one shard.

    ``counts`` has the messages by state and route. ``overdue`` counts the shard's overdue messages. The look saw
    ``heads``: for each route its first due moment, and how many overdue messages. It ended at the moment ``end_ms``;
    None if it saw the whole shard.
    """

    now_ms: int
    counts: Mapping[tuple[str, str], int]
    overdue: int
    heads: Mapping[str, tuple[int, int]]
    end_ms: int | None


def by_route(looks: Iterable[ShardLook]) -> dict[str, RouteStats]:
    """Return the numbers of each route that has messages. Pure."""
    return _sums({route: _of_route(route, look) for route in _routes_in(look)} for look in looks)


def _routes_in(look: ShardLook) -> set[str]:
    """Return the routes of a shard. A head without a route is that of a damaged message."""
    return {route for _, route in look.counts} | (look.heads.keys() - {""})


def _of_route(route: str, look: ShardLook) -> RouteStats:
    parked, held, dead = (look.counts.get((state, route), 0) for state in ("parked", "held", "dead"))
    first_ms, overdue = look.heads.get(route, (None, 0))
    oldest_ms = first_ms
    if look.end_ms is not None and look.end_ms < look.now_ms:
        seen = sum(number for _, number in look.heads.values())
        overdue = round(look.overdue * overdue / seen) if seen else 0
        if first_ms is None and parked > held:
            oldest_ms = look.end_ms
    age_ms = max(0, look.now_ms - oldest_ms) if oldest_ms is not None else 0
    return RouteStats(parked, held, dead, overdue, age_ms, first_ms)


def _sums(parts: Iterable[Mapping[str, RouteStats]]) -> dict[str, RouteStats]:
    """Add up the numbers of each route."""
    found: dict[str, RouteStats] = {}
    for part in parts:
        for route, more in part.items():
            known = found.get(route, RouteStats())
            found[route] = RouteStats(
                known.parked + more.parked,
                known.held + more.held,
                known.dead + more.dead,
                known.overdue + more.overdue,
                max(known.oldest_overdue_ms, more.oldest_overdue_ms),
                min((ms for ms in (known.next_due_ms, more.next_due_ms) if ms is not None), default=None),
            )
    return found


@dataclass(frozen=True, slots=True)
class Stats:
    """The store in numbers. Moments are Unix milliseconds by its clock.

    ``overdue`` goes by the next try, so a refused message that waits for it counts in ``refused`` only. ``held`` are
    parked messages that came due while their route was paused; they are not overdue. ``ever`` has
    totals since the store was first used, ``instances`` the report of each running instance by name. ``bytes_each`` is
    an estimate, None if there is none. ``warnings`` have no full stops. ``by_route`` has every route with a message.
    """

    now_ms: int
    parked: int
    claimed: int
    dead: int
    overdue: int
    next_due_ms: int | None
    ever: Mapping[str, int]
    instances: Mapping[str, Mapping[str, object]]
    memory: Sequence[ServerMemory]
    bytes_each: int | None = None
    refused: int = 0
    warnings: Sequence[str] = ()
    by_route: Mapping[str, RouteStats] = field(default_factory=dict)
    held: int = 0


class Desk(PastDesk, Protocol):
    """A store as an operator uses it. Every method raises ``StoreUnavailable``."""

    async def now_ms(self) -> int:
        """Return the store's clock (Unix ms)."""

    def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        """Iterate over the messages in one state, by ``at_ms`` and id, from the first one beyond ``after``. Payloads
        are cut to ``HEAD_BYTES``."""

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

    async def order(self, route: str, state: RouteState, by: str, reason: str) -> None:
        """Pause a route, drain it, or let it run. All instances follow within about a second.

        The caller checks that the settings have the route, and that it has a store.
        """

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        """Return how many parked messages are due between each two of the ascending moments (the second exclusive)."""

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        """Return whether ``who`` holds the lease ``what``, taken or extended for ``ttl_ms`` if no other holds it."""

    async def put_operation(self, one: str, document: str) -> None:
        """Keep a small document about a bulk operation. The store keeps ``OPERATIONS_MAX``, those with the last ids."""

    async def operations(self) -> dict[str, str]:
        """Return the documents about bulk operations by id."""


class Desks:
    """The desks of several stores as one ``Desk``. An id is in one store at most, so each desk is asked for all ids."""

    def __init__(self, desks: Sequence[Desk]) -> None:
        self._desks = desks
        self.limits = desks[0].limits

    async def now_ms(self) -> int:
        """Return the clock of the first store."""
        return await self._desks[0].now_ms()

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        """Merge the messages of all stores by ``at_ms``."""
        readers = [desk.rows(state, wanted, after) for desk in self._desks]
        heads = [await anext(reader, None) for reader in readers]
        while any(heads):
            place = min((row.at_ms, row.id, place) for place, row in enumerate(heads) if row)[2]
            row, heads[place] = heads[place], await anext(readers[place], None)
            assert row is not None
            yield row

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        """Return those messages that exist in any store."""
        found = {row.id: row for desk in self._desks for row in await desk.look(ids, payload_bytes)}
        return [found[one] for one in ids if one in found]

    async def find(self, route: str, key: bytes) -> Found:
        """Return the ids with this key in all stores."""
        found = [await desk.find(route, key) for desk in self._desks]
        return Found([one for some in found for one in some.ids], sum(some.unlisted for some in found))

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        """Delete the messages, each in the store that has it."""
        return _joined([await desk.cancel(ids, reason) for desk in self._desks])

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        """Move the messages, each in the store that has it."""
        return _joined([await desk.reschedule(ids, due_ms) for desk in self._desks])

    async def retry(self, ids: Sequence[bytes]) -> int:
        """Park dead letters again, each in the store that has it."""
        return sum([await desk.retry(ids) for desk in self._desks])

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        """Take or extend a lease in the first store."""
        return await self._desks[0].lead(what, who, ttl_ms)

    async def put_operation(self, one: str, document: str) -> None:
        """Keep a document in the first store."""
        await self._desks[0].put_operation(one, document)

    async def operations(self) -> dict[str, str]:
        """Return the documents of the first store."""
        return await self._desks[0].operations()

    async def stats(self) -> Stats:
        """Return the sums over all stores."""
        return together([await desk.stats() for desk in self._desks])

    async def orders(self) -> RouteOrders:
        """Return the orders of all stores."""
        return latest([await desk.orders() for desk in self._desks])

    async def order(self, route: str, state: RouteState, by: str, reason: str) -> None:
        """Write the order to all stores. Those without the route ignore it."""
        for desk in self._desks:
            await desk.order(route, state, by, reason)

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        """Return the sums over all stores."""
        return [sum(some) for some in zip(*[await desk.density(bounds_ms) for desk in self._desks], strict=True)]

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        """Merge the histories of all stores, newest first."""
        readers = [desk.history(wanted, after) for desk in self._desks]
        heads = [await anext(reader, None) for reader in readers]
        while any(heads):
            place = min((newest_first(row), place) for place, row in enumerate(heads) if row)[1]
            row, heads[place] = heads[place], await anext(readers[place], None)
            assert row is not None
            yield row

    async def history_since_ms(self) -> int:
        """Return from which moment on the histories of all stores are complete."""
        return max([await desk.history_since_ms() for desk in self._desks])

    async def past(self, from_ms: int, to_ms: int, step_ms: int) -> list[PastSlot]:
        """Return the deliveries of all stores. A route has one store."""
        slots = [slot for desk in self._desks for slot in await desk.past(from_ms, to_ms, step_ms)]
        return sorted(slots, key=lambda slot: (slot.at_ms, slot.route))

    async def note(self, entry: AuditEntry) -> None:
        """Write an entry in the first store."""
        await self._desks[0].note(entry)

    async def audit(self, limit: int, before: str = "") -> list[AuditEntry]:
        """Merge the entries of all stores."""
        found = [entry for desk in self._desks for entry in await desk.audit(limit, before)]
        return sorted(found, key=lambda entry: entry.at_ms, reverse=True)[:limit]

    async def remember(self, key: bytes, digest: bytes, one: bytes, ttl_ms: int) -> Remembered | None:
        """Remember a request in the first store."""
        return await self._desks[0].remember(key, digest, one, ttl_ms)


def _joined(answers: Iterable[Mapping[bytes, Answer]]) -> dict[bytes, Answer]:
    """Return for each id the answer of the desk that has the message."""
    found: dict[bytes, Answer] = {}
    for some in answers:
        for one, answer in some.items():
            if found.get(one, Answer.NONE) is Answer.NONE:
                found[one] = answer
    return found


def together(stats: Sequence[Stats]) -> Stats:
    """Return the sums. The memory is that of the one server that holds all stores. Pure."""
    messages = [one.parked + one.claimed + one.dead for one in stats]
    sizes = [(one.bytes_each, count) for one, count in zip(stats, messages, strict=True) if one.bytes_each is not None]
    count = sum(count for _, count in sizes)
    ever: dict[str, int] = {}
    for one in stats:
        for name, number in one.ever.items():
            ever[name] = ever.get(name, 0) + number
    return Stats(
        now_ms=max(one.now_ms for one in stats),
        parked=sum(one.parked for one in stats),
        claimed=sum(one.claimed for one in stats),
        dead=sum(one.dead for one in stats),
        overdue=sum(one.overdue for one in stats),
        next_due_ms=min((one.next_due_ms for one in stats if one.next_due_ms is not None), default=None),
        ever=ever,
        instances={name: report for one in stats for name, report in one.instances.items()},
        memory=stats[0].memory,
        bytes_each=sum(size * count for size, count in sizes) // count if count else None,
        refused=sum(one.refused for one in stats),
        warnings=list(dict.fromkeys(warning for one in stats for warning in one.warnings)),
        by_route=_sums(one.by_route for one in stats),
        held=sum(one.held for one in stats),
    )
