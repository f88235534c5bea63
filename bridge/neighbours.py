"""Delays that end within a millisecond of each other keep the order of their log.

A relative delay counts from the record's timestamp, which is cut to a whole millisecond, and so is what a producer
computes for "all at the same moment": of two records that mean one moment, the later may come out a millisecond before
the earlier. Nobody can tell that from two moments, so the log decides: the later is due with the earlier. That is a
millisecond late at most and never early. A moment that was given as such is exact and is left alone.
"""

from __future__ import annotations

#: How far two moments may lie apart that were cut to whole milliseconds, in milliseconds.
_CUT_MS = 1
#: Logs that are remembered; one that is forgotten begins anew.
_LOGS_MAX = 4096


class Neighbours:
    """The last relative due moment of each log, which is a partition of a topic."""

    def __init__(self) -> None:
        self._last_ms: dict[bytes, int] = {}

    def due_ms(self, log: bytes, due_ms: int) -> int:
        """When the next record of ``log`` is due that asked for ``due_ms``; called in the log's order."""
        last_ms = self._last_ms.get(log, due_ms)
        if due_ms < last_ms <= due_ms + _CUT_MS:
            return last_ms
        if log not in self._last_ms and len(self._last_ms) >= _LOGS_MAX:
            del self._last_ms[next(iter(self._last_ms))]
        self._last_ms[log] = due_ms
        return due_ms
