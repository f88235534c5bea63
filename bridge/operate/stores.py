"""The stores as operators use them: the desk of all that hold messages, and where a new message is parked."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from bridge.app.brokers import close, connect, count_remains, desk_of, inspect, loader_of, open_journal, open_store
from bridge.app.build import instance_name
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, Refused, StoreUnavailable, StoreUnfit
from bridge.core.journal import Journal
from bridge.core.ports import ParkingStore
from bridge.core.process_mark import has_ended
from bridge.core.roll import ttl_of
from bridge.desk.clock_step import last_of
from bridge.desk.leftovers import Inspection
from bridge.desk.numbers import Stats
from bridge.desk.protocol import Desk, Desks
from bridge.operate.journaled_desk import JournaledDesk
from bridge.operate.journals import restorers
from bridge.operate.select import no_store
from bridge.operate.send import Message, new_id
from bridge.operate.send import send as park
from bridge.parking.identity import Ids, new_instance
from bridge.pipeline.journaled import JournaledStore
from bridge.pipeline.restore import Restorer
from bridge.pipeline.tiers import TieredStore
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import TITLES, BrokerKind
from bridge.settings.process_plan import store_of, unused_stores, used_stores
from bridge.telemetry.printable import complain

T = TypeVar("T")
#: Takes the id that a message would get; returns the one that it gets.
Reserve = Callable[[bytes], Awaitable[bytes]]
#: One look at the store serves all who ask within this time.
FRESH_S = 0.5
#: A store whose last look failed gets this time to answer the next one.
_AGAIN_S = 0.5
#: A store that did not answer for this time was away.
_AWAY_S = 2.0
#: An instance reports once a second. After this time a running one has.
_BEAT_S = 2.0
#: How often a first look that finds silent instances is repeated, each time after so long (s): those that run beat.
_REPEATS, _REPEAT_S = 6, 0.25
#: Instances note a loss of the store within a second. After this time none runs.
_NOTED_S = 5.0


class Stores(Protocol):
    """The stores behind an operator; ``KeptStores`` in production."""

    async def desk(self) -> Desk:
        """Return the desk of all stores. Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``."""

    async def park(
        self, broker: BrokerKind, make: Callable[[int], Message], reserve: Reserve | None = None
    ) -> tuple[bytes, Message]:
        """Park the message that ``make`` makes of the store's clock; ``reserve`` may replace its id. Raises as
        ``desk``, and what ``reserve`` raises."""

    def restorers(self, route: str | None) -> AbstractAsyncContextManager[Sequence[Restorer]]:
        """Open what restores each store from its journal, or only that of ``route``. Raises as ``desk``, and
        ``Refused`` where there is no journal."""

    async def close(self) -> None:
        """Close all connections."""


async def settled_stats(desk: Desk) -> Stats:
    """Return the numbers for a reader that has not looked before. By the store's clock, which may just have stepped, an
    instance may seem silent until its next beat."""
    found = await desk.stats()
    for _ in range(_REPEATS):
        if not found.silent:
            break
        await asyncio.sleep(_REPEAT_S)
        found = await desk.stats()
    return found


class Look:
    """The numbers of the store, read at most once in ``FRESH_S``; so is the error of a store that is away.

    All who ask meanwhile wait for the same look. It goes on when they have waited long enough.
    """

    def __init__(self, stores: Stores, settles: bool = False) -> None:
        """``settles``: the first look may take as long as ``settled_stats`` does, as for a command that looks once."""
        self._stores = stores
        self._settles = settles
        self._looking: asyncio.Task[None] | None = None
        self._found: Stats | PostdateError | None = None
        self._at = 0.0
        self._last: tuple[Stats | None, float] = None, -math.inf
        self._asked_s: float | None = None
        self._back_s = -math.inf
        #: The instances that ran at the last look, with their reports, and when that was seen (monotonic, s).
        self._ran: Mapping[str, tuple[Mapping[str, object], float]] = {}
        #: What the store had counted at the last look that saw no loss, what it said of one, and when (monotonic, s).
        self._counted: tuple[int, str, float] = 0, "", -math.inf
        self._lost_s = -math.inf

    def unanswered_s(self) -> float:
        """Return for how long the store has not answered: since the first question after its last answer."""
        return 0.0 if self._asked_s is None else time.monotonic() - self._asked_s

    def answers_s(self) -> float:
        """Return for how long the store has answered since this process saw it away; infinity if it never did."""
        return time.monotonic() - self._back_s

    def error(self) -> str:
        """Return why the last look failed; "" if it did not."""
        return str(self._found) if isinstance(self._found, PostdateError) else ""

    async def stats(self, within_s: float | None = None) -> Stats:
        """Return the numbers. Raises as the desk, and ``TimeoutError`` for a look that takes longer than ``within_s``.

        After a look that failed it takes at most ``_AGAIN_S``: then the store is away, until it answers.
        """
        if within_s is not None and self.error():
            within_s = min(within_s, _AGAIN_S)
        waited = False  # then what was found is new enough, however long this task had no turn
        while self._found is None or not (waited or time.monotonic() - self._at <= FRESH_S):
            looking = self._looking = self._looking or asyncio.create_task(self._look())
            done, _ = await asyncio.wait([looking], timeout=within_s)
            if not done:
                raise TimeoutError
            looking.result()
            waited = True
        if isinstance(self._found, PostdateError):
            raise self._found.with_traceback(None)
        return self._found

    def last(self, within_s: float) -> tuple[Stats | None, float]:
        """Return the last numbers with their age (s); None if they are older than ``within_s``."""
        found, at = self._last
        age_s = time.monotonic() - at
        return (found, age_s) if found is not None and age_s < within_s else (None, 0.0)

    async def _look(self) -> None:
        found: Stats | PostdateError | None = None
        self._asked_s = time.monotonic() if self._asked_s is None else self._asked_s
        try:
            desk = await self._stores.desk()
            found = await (settled_stats(desk) if self._settles and self._last[0] is None else desk.stats())
            found = self._with_those_that_ran(self._with_loss(found))
            if self._at and self.unanswered_s() > _AWAY_S:  # a first answer may be late, and ends no outage
                self._back_s = time.monotonic()
            self._asked_s = None  # although no caller may have waited for it
            self._last = found, time.monotonic()
        except PostdateError as error:
            found = error
        finally:
            if self._looking is asyncio.current_task():
                self._found, self._at, self._looking = found, time.monotonic(), None

    def _with_those_that_ran(self, found: Stats) -> Stats:
        """Let instances run for ``_BEAT_S`` more that ran a moment ago, and have not reported since because the store
        lost their reports. So too those that have been silent since long before that by the store's clock, or will be:
        it has stepped."""
        now_s, ran = time.monotonic(), self._ran
        kept = {
            name: ran[name]
            for name, ms in found.silent.items()
            if name in ran
            and not has_ended(ran[name][0].get("process"))
            and (passed_s := now_s - ran[name][1]) < _BEAT_S
            and not 0 < ms / 1000 - ttl_of(ran[name][0]) / 1000 < passed_s + _BEAT_S
        }
        if now_s - self._lost_s < _BEAT_S:
            kept |= {name: ran[name] for name in ran if name not in found.silent and now_s - ran[name][1] < _BEAT_S}
        self._ran = kept | {name: (report, now_s) for name, report in found.instances.items()}
        if not kept:
            return found
        silent = {name: ms for name, ms in found.silent.items() if name not in kept}
        return replace(found, instances={name: report for name, (report, _) in self._ran.items()}, silent=silent)

    def _with_loss(self, found: Stats) -> Stats:
        """Mark a store that counts less than before, until an instance has noted the loss."""
        count, now_s = sum(found.ever.values()), time.monotonic()
        before, loss, at_s = self._counted
        if count < before:
            self._lost_s = now_s
            if found.shrunk or (found.loss in ("", loss) and now_s - at_s < _NOTED_S):
                return replace(found, shrunk=True)
        self._counted = count, found.loss, now_s
        return found

    def forget(self) -> None:
        """Look again at the next request: a look that is under way may not see what was just done."""
        self._found = self._looking = None


def at_desk(settings: Settings, work: Callable[[Desk], Awaitable[T]]) -> T:
    """Do ``work`` at the desk of all stores. Blocking.

    Raises ``Refused`` where no route has a store and no store holds leftovers, ``StoreUnavailable``, ``StoreUnfit``,
    and what ``work`` raises.
    """

    async def visit() -> T:
        stores = KeptStores(settings)
        try:
            return await work(await stores.desk())
        finally:
            await stores.close()

    return asyncio.run(visit())


async def _open_all(client: Any, settings: Settings, route: str | None, journals: list[Journal]) -> Desk:
    desks = [await _open(client, store, journals) for store in await _stores(client, settings, route)]
    return desks[0] if len(desks) == 1 else Desks(desks)


async def _open(client: Any, plan: ProcessPlan, journals: list[Journal]) -> Desk:
    """Open a desk, with its journal if there is one, which is added to ``journals``."""
    store = open_store(plan.settings, StoreClock(), "desk", client)
    desk = desk_of(store, plan)
    await desk.open()
    journal = open_journal(plan)
    if journal is None:
        return desk
    journals.append(journal)
    return JournaledDesk(desk, journal, plan.broker, loader_of(store, journal))


async def _stores(client: Any, settings: Settings, route: str | None) -> Sequence[ProcessPlan]:
    """Those to look into. Raises as ``at_desk``."""
    refusal = no_store(settings, route)
    used = used_stores(settings)
    try:
        left = await _with_something_left(client, unused_stores(settings), bool(used))
    except StoreUnavailable as error:
        if not refusal:
            raise
        hint = f". Whether Redis still holds messages of previous settings is not known: {error}"
        hint = hint if settings.is_set("redis.url") else ""
        raise Refused(f"{refusal}{hint}") from error
    found = [*used, *left]
    if refusal and not any(route is None or plan.broker == settings.routes[route].broker for plan in found):
        raise Refused(refusal)
    return found or [store_of(settings, "rabbitmq")]


async def _with_something_left(client: Any, stores: Sequence[ProcessPlan], beside: bool) -> list[ProcessPlan]:
    """Of the stores that no route uses any more, those that hold messages or dead letters. One that cannot be read is
    no reason not to look into those ``beside`` it."""
    found = []
    for plan in stores:
        try:
            if any(await count_remains(client, plan.settings.redis)):
                found.append(plan)
        except StoreUnfit as error:
            if not beside:
                raise
            complain(f"Warning: cannot read the {TITLES[plan.broker]} messages that remain in Redis: {error}.")
    return found


def inspect_store(settings: Settings) -> Inspection:
    """Inspect the stores together. Raises ``StoreUnavailable``, ``StoreUnfit``."""
    judged = [asyncio.run(inspect(plan.settings.redis)) for plan in used_stores(settings)]
    step = last_of(store.step for store in judged)
    warnings = dict.fromkeys([*(word for store in judged for word in store.warnings), *([str(step)] if step else [])])
    losses = dict.fromkeys(store.loss for store in judged if store.loss)
    return Inspection(list(warnings), ". ".join(losses), sum(store.instances for store in judged))


class _Parking:
    """A store that is open for parking messages without a broker."""

    def __init__(self, plan: ProcessPlan) -> None:
        settings = plan.settings
        self._redis = settings.redis
        self._clock, token = StoreClock(), new_instance()
        self._store = open_store(settings, self._clock, instance_name(settings, token))
        self._ids = Ids(token)
        self._journal = open_journal(plan)
        self._opened: ParkingStore | None = None

    async def open(self) -> ParkingStore:
        """Return the store, open. With a journal, what is parked has its row at once."""
        if self._opened is None:
            await self._store.open(self._redis.durability, self._redis.replicas, self._redis.timeout)
            opened: ParkingStore = self._store
            if self._journal is not None:
                await self._journal.open()
                tiered = TieredStore(self._store, loader_of(self._store, self._journal))
                opened = JournaledStore(tiered, self._journal)
            self._opened = opened
        return self._opened

    def secret(self) -> bytes:
        """Return what signs retry states."""
        return self._store.secret()

    async def park(self, make: Callable[[int], Message], reserve: Reserve | None = None) -> tuple[bytes, Message]:
        """Park the message that ``make`` makes of the store's clock (Unix ms); return its id, and the message.

        ``reserve`` may replace the id that the message would get.
        """
        store = await self.open()
        await self._store.look_at_clock()
        message = make(self._clock.now_ms())
        message_id = new_id(store, self._ids, message)
        message_id = await reserve(message_id) if reserve else message_id
        return await park(store, self._ids, message, message_id), message

    async def close(self) -> None:
        await self._store.close()
        if self._journal is not None:
            await self._journal.close()


class KeptStores:
    """The desk of all stores, and the stores to park in: each is opened when it is first needed, and then kept."""

    def __init__(self, settings: Settings, route: str | None = None) -> None:
        """``route``: the only one that matters, so one without a store is refused."""
        self._settings = settings
        self._route = route
        self._client: Any = None
        self._desk: Desk | None = None
        self._journals: list[Journal] = []
        self._parkings: dict[BrokerKind, _Parking] = {}
        self._lock = asyncio.Lock()

    async def desk(self) -> Desk:
        """Return the desk of all stores. Raises as ``at_desk``; a later call tries again."""
        if self._desk is not None:
            return self._desk
        async with self._lock:
            if self._desk is None:
                client = connect(self._settings.redis)
                try:
                    self._desk = await _open_all(client, self._settings, self._route, self._journals)
                except PostdateError:
                    await close(client)
                    raise
                self._client = client
            return self._desk

    async def park(
        self, broker: BrokerKind, make: Callable[[int], Message], reserve: Reserve | None = None
    ) -> tuple[bytes, Message]:
        """Park a message in the store of a broker. Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``,
        and what ``reserve`` raises."""
        async with self._lock:  # a store takes one call at a time
            return await self._parking(broker).park(make, reserve)

    async def store(self, broker: BrokerKind) -> ParkingStore:
        """Return the store of a broker, open to park in. Raises as ``park``."""
        return await self._parking(broker).open()

    def restorers(self, route: str | None) -> AbstractAsyncContextManager[Sequence[Restorer]]:
        """Open what restores. Its connections are its own: a restore may take long."""
        return restorers(self._settings, route)

    def secret(self, broker: BrokerKind) -> bytes:
        """Return what signs the retry states of a broker's store, which is open."""
        return self._parking(broker).secret()

    def _parking(self, broker: BrokerKind) -> _Parking:
        if broker not in self._parkings:
            self._parkings[broker] = _Parking(store_of(self._settings, broker))
        return self._parkings[broker]

    async def close(self) -> None:
        for parking in self._parkings.values():
            await parking.close()
        for journal in self._journals:
            await journal.close()
        if self._client is not None:
            await close(self._client)
