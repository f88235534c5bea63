"""The journal of a simulated run: a database behind connections that may fail, and what a process does with it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import Journal, JournalUnavailable, Written
from bridge.desk.past import AuditEntry
from bridge.desk.rows import Row
from bridge.operate.journaled_desk import JournaledDesk
from bridge.pipeline.journal_watch import JournalWatch
from bridge.pipeline.journaled import Journaling, journaling
from bridge.pipeline.restore import Restorer
from bridge.pipeline.tiers import Loader, TieredStore, Tiering
from bridge.telemetry.health import Health
from tests.simulation.plan import Plan
from tests.simulation.servers import Connection, Server, asked
from tests.simulation.store import SimulatedStore, run_at_once

T = TypeVar("T")

#: How long a client waits for a transaction, and how long rows are kept after their end.
TIMEOUT_S, KEEP_MS = 5.0, 3_600_000


class JournalServer(Server):
    """A database: its rows, and which share of the transactions loses its connection."""

    def __init__(self, loop: Any, random: Any) -> None:
        super().__init__(loop, random)
        self.memory = MemoryJournal()
        self.breaking = 0.0

    def waiting(self) -> dict[bytes, Written]:
        """Return the state of each message that waits, by its row."""
        rows = self.memory.waits.items()
        return {message_id: row.message.state for message_id, row in rows if row.message.envelope}

    def carry_out(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out a transaction, unless its connection is lost before. If the connection is lost after it, the caller
        gets an error all the same."""
        breaks = self.breaking and self.random.random() < self.breaking
        if breaks and self.random.random() < 0.5:
            raise JournalUnavailable("the connection was lost")
        answer = run_at_once(call())
        if breaks:
            raise JournalUnavailable("the connection was lost")
        return answer


class SimulatedJournal:
    """A ``Journal`` of one process. Each transaction has a connection of its own, as with a pool."""

    def __init__(self, server: JournalServer) -> None:
        self._server = server

    async def _remote(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            answer: T = await asked(Connection(self._server), lambda: self._server.carry_out(call), TIMEOUT_S)
        except TimeoutError:
            raise JournalUnavailable("no answer in time") from None
        return answer


def _over_the_wire(name: str) -> Any:
    plain = getattr(MemoryJournal, name)

    async def call(self: SimulatedJournal, *args: Any, **more: Any) -> Any:
        return await self._remote(lambda: plain(self._server.memory, *args, **more))

    call.__name__ = name
    return call


_CALLS = (
    "open close write propose rivals lacking drop record shift page named cold_counts density newest look count flow "
    "prune"
)
for _name in _CALLS.split():
    setattr(SimulatedJournal, _name, _over_the_wire(_name))


class SimulatedDesk(MemoryDesk):
    """``MemoryDesk`` over the connection of a store."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__(store)
        self._simulated = store

    def _check(self) -> None:
        if self._simulated.fails:
            raise StoreUnavailable(self._simulated.fails)
        super()._check()

    async def now_ms(self) -> int:
        return await self._simulated.remote(self._now_ms)

    async def _now_ms(self) -> int:
        self._check()
        return await super().now_ms()

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        return await self._simulated.remote(lambda: MemoryDesk.lead(self, what, who, ttl_ms))

    async def note(self, entry: AuditEntry) -> None:
        await self._simulated.remote(lambda: MemoryDesk.note(self, entry))

    async def look(self, ids: Any, payload_bytes: int) -> list[Row]:
        return await self._simulated.remote(lambda: MemoryDesk.look(self, ids, payload_bytes))


class JournalOf:
    """The journal of one process, and what works with it."""

    def __init__(self, store: SimulatedStore, server: JournalServer) -> None:
        self.store = store
        simulated: Any = SimulatedJournal(server)
        self.journal: Journal = simulated
        moves: Any = store
        self.loader = Loader(self.journal, moves, moves, store.shards)
        self.desk = SimulatedDesk(store)

    async def begin(self, plan: Plan, cold_after_ms: int) -> None:
        """Open it, as ``begin_logs`` does at a start."""
        await self.journal.open()
        await self.store.read(range(self.store.shards), 1)
        if plan.journal == "behind":
            await self.store.read(range(self.store.shards), 1, parks=True)
        await self.loader.begin(cold_after_ms > 0)

    def journaling(self, plan: Plan, cold_after_ms: int, name: str, health: Health) -> Journaling:
        """Return what an instance does for it."""
        tiering = Tiering(self.loader, self.journal, self.store, self.desk, name, cold_after_ms, health)
        tiered, before = TieredStore(self.store, self.loader), plan.journal == "before"
        return journaling(tiered, self.journal, self.store, before, KEEP_MS, health, lambda _: False, tiering)

    def restorer(self) -> Restorer:
        """Return what restores the store."""
        return Restorer(TieredStore(self.store, self.loader), self.desk, self.journal, self.store)

    def watch(self, plan: Plan, name: str, health: Health) -> JournalWatch:
        """Return what notices that the store lost messages."""
        return JournalWatch(self.restorer(), self.desk, name, plan.auto, health)

    def operators_desk(self) -> JournaledDesk:
        """Return the desk of both tiers."""
        return JournaledDesk(self.desk, self.journal, "rabbitmq", self.loader)
