"""How far one partition is done: what was handed over, and the offset up to which nothing is missing.

Offsets have gaps (compaction, transactions), so the order of handing over counts, not the numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Progress:
    """``committable`` is the offset to commit: of the first record not done, or after the last one; None before."""

    __slots__ = ("_early", "_waiting", "committable")

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._early: set[int] = set()
        self.committable: int | None = None

    def open(self) -> int:
        """How many would be handed over again after a crash."""
        return len(self._waiting)

    def handed_over(self, offset: int) -> None:
        """A record goes out; its offset is higher than those before."""
        self._waiting.append(offset)

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
