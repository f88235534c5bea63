"""The due set of one shard: ids in the order of their due moments, and of their bytes where those are equal."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class DueSet:
    """A sorted set, as Redis has it: one moment an id."""

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

    def remove(self, message_id: bytes) -> bool:
        """Whether it was there."""
        due_ms = self._moments.pop(message_id, None)
        if due_ms is None:
            return False
        del self._order[bisect_left(self._order, (due_ms, message_id))]
        return True

    def head_ms(self) -> int | None:
        """The earliest moment."""
        return self._order[0][0] if self._order else None

    def until(self, now_ms: int, limit: int) -> list[bytes]:
        """At most ``limit`` ids whose moment has come, the earliest first."""
        end = bisect_left(self._order, (now_ms + 1, b""))
        return [message_id for _, message_id in self._order[: min(end, limit)]]
