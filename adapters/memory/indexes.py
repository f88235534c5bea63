"""What one shard keeps besides the messages: the due set, the key index, and how far each log was read."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from bridge.core.message import Origin
from bridge.core.orders import HELD_MS
from bridge.core.ports import Found

#: A key with more ids than this is no identity: only their number is kept.
IDS_MAX = 16


class DueSet:
    """A sorted set, as in Redis: ids by due moment, and by their bytes where the moments are equal."""

    def __init__(self) -> None:
        self._moments: dict[bytes, int] = {}
        self._order: list[tuple[int, bytes]] = []

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._moments

    def __len__(self) -> int:
        return len(self._moments)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return iter(self._order)

    def put(self, message_id: bytes, due_ms: int) -> None:
        """Add an id, or give it another moment."""
        self.remove(message_id)
        self._moments[message_id] = due_ms
        insort(self._order, (due_ms, message_id))

    def remove(self, message_id: bytes) -> None:
        """Remove an id if it is there."""
        due_ms = self._moments.pop(message_id, None)
        if due_ms is not None:
            del self._order[bisect_left(self._order, (due_ms, message_id))]

    def at_ms(self, message_id: bytes) -> int:
        """Return the moment of an id, -1 for one that is not there."""
        return self._moments.get(message_id, -1)

    def head_ms(self) -> int | None:
        """Return the earliest moment; None if there is none, or if all are held."""
        return self._order[0][0] if self._order and self._order[0][0] < HELD_MS else None

    def held(self) -> list[tuple[int, bytes]]:
        """Return due moment and id of those that are held, in order."""
        first = bisect_left(self._order, (HELD_MS, b""))
        return [(at_ms - HELD_MS, message_id) for at_ms, message_id in self._order[first:]]

    def until(self, now_ms: int, limit: int) -> list[bytes]:
        """Return at most ``limit`` ids whose moment has come, the earliest first."""
        end = bisect_left(self._order, (now_ms + 1, b""))
        return [message_id for _, message_id in self._order[: min(end, limit)]]


class KeyIndex:
    """By index field: the ids in the order of arrival, or their number. As ``lua/include/key_index.lua``."""

    def __init__(self) -> None:
        self._ids: dict[bytes, list[bytes]] = {}
        self._numbers: dict[bytes, int] = {}

    def add(self, field: bytes, ids: Sequence[bytes]) -> None:
        """Add messages to a field."""
        if field in self._numbers:
            self._numbers[field] += len(ids)
            return
        listed = self._ids.get(field, [])
        if len(listed) + len(ids) > IDS_MAX:
            self._ids.pop(field, None)
            self._numbers[field] = len(listed) + len(ids)
        else:
            self._ids[field] = [*listed, *ids]

    def remove(self, field: bytes, message_id: bytes) -> None:
        """Remove a message from a field."""
        if field in self._numbers:
            self._numbers[field] -= 1
            if self._numbers[field] <= 0:
                del self._numbers[field]
        elif message_id in self._ids.get(field, ()):
            self._ids[field].remove(message_id)
            if not self._ids[field]:
                del self._ids[field]

    def found(self, field: bytes) -> Found:
        """Return the messages of a field."""
        return Found(list(self._ids.get(field, ())), self._numbers.get(field, 0))

    def fields(self) -> set[bytes]:
        """Return every field that has messages."""
        return self._ids.keys() | self._numbers.keys()


class Offsets:
    """How far the records of each log were handled. As ``lua/include/origins.lua``.

    ``marks``: by log, the next offset that is new. ``owed``: offsets below the mark that are to become dead letters.
    ``firsts``: by log, the lowest offset of the first call that parked.
    """

    def __init__(self) -> None:
        self.marks: dict[bytes, int] = {}
        self.owed: dict[bytes, set[int]] = {}
        self.firsts: dict[bytes, int] = {}

    def done(self, origin: Origin) -> bool:
        """Return whether a record was handled."""
        log, offset = origin
        return offset < self.marks.get(log, 0) and offset not in self.owed.get(log, ())

    def new(self, origins: Iterable[Origin]) -> list[bool]:
        """Return which records of one call are to be handled. A record that occurs twice is new once."""
        seen: set[Origin] = set()
        verdicts = []
        for origin in origins:
            verdicts.append(not self.done(origin) and origin not in seen)
            seen.add(origin)
        return verdicts

    def note(self, origin: Origin, owed: bool = False) -> None:
        """Mark a record as handled, or as owed a dead letter."""
        log, offset = origin
        self.marks[log] = max(self.marks.get(log, 0), offset + 1)
        if owed:
            self.owed.setdefault(log, set()).add(offset)
        elif offset in self.owed.get(log, ()):
            self.owed[log].remove(offset)
            if not self.owed[log]:
                del self.owed[log]
