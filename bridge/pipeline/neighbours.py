"""Delays that end within a few milliseconds of each other keep the order of their log.

A relative delay counts from the record's timestamp. A producer that means one moment computes each delay, cuts it to
whole milliseconds, and publishes a little later, at a timestamp that is cut once more: of two records that mean the
same, the later may come out before the earlier (measured: by up to 6 ms in a burst of 20,000). Nobody can tell that
from two moments, so the log decides: the later is due with the earlier. That is a few milliseconds late at most and
never early. A moment that was given as such is exact and is left alone.
"""

from __future__ import annotations

#: How far two moments may lie apart that mean one, in milliseconds.
_NEAR_MS = 8
#: Logs that are remembered; one that is forgotten begins anew.
_LOGS_MAX = 4096


class Neighbours:
    """The last relative due moment of each log, which is a partition of a topic."""

    def __init__(self) -> None:
        self._last_ms: dict[bytes, int] = {}

    def due_ms(self, log: bytes, due_ms: int) -> int:
        """When the next record of ``log`` is due that asked for ``due_ms``; called in the log's order."""
        last_ms = self._last_ms.get(log, due_ms)
        if due_ms < last_ms <= due_ms + _NEAR_MS:
            return last_ms
        if log not in self._last_ms and len(self._last_ms) >= _LOGS_MAX:
            del self._last_ms[next(iter(self._last_ms))]
        self._last_ms[log] = due_ms
        return due_ms
