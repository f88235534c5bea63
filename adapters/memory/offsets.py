"""How far the records of each log were dealt with, in one shard. As ``lua/include/origins.lua``."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.core.message import Origin


class Offsets:
    """Log -> the next offset that is new (``marks``), and those below it that are to become dead letters (``owed``)."""

    def __init__(self) -> None:
        self.marks: dict[bytes, int] = {}
        self.owed: dict[bytes, set[int]] = {}

    def done(self, origin: Origin) -> bool:
        """Whether the record was dealt with."""
        log, offset = origin
        return offset < self.marks.get(log, 0) and offset not in self.owed.get(log, ())

    def new(self, origins: Iterable[Origin]) -> list[bool]:
        """Which of the records of one call are to be dealt with, each once."""
        seen: set[Origin] = set()
        verdicts = []
        for origin in origins:
            verdicts.append(not self.done(origin) and origin not in seen)
            seen.add(origin)
        return verdicts

    def note(self, origin: Origin, owed: bool = False) -> None:
        """From now on it counts as dealt with, or is owed a dead letter."""
        log, offset = origin
        self.marks[log] = max(self.marks.get(log, 0), offset + 1)
        if owed:
            self.owed.setdefault(log, set()).add(offset)
        elif offset in self.owed.get(log, ()):
            self.owed[log].remove(offset)
            if not self.owed[log]:
                del self.owed[log]
