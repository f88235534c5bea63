"""The journal in memory, for tests. It can be away, and it can lose a reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bridge.core.journal import (
    FlowRow,
    JournalEntry,
    JournalFilter,
    JournalMessage,
    JournalUnavailable,
    Place,
    StoreMove,
    Written,
)
from bridge.core.message import Origin
from bridge.parking.envelope import contents, plain_key
from bridge.parking.identity import arrival_of, shard_of


@dataclass
class _JournalRow:
    message: JournalMessage
    origin: Origin | None = None


@dataclass
class MemoryJournal:
    """A ``Journal`` in memory. While ``away`` has a text, every call fails with it."""

    away: str = ""
    rows: dict[bytes, _JournalRow] = field(default_factory=dict)
    #: Those of the rows whose messages have not ended.
    waits: dict[bytes, _JournalRow] = field(default_factory=dict)
    flows: dict[bytes, dict[tuple[int, str], FlowRow]] = field(default_factory=dict)
    #: Calls that are carried out and then fail.
    replies_to_lose: int = 0

    async def open(self) -> None:
        self._called()

    async def close(self) -> None:
        """Do nothing."""

    async def write(self, entries: Sequence[JournalEntry], moves: Sequence[StoreMove] = ()) -> None:
        self._refuse()
        ids = {entry.id for entry in entries}
        origins = {entry.origin for entry in entries if entry.origin is not None}
        for message_id in [key for key, row in self.rows.items() if row.origin in origins and key not in ids]:
            self._forget(message_id)
        self._write(entries)
        await self.record(moves)

    async def propose(self, entries: Sequence[JournalEntry]) -> dict[bytes, bytes]:
        self._refuse()
        by_origin = {entry.origin: entry.id for entry in entries if entry.origin is not None}
        rows = [(key, by_origin[row.origin]) for key, row in self.rows.items() if row.origin in by_origin]
        self._write(entries)
        self._called()
        return {other: message_id for other, message_id in rows if other != message_id}

    def _write(self, entries: Sequence[JournalEntry]) -> None:
        for entry in entries:
            known = self.rows.get(entry.id)
            row = _row_of(entry)
            if known is not None:
                kept = known.message
                row.origin = row.origin or known.origin
                due_ms = kept.due_ms or row.message.due_ms
                row.message = row.message._replace(
                    state=kept.state,
                    reason=kept.reason,
                    ended_ms=kept.ended_ms,
                    due_ms=due_ms,
                    changed=kept.changed,
                )
            self._keep(entry.id, row)

    async def rivals(self, ids: Sequence[bytes]) -> list[tuple[bytes, JournalMessage]]:
        self._called()
        mine = {self.rows[key].origin: key for key in ids if key in self.rows and self.rows[key].origin is not None}
        found = [(mine[row.origin], row.message) for row in self.rows.values() if row.origin in mine]
        return [(key, message._replace(envelope=b"")) for key, message in found if key != message.id]

    async def lacking(self, ids: Sequence[bytes]) -> list[bytes]:
        self._called()
        return [key for key in ids if key not in self.rows or not self.rows[key].message.envelope]

    async def drop(self, ids: Sequence[bytes]) -> None:
        self._refuse()
        for message_id in ids:
            self._forget(message_id)
        self._called()

    async def record(self, moves: Sequence[StoreMove]) -> None:
        self._refuse()
        for move in moves:
            for message_id in move.ids:
                self._record(message_id, move)
        self._called()

    def _record(self, message_id: bytes, move: StoreMove) -> None:
        row = self.rows.get(message_id) or _JournalRow(_unknown(message_id))
        if row.message.changed < move.at or not move.at:
            message = row.message._replace(changed=max(row.message.changed, move.at))
            if move.state is not None:
                ended_ms = move.at_ms if move.state.ended else None
                message = message._replace(state=move.state, ended_ms=ended_ms, reason=move.reason)
            row.message = message if move.due_ms is None else message._replace(due_ms=move.due_ms)
        self._keep(message_id, row)
        if move.state is not Written.DELIVERED:
            flow = FlowRow(move.at_ms, move.name, move.by, move.reason, move.due_ms)
            self.flows.setdefault(message_id, {}).setdefault((move.at_ms, move.name), flow)

    async def shift(self, ids: Sequence[bytes], before: Written, after: Written) -> list[bytes]:
        self._refuse()
        rows = {message_id: self.rows[message_id] for message_id in ids if message_id in self.rows}
        for row in rows.values():
            if row.message.state is before and row.message.envelope:
                row.message = row.message._replace(state=after)
        self._called()
        return [message_id for message_id, row in rows.items() if row.message.state is after]

    async def page(self, wanted: JournalFilter, after: Place, limit: int, head: int = 0) -> list[JournalMessage]:
        self._called()
        rows = [row for row in self._matching(wanted) if (row.due_ms, row.id) > after][:limit]
        return [row._replace(envelope=row.envelope[:head]) for row in rows] if head else rows

    async def named(self, pairs: Sequence[tuple[str, bytes]], limit: int) -> list[JournalMessage]:
        self._called()
        cold = (Written.COLD,)
        rows = [row for route, key in pairs for row in self._matching(JournalFilter(cold, route, key))[:limit]]
        return [row._replace(envelope=b"") for row in rows]

    async def cold_counts(self, due_from_ms: int = 0) -> dict[int, dict[str, int]]:
        self._called()
        found: dict[int, dict[str, int]] = {}
        for row in self._matching(JournalFilter((Written.COLD,), due_from_ms=due_from_ms)):
            routes = found.setdefault(shard_of(row.id), {})
            routes[row.route] = routes.get(row.route, 0) + 1
        return found

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        self._called()
        cold = (Written.COLD,)
        return [
            len(self._matching(JournalFilter(cold, due_from_ms=first, due_before_ms=end)))
            for first, end in pairwise(bounds_ms)
        ]

    async def newest(self, limit: int) -> list[JournalMessage]:
        self._called()
        found = sorted(self._matching(JournalFilter()), key=lambda row: arrival_of(row.id), reverse=True)
        return [row._replace(envelope=b"") for row in found[:limit]]

    async def ended(self, wanted: JournalFilter, limit: int, head: int) -> list[JournalMessage]:
        self._called()
        rows = [(row.ended_ms, row.id, row) for row in self._matching(wanted) if row.ended_ms is not None]
        found = [row for _, _, row in sorted(rows, reverse=True)[:limit]]
        return [row._replace(envelope=row.envelope[:head]) for row in found]

    async def look(self, ids: Sequence[bytes]) -> dict[bytes, JournalMessage]:
        self._called()
        rows = {key: self.rows[key].message for key in ids if key in self.rows}
        return {key: row._replace(envelope=b"") for key, row in rows.items()}

    async def count(self, wanted: JournalFilter) -> int:
        self._called()
        return len(self._matching(wanted))

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        self._called()
        return sorted(self.flows.get(message_id, {}).values())

    async def prune(self, before_ms: int, limit: int) -> int:
        self._refuse()
        ended = [key for key, row in self.rows.items() if (row.message.ended_ms or before_ms) < before_ms][:limit]
        for message_id in ended:
            self._forget(message_id)
            self.flows.pop(message_id, None)
        self._called()
        return len(ended)

    def _matching(self, wanted: JournalFilter) -> list[JournalMessage]:
        rows = self.rows if any(state.ended for state in wanted.states) else self.waits
        found = [row.message for row in rows.values() if row.message.envelope and _matches(wanted, row.message)]
        return sorted(found, key=lambda row: (row.due_ms, row.id))

    def _keep(self, message_id: bytes, row: _JournalRow) -> None:
        self.rows[message_id] = row
        if row.message.state.ended:
            self.waits.pop(message_id, None)
        else:
            self.waits[message_id] = row

    def _forget(self, message_id: bytes) -> None:
        self.rows.pop(message_id, None)
        self.waits.pop(message_id, None)

    def _refuse(self) -> None:
        if self.away:
            raise JournalUnavailable(self.away)

    def _called(self) -> None:
        self._refuse()
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            raise JournalUnavailable("the reply was lost")


def _matches(wanted: JournalFilter, row: JournalMessage) -> bool:
    return (
        row.state in wanted.states
        and (wanted.route is None or row.route == wanted.route)
        and (wanted.key is None or row.key == wanted.key)
        and (wanted.ids is None or row.id in wanted.ids)
        and (wanted.due_from_ms is None or row.due_ms >= wanted.due_from_ms)
        and (wanted.due_before_ms is None or row.due_ms < wanted.due_before_ms)
        and (wanted.arrived_until_ms is None or row.arrived_ms <= wanted.arrived_until_ms)
    )


def _unknown(message_id: bytes) -> JournalMessage:
    return JournalMessage(message_id, "", b"", 0, 0, Written.WAITING, "", None)


def _row_of(entry: JournalEntry) -> _JournalRow:
    opened = contents(entry.envelope)
    state = Written.WAITING if entry.dead is None else Written.DEAD
    message = JournalMessage(
        entry.id,
        opened.route,
        plain_key(opened.key),
        entry.due_ms or opened.due_ms,
        opened.arrived_ms,
        state,
        entry.dead or "",
        None,
        entry.envelope,
        len(entry.envelope),
    )
    return _JournalRow(message, entry.origin)
