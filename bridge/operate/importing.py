"""Puts the messages of a file of `postdate export` back, line by line, in memory that does not grow with the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from bridge.core.state import State
from bridge.operate.export import DamagedLine, Line, read_head, read_line
from bridge.operate.operator import Progress
from bridge.operate.select import no_store, unknown_route
from bridge.parking.envelope import with_first
from bridge.parking.identity import id_within
from bridge.pipeline.putback import BATCH, BATCH_BYTES, Fate, PutBack, Restorable
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

#: Returns what puts messages back into the store of a broker.
Open = Callable[[BrokerKind], Awaitable[PutBack]]


@dataclass
class Imported:
    """What became of a file that was ``exported`` then. ``refused``: messages by the reason why their route takes none.
    ``whole``: its last line was there and fits."""

    exported: str
    read: int = 0
    other_routes: int = 0
    damaged: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    counts: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    whole: bool = False


class Import:
    """One pass through a file."""

    def __init__(self, settings: Settings, routes: frozenset[str], open_broker: Open) -> None:
        """``routes``: only their messages; all where it is empty."""
        self._settings = settings
        self._routes = routes
        self._open = open_broker
        self._stores: dict[BrokerKind, PutBack] = {}
        self._waiting: dict[BrokerKind, list[Restorable]] = {}
        self._messages = self._bytes = 0

    async def run(self, lines: Iterable[str], complain: Callable[[str], None], progress: Progress) -> Imported:
        """Put back the messages of a file. A damaged line is complained of and passed over.

        Raises ``DamagedLine`` for a file that is no export, and what the stores raise.
        """
        numbered = enumerate(lines, 1)
        found = Imported(read_head(next(numbered, (1, ""))[1]))
        for number, text in numbered:
            try:
                line = read_line(text)
            except DamagedLine as error:
                found.damaged += 1
                complain(f"line {number}: {error}")
                continue
            if isinstance(line, int):
                found.whole = line == found.read + found.damaged
                continue
            found.read += 1
            await self._take(line, found)
            if self._messages >= BATCH or self._bytes > BATCH_BYTES:
                await self._put()
                progress(found.read)
        await self._put()
        for store in self._stores.values():
            found.counts += store.counts
        return found

    async def _take(self, line: Line, found: Imported) -> None:
        route = line.opened.route
        if self._routes and route not in self._routes:
            found.other_routes += 1
        elif refusal := _refusal(self._settings, line):
            found.refused[refusal] += 1
        else:
            broker = self._settings.routes[route].broker
            if broker not in self._stores:
                self._stores[broker] = await self._open(broker)
            self._waiting.setdefault(broker, []).append(returning(line, self._stores[broker].shards))
            self._messages += 1
            self._bytes += len(line.envelope)

    async def _put(self) -> None:
        for broker, messages in self._waiting.items():
            await self._stores[broker].put(messages)
        self._waiting, self._messages, self._bytes = {}, 0, 0


def _refusal(settings: Settings, line: Line) -> str:
    """Return why the settings do not take a message; "" if they do."""
    route = line.opened.route
    if route not in settings.routes:
        return unknown_route(settings.routes, route).rstrip(".")
    if settings.routes[route].broker != line.broker:
        return f"route {route} is of {settings.routes[route].broker} in the settings, and of {line.broker} in the file"
    return no_store(settings, route)


def returning(line: Line, shards: int) -> Restorable:
    """Return a message as a store with this number of shards takes it. Consumers see the id of the file, also where the
    store needs another one. Pure."""
    message_id, opened = id_within(line.id, shards), line.opened
    return Restorable(
        message_id,
        opened.route.encode(),
        opened.due_ms,
        line.at_ms if line.state is State.PARKED else opened.due_ms,
        opened.key,
        line.envelope if message_id == line.id else with_first(line.envelope, opened, line.id),
        (line.reason or "unknown") if line.state is State.DEAD else "",
        line.state is State.CLAIMED,
    )
