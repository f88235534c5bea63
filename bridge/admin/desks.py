"""One desk for the stores of several brokers: each has its own, and people need not know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from bridge.admin.desk import Desk, Filter, Row, Stats
from bridge.core.ports import Found
from bridge.core.state import State


class Desks:
    """See ``bridge.admin.desk.Desk``. An id is in one store at most, so every desk is asked for all."""

    def __init__(self, desks: Sequence[Desk]) -> None:
        self._desks = desks

    async def now_ms(self) -> int:
        """See ``bridge.admin.desk.Desk.now_ms``."""
        return await self._desks[0].now_ms()

    async def rows(self, state: State, wanted: Filter) -> AsyncIterator[Row]:
        """See ``bridge.admin.desk.Desk.rows``."""
        readers = [desk.rows(state, wanted) for desk in self._desks]
        heads = [await anext(reader, None) for reader in readers]
        while any(heads):
            place = min((row.at_ms, row.id, place) for place, row in enumerate(heads) if row)[2]
            row, heads[place] = heads[place], await anext(readers[place], None)
            assert row is not None
            yield row

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        """See ``bridge.admin.desk.Desk.look``."""
        found = {row.id: row for desk in self._desks for row in await desk.look(ids, payload_bytes)}
        return [found[one] for one in ids if one in found]

    async def find(self, route: str, key: bytes) -> Found:
        """See ``bridge.admin.desk.Desk.find``."""
        found = [await desk.find(route, key) for desk in self._desks]
        return Found([one for some in found for one in some.ids], sum(some.unlisted for some in found))

    async def cancel(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        """See ``bridge.admin.desk.Desk.cancel``."""
        return _told([await desk.cancel(ids) for desk in self._desks])

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, str]:
        """See ``bridge.admin.desk.Desk.reschedule``."""
        return _told([await desk.reschedule(ids, due_ms) for desk in self._desks])

    async def retry(self, ids: Sequence[bytes]) -> int:
        """See ``bridge.admin.desk.Desk.retry``."""
        return sum([await desk.retry(ids) for desk in self._desks])

    async def stats(self) -> Stats:
        """See ``bridge.admin.desk.Desk.stats``."""
        return together([await desk.stats() for desk in self._desks])


def _told(words: Iterable[dict[bytes, str]]) -> dict[bytes, str]:
    """What the desk that has it says of an id; the others say none."""
    found: dict[bytes, str] = {}
    for some in words:
        for one, word in some.items():
            if found.get(one, "none") == "none":
                found[one] = word
    return found


def together(stats: Sequence[Stats]) -> Stats:
    """Pure: the sums. The memory is that of one server, which all stores are in."""
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
        instances={name: said for one in stats for name, said in one.instances.items()},
        memory=stats[0].memory,
        bytes_each=sum(size * count for size, count in sizes) // count if count else None,
        refused=sum(one.refused for one in stats),
        warnings=list(dict.fromkeys(word for one in stats for word in one.warnings)),
    )
