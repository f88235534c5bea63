"""Everything of one run: servers, instances, producers, operators, and what the ledger gets to know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from bridge.core.errors import StoreUnavailable
from bridge.core.journal import UNDONE, JournalFilter, Written
from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.parking.envelope import unseal
from bridge.pipeline.journal_watch import JOURNAL_RESTORE
from bridge.pipeline.putback import Fate
from bridge.pipeline.restore import Restored, RestoreOrder
from tests.simulation.broker import Arrived, Broker, Published
from tests.simulation.instance import RETRY_ROUTE, WAITS_MS, Instance
from tests.simulation.journal import JournalOf, JournalServer
from tests.simulation.levels import LevelInstance
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.plan import HOLD_UP_MOVES, LOAD_S, Plan
from tests.simulation.store import SimulatedStore, StoreServer

#: The route with priorities and, by plan, with a rate.
RATED_ROUTE = "invoices"
ROUTES = ("orders", RATED_ROUTE, RETRY_ROUTE)

#: Delays (ms), and those of a run with a cold tier.
NEAR_MS, FAR_MS = (0, 50, 500, 2_000, 5_000), (0, 500, 5_000, 12_000, 20_000, 35_000)
#: The journal knows within this time what left the store; another instance takes a shard over within the second.
TAILED_S, TAKEN_OVER_S = 1.5, 8.0
#: By how much longer (s) the requests of every second restore travel: it still looks for what another brings back.
FAR_S = 0.1
#: Within this time the rows are written of messages whose instance died.
ADOPTED_S = 12.0
#: Within this time cold messages are counted again. They are counted every 5 s, and a count gives way to moves of a
#: restore, so it may take four.
COUNTED_S = 20.0

AnyInstance = Instance | LevelInstance


@dataclass
class Deed:
    """What an operator asked of one message, by its id in the store, and when. ``answered_s``: None without an answer.

    ``moment_ms``: the new due moment, for what has one. ``word``: the state of the message in the answer.
    """

    verb: str
    number: int
    id: bytes
    asked_s: float
    moment_ms: float = 0.0
    answered_s: float | None = None
    word: str = ""


@dataclass
class Order:
    """What operators ordered for a route, and until when."""

    route: str
    state: RouteState
    from_s: float
    to_s: float = float("inf")


@dataclass
class Undone:
    """The store lost what happened between two moments: it failed over, was restored, or (from 0) emptied.

    ``until_s``: when all was back from the journal. ``older``: it has an older state, and was not emptied.
    """

    from_s: float
    at_s: float
    until_s: float
    older: bool = True


@dataclass
class World:
    """A run under way."""

    plan: Plan
    loop: VirtualLoop
    random: Random
    store: StoreServer
    broker: Broker
    instances: list[AnyInstance] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    undone: list[Undone] = field(default_factory=list)
    #: Numbers of messages that the store lost, which the promises exclude.
    gone: set[int] = field(default_factory=set)
    journal: JournalServer | None = None
    #: With a journal: what the store lost, by number with the moments, and by id until the store has it again.
    lost_s: dict[int, list[float]] = field(default_factory=dict)
    missing: set[bytes] = field(default_factory=set)
    #: Commands that restore. Cancelled messages: when a command brought them back, and those that one may bring back.
    restores: list[Process] = field(default_factory=list)
    brought_back_s: dict[int, float] = field(default_factory=dict)
    #: Losses during a restore, which took its turn: when, and its process; and when each restore ended.
    turns_lost: list[tuple[float, Process]] = field(default_factory=list)
    restored_s: dict[str, float] = field(default_factory=dict)
    maybe_back: set[int] = field(default_factory=set)
    #: Instances that others replace.
    leaving: list[AnyInstance] = field(default_factory=list)
    #: Routes that the settings of instances lack that start now.
    removed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    started: int = 0
    faults_end_s: float = 0.0
    #: By how much longer (s) a message may wait than it asked for.
    waits_s: float = 0.0

    def __post_init__(self) -> None:
        self._operator = Process("operator", self.loop)
        self._desk: Any = SimulatedStore(self.store, "operator")
        self._numbers: dict[bytes, int] = {}
        self.cold_after_ms = self.plan.cold_after_ms
        if self.journal is not None:
            self._desk = JournalOf(self._desk, self.journal).operators_desk()
            self.waits_s += max(FAR_MS) / 1000 if self.cold_after_ms else 0.0
        self.broker.consumer = self._consume

    def start(self) -> AnyInstance:
        """Start an instance, with every route that was not removed."""
        self.started += 1
        if self.plan.levels:
            self.instances.append(LevelInstance(f"{self.started:06d}", self.loop, self.broker))
            return self.instances[-1]
        routes = tuple(route for route in ROUTES if route not in self.removed)
        rates = {RATED_ROUTE: self.plan.rate} if self.plan.rate else {}
        facts = self.plan, rates, self.journal, self.cold_after_ms
        instance = Instance(f"{self.started:06d}", self.loop, self.store, self.broker, routes, *facts)
        self.instances.append(instance)
        return instance

    @property
    def froze(self) -> bool:
        """Return whether an instance may have stood still between the row of a message and its parking."""
        return any(fault.kind in ("freeze", "loader frozen") for fault in self.plan.faults)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time():8.3f} s  {text}")

    # -- producers and consumers ------------------------------------------------------------------------------------

    def schedule_load(self) -> None:
        """Producers publish a few messages at random moments, and bursts."""
        left = self.plan.messages
        while left > 0:
            number = min(left, self.random.choice((1, 1, 2, 5, 20)))
            left -= number
            self.loop.call_at(self.random.uniform(0.5, LOAD_S), self._publish, number)

    def _publish(self, number: int) -> None:
        random, now_ms = self.random, self.store.clock.now_us() / 1000
        for _ in range(number):
            key, route = b"key %d" % random.randrange(self.plan.keys), random.choice((*ROUTES[:2], *ROUTES))
            wait_ms = random.choice(FAR_MS if self.plan.cold_after_ms else NEAR_MS)
            message = Published(len(self.published), self.loop.time(), key, {}, route, 0.0)
            if self.plan.levels:
                wait = {"x-delay": wait_ms}
                self.send(message._replace(route="orders", headers=wait, due_ms=now_ms + wait_ms, relative=True))
            elif route == RETRY_ROUTE:
                self.send(message._replace(due_ms=now_ms + WAITS_MS[0], relative=True, attempt=1))
            elif random.random() < (0.06 if self.plan.cold_after_ms else 0.03):
                name = b"name %d" % random.randrange(6)
                self.send(message._replace(headers={"x-delay-cancel": name}, cancels=name))
            else:
                self._publish_delayed(message, wait_ms, now_ms)

    def _publish_delayed(self, message: Published, wait_ms: int, now_ms: float) -> None:
        """With a delay, or with a moment on a grid of 100 ms, which many messages share."""
        random = self.random
        if random.random() < 0.6:
            due_ms = int((now_ms + wait_ms) // 100 * 100)
            message = message._replace(headers={"x-deliver-at": due_ms}, due_ms=due_ms)
        else:
            # A log stamps what it takes; a delay of 0 ends at the arrival.
            since_ms = self.broker.now_ms() if self.plan.kafka and wait_ms else now_ms
            message = message._replace(headers={"x-delay": wait_ms}, due_ms=since_ms + wait_ms, relative=True)
        if random.random() < (0.2 if self.plan.cold_after_ms else 0.1):
            name = b"name %d" % random.randrange(6)
            message = message._replace(headers={**message.headers, "x-delay-key": name}, name=name)
        if message.route == RATED_ROUTE and not self.plan.kafka:
            message = message._replace(priority=random.choice((0, 0, 9)))
        self.send(message)

    def send(self, message: Published) -> None:
        """Publish a message."""
        self.published.append(message)
        self.broker.publish(message)

    def _consume(self, arrived: Arrived) -> None:
        """A consumer of the retry route rejects four of ten messages, which come in again with their next attempt."""
        message = self.published[arrived.number]
        if message.route != RETRY_ROUTE or message.attempt >= len(WAITS_MS) or self.random.random() < 0.6:
            return
        attempt = message.attempt + 1
        self.loop.call_later(self.broker.travel_s(), self._fail, message, attempt)

    def _fail(self, message: Published, attempt: int) -> None:
        now_ms = self.store.clock.now_us() / 1000
        again = message._replace(number=len(self.published), at_s=self.loop.time(), attempt=attempt)
        self.send(again._replace(due_ms=now_ms + WAITS_MS[attempt - 1]))

    # -- operators --------------------------------------------------------------------------------------------------

    def kept(self) -> dict[bytes, int]:
        """Return the numbers of all messages in the store, by id, and of those that the journal alone has."""
        found = {
            message_id: self.number_of(message_id, envelope)
            for shard in self.store.memory.shards
            for message_id, envelope in shard.messages.items()
        }
        if self.journal is not None:
            left, rows = self.left(), self.journal.memory.rows
            found |= {
                message_id: self.number_of(message_id, rows[message_id].message.envelope)
                for message_id, state in self.journal.waiting().items()
                if state is Written.COLD and message_id not in found and message_id not in left
            }
        return found

    def number_of(self, message_id: bytes, envelope: bytes) -> int:
        """Return the number of a message."""
        number = self._numbers.get(message_id)
        if number is None:
            number = self._numbers[message_id] = int(unseal(envelope).payload)
        return number

    def left(self) -> set[bytes]:
        """Return the ids of what has left the store and of which the journal does not know that."""
        moves = (move for shard in self.store.memory.shards for move in shard.moved or ())
        return {message_id for move in moves if move.state is not None and move.state.ended for message_id in move.ids}

    def act(self, verb: str, ids: Iterable[bytes], after_ms: float = 0.0) -> None:
        """Let an operator act on messages. ``after_ms``: the new moment, from now, of a rescheduled message."""
        numbers, asked_s = self.kept(), self.loop.time()
        moment_ms = self.store.clock.now_us() / 1000 + after_ms
        deeds = [
            Deed(verb, numbers[message_id], message_id, asked_s, moment_ms)
            for message_id in ids
            if message_id in numbers
        ]
        if deeds:
            self.deeds += deeds
            self._operator.context.run(self._ask, verb, deeds, int(moment_ms) if after_ms else 0)

    def _ask(self, verb: str, deeds: Sequence[Deed], moment_ms: int) -> None:
        self._operator.tasks.append(self.loop.create_task(self._act(verb, deeds, moment_ms)))

    async def _act(self, verb: str, deeds: Sequence[Deed], moment_ms: int) -> None:
        ids, words = [deed.id for deed in deeds], dict[bytes, str]()
        try:
            if verb == "cancel":
                words = await (self._desk.cancel(ids, True) if self.journal is None else self._desk.cancel(ids))
            elif verb == "retry":
                await self._desk.retry(ids)
            else:
                words = await self._desk.reschedule(ids, moment_ms)
        except StoreUnavailable:
            return
        for deed in deeds:
            deed.answered_s, deed.word = self.loop.time(), words.get(deed.id, "")
        self.note(f"{verb}: {[(deed.number, deed.word) for deed in deeds]}")

    # -- losses, and what comes back --------------------------------------------------------------------------------

    def lose(self, from_s: float, change: Callable[[], None]) -> None:
        """Let the store lose what a ``change`` takes away. An operator notices it some seconds later."""
        now_s, before, left = self.loop.time(), self.kept(), self.left()
        change()
        has = self.in_store()
        if self.journal is None:
            self.gone |= {number for message_id, number in before.items() if message_id not in has}
            self.undone.append(Undone(from_s, now_s, now_s))
            return
        for message_id in before.keys() - has:
            self.lost_s.setdefault(before[message_id], []).append(now_s)
        self.missing |= (before.keys() | left) - has
        self.undone.append(Undone(from_s or self._unwritten_s(now_s), now_s, inf, from_s > 0))
        self.turns_lost += [(now_s, process) for process in self._restoring()]
        if not self.plan.auto:
            self._restore_soon()

    def in_store(self) -> set[bytes]:
        """Return the ids of what the store has."""
        return {message_id for shard in self.store.memory.shards for message_id in shard.messages}

    def _unwritten_s(self, now_s: float) -> float:
        """Return since when the journal may not know what left the store, or was moved there."""
        if self.plan.lost or self.plan.slow:
            return 0.0
        from_s = now_s - TAILED_S
        for fault in sorted(self.plan.faults, reverse=True):
            if fault.kind in HOLD_UP_MOVES and fault.at_s < from_s <= fault.at_s + fault.for_s + TAKEN_OVER_S:
                from_s = fault.at_s
        return from_s

    def _restore_soon(self) -> None:
        """Operators restore. The command may be killed, and repeated; or two of them do the same."""
        random, after_s = self.random, self.random.uniform(0.2, 6.0)
        if random.random() < 0.3:
            self.loop.call_later(after_s, self.restore, RestoreOrder(), random.uniform(0.0, 3.0))
            after_s += 3.0
        for _ in range(random.choice((1, 2, 2))):
            self.loop.call_later(after_s + random.uniform(0.0, 0.5), self.restore)

    def restore_what_is_reported(self) -> None:
        """Operators restore again where an instance reports that the store lacks messages: what was being parked at
        the loss may have got its row after a restore had read that page."""
        reported = any(
            not instance.process.killed and JOURNAL_RESTORE in instance.health.troubles()
            for instance in self.instances
            if isinstance(instance, Instance) and hasattr(instance, "health")
        )
        if reported and not self.plan.auto and not self.restores_under_way():
            self.restore()

    def restores_under_way(self) -> bool:
        """Return whether a command restores."""
        return any(self._restoring())

    def _restoring(self) -> list[Process]:
        return [process for process in self.restores if not process.killed and not process.tasks[0].done()]

    def restore(self, order: RestoreOrder = RestoreOrder(), for_s: float = inf, number: int = -1) -> None:  # noqa: B008
        """Let an operator restore. The command is killed after ``for_s``. ``number``: the one message that it names."""
        process = Process(f"restore {len(self.restores) + 1}", self.loop)
        process.far_s = FAR_S * (len(self.restores) % 2)
        self.restores.append(process)
        self.note(f"{process.name} begins")
        process.context.run(self._begin_restore, process, order, number)
        if for_s < inf:
            self.loop.call_later(for_s, process.kill)

    def _begin_restore(self, process: Process, order: RestoreOrder, number: int) -> None:
        process.tasks.append(self.loop.create_task(self._restore(process, order, number)))

    async def _restore(self, process: Process, order: RestoreOrder, number: int) -> None:
        assert self.journal is not None
        restored, began_s = Restored(), self.loop.time()
        restorer = JournalOf(SimulatedStore(self.store, process.name), self.journal).restorer()
        while True:  # as ``RunningOperation.patiently``
            try:
                await restorer.run(order, restored)
                break
            except StoreUnavailable:
                await asyncio.sleep(1.0)
        if number >= 0 and restored.total(Fate.PARKED):
            self.brought_back_s[number] = began_s
        self.restored_s[process.name] = self.loop.time()
        self.note(f"{process.name} ends: {dict(restored.counts)}")

    def counted_from_s(self) -> float:
        """Return when the counts of cold messages are true again, after the store lost moves, or its clock made
        what was loaded due while it was counted."""
        leaps = [at_s for at_s, ms in self.store.clock.steps if ms > 0] if self.plan.cold_after_ms else []
        lost_s = max((*(undone.at_s for undone in self.undone), *leaps), default=-inf)
        if lost_s > -inf and (self.plan.lost or self.plan.slow):
            lost_s = max(lost_s, self.faults_end_s, LOAD_S)
        for fault in self.plan.faults:
            if fault.kind in HOLD_UP_MOVES and fault.at_s <= lost_s + COUNTED_S:
                lost_s = max(lost_s, fault.at_s + fault.for_s)
        return lost_s + COUNTED_S

    def look_for_missing(self) -> None:
        """Forget what came back. Where all did, the loss is over."""
        assert self.journal is not None
        self.missing -= self.in_store()
        if self.undone and self.undone[-1].until_s == inf and not self.missing & self.journal.waiting().keys():
            for undone in self.undone:
                undone.until_s = min(undone.until_s, self.loop.time())

    def behind_its_row(self, number: int) -> bool:
        """Return whether an older state of the store has a message as it was before an operator moved it, and its clock
        was set back: until the clock has shown that moment again, the row ignores what becomes of the message."""
        if all(ms > 0 for _, ms in self.store.clock.steps):
            return False
        moved_s = [deed.asked_s for deed in self.deeds if deed.number == number]
        lost_s = self.lost_s.get(number, ())
        has_it = [lost for lost in self.undone if lost.older and lost.at_s not in lost_s]
        return any(lost.from_s <= at_s <= lost.at_s for lost in has_it for at_s in moved_s)

    def undo_cancels(self) -> None:
        """Let operators bring back a few of the messages that were cancelled."""
        cancelled = [deed for deed in self.deeds if deed.verb == "cancel" and deed.word == "parked"]
        for deed in self.random.sample(cancelled, min(3, len(cancelled))):
            self.maybe_back.add(deed.number)
            wanted = JournalFilter((Written.WAITING, Written.DEAD, *UNDONE), ids=(deed.id,))
            self.restore(RestoreOrder(wanted), number=deed.number)

    def order(self, route: str, state: RouteState) -> Order:
        """Order a route into a state, as an operator does. Return the order."""
        now_s, orders = self.loop.time(), self.store.memory.orders
        for order in self.orders:
            if order.route == route:
                order.to_s = min(order.to_s, now_s)
        if state is RouteState.RUNNING:
            orders.pop(route, None)
        else:
            orders[route] = RouteOrder(state, int(self.store.clock.now_us() // 1000), Actor("an operator"), "")
        self.orders.append(Order(route, state, now_s))
        return self.orders[-1]
