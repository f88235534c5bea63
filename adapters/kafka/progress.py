"""How far one partition is done: what was handed over, and the offset up to which nothing is missing.

Offsets have gaps (compaction, transactions), so the order of handing over counts, not the numbers. A gap at the end is
committed too: else the group would lag behind markers for ever, and miss them when Kafka removes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Progress:
    """``committable`` is the offset to commit: after the last record that is done without a gap, and beyond what is no
    record where nothing is open; None before."""

    __slots__ = ("_early", "_reached", "_waiting", "committable")

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._early: set[int] = set()
        self._reached = 0
        self.committable: int | None = None

    def open(self) -> int:
        """How many would be handed over again after a crash."""
        return len(self._waiting)

    def handed_over(self, offset: int) -> None:
        """A record goes out; its offset is higher than those before."""
        self._waiting.append(offset)

    def reached(self, offset: int) -> None:
        """Every record before this offset has been handed over; what else stands there is none: the markers of
        transactions, aborted records, what Kafka has removed."""
        self._reached = offset
        if not self._waiting:
            self.committable = offset

    def done(self, offsets: Iterable[int]) -> None:
        """These are durable. The offset to commit moves only over what is done without a gap."""
        waiting, early = self._waiting, self._early
        for offset in offsets:
            if waiting and waiting[0] == offset:
                waiting.popleft()
                self.committable = offset + 1
            else:
                early.add(offset)
        while waiting and waiting[0] in early:
            offset = waiting.popleft()
            early.discard(offset)
            self.committable = offset + 1
        if not waiting and self.committable is not None:
            self.committable = max(self.committable, self._reached)
