"""Routes without a store: take a message, send it on to where it waits or is wanted, then accept it.

A delivery is accepted only when the broker has confirmed what it became: a message in a level's queue, at its
destination, or among the dead letters. Until then the source has it, so a crash makes copies and loses nothing. What
the destination refuses is tried again after a wait, by a timer of its own, and delays nothing else. A limited number
waits like that. Those beyond become dead letters at once, so that a missing destination delays no other messages. At a
stop they become dead letters, too, unless the broker keeps what it gets back for the next process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from bridge.core.clock import StoreClock
from bridge.core.message import Delivery, Outcome, Refusal
from bridge.core.ports import Link, Result, Sink, Source
from bridge.core.reasons import Reason, ReasonKind, unreadable
from bridge.delay.levels import Bury, Deliver, Hold, LevelRules, Move, decide
from bridge.pipeline.settle import RetryRules, next_try_ms, verdict
from bridge.telemetry.health import Health, RefusedRoutes
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.notices import Notices
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

#: What had no answer, because the connection was lost, is sent again after this time.
_UNKNOWN_S = 0.05
#: The longest wait for room in the sink before it is checked again.
_ROOM_S = 1.0
#: A missing queue or topic is recreated within this time.
_MENDED_MS = 1000
#: RabbitMQ's sink tries one message in a second where the destination is refused so, and all routes share its source.
_OF_DESTINATION = frozenset({ReasonKind.MISSING_EXCHANGE, ReasonKind.FORBIDDEN})
#: A dead letter to which no reason is added: for one that the broker refuses with it.
_PLAIN = Bury(None)
_EARLY = Reason(ReasonKind.EARLY, "a queue where it should have waited was missing, or did not hold it")


class Parcel(NamedTuple):
    """A message as it is to be sent. ``place`` is the sink's name for where (``Letter.route``).

    The sink may tell the consumer an id, and when the message was due (Unix ms; None: when the move means it to be).
    """

    place: str
    payload: bytes
    public_id: bytes = b""
    due_ms: int | None = None


class Owed(NamedTuple):
    """Delay that a delivery has not waited yet.

    ``queue_gone``: because a queue where it should have waited is missing.
    """

    wait_ms: int
    queue_gone: bool


class Packing(Protocol):
    """What a broker makes of a move. Adapters subclass it; the methods with a body are for what some brokers need."""

    def route_of(self, delivery: Delivery) -> str:
        """Return the route of the settings that a delivery belongs to, wherever it was taken from."""

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        """Return a delivery as it is to be sent. ``due_ms``: when a held message will be due, Unix ms.

        Raises ``ValueError`` for what cannot be read, but not for ``Bury(None)``, which adds no reason.
        """

    def owed(self, delivery: Delivery) -> Owed | None:
        """Return the delay that a delivery from a level still has to wait."""
        return None

    def may_go_back(self, delivery: Delivery) -> bool:
        """Return whether the broker keeps a delivery that it gets back until it is taken again."""
        return True


@dataclass(slots=True)
class Carried:
    """A delivery on its way: a ``Letter`` for the sink."""

    route: str
    public_id: bytes
    payload: bytes
    due_ms: int
    arrived_ms: int
    delivery: Delivery
    move: Move
    tries: int = 0
    due_known: bool = False


@dataclass(frozen=True)
class RelayLimits:
    """How many messages and bytes are taken at once, and how many refused ones may wait for another try."""

    batch_max: int
    batch_bytes: int
    refused_max: int
    refused_bytes: int


class Relay:
    """The loops. ``rules`` are by ``Delivery.route``. A delivery without rules comes from a level and is due."""

    def __init__(
        self,
        source: Source,
        sink: Sink[Carried],
        clock: StoreClock,
        rules: Mapping[str, LevelRules],
        packing: Packing,
        retries: RetryRules,
        mend: Callable[[], None],
        health: Health,
        limits: RelayLimits,
        metrics: Metrics,
        links: Sequence[Link] = (),
    ) -> None:
        """``mend()`` is called when a queue or topic of postdate is missing.

        ``links`` keep the broker's connections.
        """
        self._source = source
        self._sink = sink
        self.able = sink.able
        self._clock = clock
        self._rules = rules
        self._packing = packing
        self._retries = retries
        self._mend = mend
        self._health = health
        self._limits = limits
        self._links = links
        self._metrics = metrics
        self._room = asyncio.Event()
        self._again: asyncio.Queue[Carried] = asyncio.Queue()
        #: What waits for another try, by the id of the object, with its timer and the reason.
        self._resting: dict[int, tuple[Carried, asyncio.TimerHandle, Reason]] = {}
        self._resting_bytes = 0
        self._dead = Notices(log.warning)
        self._refused = Notices(log.info)
        self._refused_routes = RefusedRoutes(health)
        self._stopping = False
        self._open = 0
        self._turns = 0
        self._idle = True

    def follow(self, rules: Mapping[str, LevelRules], retries: RetryRules) -> None:
        """Use these rules for deliveries from now on."""
        self._rules = {name: rules[name] for name in self._rules}
        self._retries = retries

    def mark(self) -> object:
        """Return what changes with every turn of the loop; None while it waits for deliveries."""
        return None if self._idle else self._turns

    def under_way(self) -> int:
        """Return how many deliveries are neither accepted, nor given back, nor waiting for another try."""
        return self._open - len(self._resting)

    def finished(self) -> bool:
        """Return whether nothing is under way, and the source has nothing more, after ``stop``."""
        return self._source.emptied() and self.under_way() == 0

    def loops(self) -> Iterator[Coroutine[None, None, None]]:
        """Return the loops. None of them ends by itself."""
        yield from (link() for link in self._links)
        yield self.run()
        yield self.run_again()

    def stop(self) -> None:
        """Take nothing new and try nothing again. What the broker has handed out already is still sent.

        What waits for another try goes back to the source, or becomes a dead letter where it may not go back.
        """
        self._source.stop()
        self._stopping = True
        for carried, timer, reason in tuple(self._resting.values()):
            if self._must_be_kept(carried):
                timer.cancel()
                self._end_rest(carried)
                self._again.put_nowait(self._carried(carried.delivery, Bury(reason)))

    async def run(self) -> None:
        with closing(self._dead), closing(self._refused):
            while True:
                await self.once()

    async def once(self) -> None:
        """One pass: take a batch and send it on."""
        self._idle = True
        deliveries = await self._source.take(self._limits.batch_max, self._limits.batch_bytes)
        self._idle = False
        self._turns += 1
        self._open += len(deliveries)
        now_ms = self._clock.now_ms()
        carried = [self._begun(delivery, now_ms) for delivery in deliveries]
        await self._send([message for message in carried if message is not None])

    async def run_again(self) -> None:
        """Send what is to be sent again, until cancelled."""
        while True:
            waiting = [await self._again.get()]
            while not self._again.empty():
                waiting.append(self._again.get_nowait())
            await self._send(waiting)

    def answered(self, results: Sequence[Result[Carried]]) -> None:
        """Take the sink's answers. An empty batch means that the sink has room again."""
        done: list[Delivery] = []
        for result in results:
            carried = result.letter
            assert isinstance(carried, Carried)
            if result.outcome is not Outcome.CONFIRMED:
                self._not_delivered(carried, result.refusal)
            else:
                done.append(carried.delivery)
                self._count(carried)
        self._source.accept(done)
        if done and self._refused_routes:
            self._refused_routes.delivered({self._packing.route_of(delivery) for delivery in done})
        self._open -= len(done)
        self._room.set()

    def _count(self, carried: Carried) -> None:
        """Count what the broker confirmed: waiting for the first time, dead, or delivered."""
        move, delivery = carried.move, carried.delivery
        numbers = self._metrics.routes[self._packing.route_of(delivery)]
        if isinstance(move, Hold):
            numbers.parked += delivery.route in self._rules
        elif isinstance(move, Bury):
            kind = move.reason.kind if move.reason is not None else ReasonKind.UNREADABLE
            numbers.died(kind, on_arrival=delivery.route in self._rules)
            self._health.say(Subject("dead letters", self._packing.route_of(delivery)), "")
        else:
            numbers.confirmed += 1
            if carried.due_known:
                numbers.lateness_ms.add(max(0.0, self._clock.now_us() / 1000 - carried.due_ms))

    # -- one delivery -----------------------------------------------------------------------------------------------

    def _begun(self, delivery: Delivery, now_ms: int) -> Carried | None:
        """Return a delivery as it is to be sent; None if it is to be sent later."""
        rules = self._rules.get(delivery.route)
        if rules is not None:
            move = decide(delivery, rules, now_ms)
            numbers = self._metrics.routes[delivery.route]
            numbers.received += 1
            if isinstance(move, Hold):
                numbers.delay_ms.add(move.wait_ms)
            elif not delivery.headers:
                numbers.passed += 1
            return self._carried(delivery, move, now_ms)
        owed = self._packing.owed(delivery)
        if owed is None:
            return self._carried(delivery, Deliver())
        if not owed.queue_gone:
            return self._carried(delivery, Hold(owed.wait_ms))
        self._mend()
        self._hold_later(delivery, owed.wait_ms)
        return None

    def _hold_later(self, delivery: Delivery, owed_ms: int) -> None:
        """Hold a delivery that came early once the missing queue is there again."""
        route = self._packing.route_of(delivery)
        self._refused_routes.refused(route, _EARLY)
        self._refused.tell("refused", route, _EARLY, next_ms=_MENDED_MS)
        self._again_later(self._carried(delivery, Hold(owed_ms)), _MENDED_MS, _EARLY)

    def _carried(self, delivery: Delivery, move: Move, now_ms: int | None = None) -> Carried:
        """Return a delivery as it is to be sent. ``now_ms``: when its move was decided; so equal moments stay equal."""
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        due_ms = now_ms + move.wait_ms if isinstance(move, Hold) else now_ms
        if isinstance(move, Bury) and move.reason is not None:
            self._dead.tell("dead letter", self._packing.route_of(delivery), move.reason)
        try:
            place, payload, public_id, said_due_ms = self._packing.parcel(delivery, move, due_ms)
        except ValueError as error:
            if not isinstance(move, Bury):
                return self._carried(delivery, Bury(unreadable(error)))
            place, payload, public_id, said_due_ms = self._packing.parcel(delivery, _PLAIN, due_ms)
        known = said_due_ms is not None
        due_ms = due_ms if said_due_ms is None else said_due_ms
        return Carried(place, public_id, payload, due_ms, delivery.arrived_ms, delivery, move, due_known=known)

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _send(self, waiting: Sequence[Carried]) -> None:
        """Publish in order, as far as there is room, and wait for more."""
        left = list(waiting)
        while left := self._acknowledgeable(left):
            self._room.clear()
            messages_max, bytes_max = self._sink.room()
            now = _fitting(left, messages_max, bytes_max)
            if now:
                self._sink.publish(left[:now])
                left = left[now:]
            else:
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait for a second at most: no single event is trusted to wake this loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROOM_S):
                await self._room.wait()
        self._turns += 1

    def _acknowledgeable(self, waiting: list[Carried]) -> list[Carried]:
        """Return those that can still be acknowledged. The others are delivered again."""
        alive = [carried for carried in waiting if self._source.alive(carried.delivery)]
        if len(alive) < len(waiting):
            self._give_back(carried for carried in waiting if not self._source.alive(carried.delivery))
        return alive

    def _give_back(self, carried: Iterable[Carried]) -> None:
        deliveries = [message.delivery for message in carried]
        self._source.drop(deliveries)
        self._open -= len(deliveries)

    # -- what came back ---------------------------------------------------------------------------------------------

    def _not_delivered(self, carried: Carried, refusal: Refusal | None) -> None:
        route = self._packing.route_of(carried.delivery)
        if refusal is None:
            self._metrics.routes[route].unknown += 1
            self._soon(carried, _UNKNOWN_S)
            return
        self._metrics.routes[route].refused += 1
        if isinstance(carried.move, Bury):
            self._dead_letter_refused(carried, refusal)
            return
        wait_ms, tries = verdict(carried.tries, refusal, self._retries, _spread())
        may_rest = self._may_rest(carried, refusal)
        self._refused_by_broker(carried, refusal)
        if wait_ms is None or not may_rest:
            self._soon(self._carried(carried.delivery, Bury(refusal.reason)), 0)
            return
        self._refused.tell("refused", route, refusal.reason, tries=tries, next_ms=wait_ms)
        carried.tries = tries
        self._again_later(carried, wait_ms, refusal.reason)

    def _may_rest(self, carried: Carried, refusal: Refusal) -> bool:
        """Return whether one more refused message may wait. One alone may, and what was not tried at all: but not for a
        destination that someone else has to mend."""
        bytes_then = self._resting_bytes + len(carried.delivery.payload)
        room = len(self._resting) < self._limits.refused_max and bytes_then <= self._limits.refused_bytes
        mended = isinstance(carried.move, Hold) or refusal.reason.kind not in _OF_DESTINATION
        return (refusal.again_ms is not None and mended) or not self._resting or room

    def _refused_by_broker(self, carried: Carried, refusal: Refusal) -> None:
        self._refused_routes.refused(self._packing.route_of(carried.delivery), refusal.reason)
        if isinstance(carried.move, Hold) and not refusal.lasting:
            self._mend()

    def _dead_letter_refused(self, carried: Carried, refusal: Refusal) -> None:
        """Retry a dead letter endlessly, without its reason: there is nowhere else to keep it."""
        words = f"a dead letter cannot be stored, and enough of them block their route: {refusal.reason}"
        subject = Subject("dead letters", self._packing.route_of(carried.delivery))
        self._health.say(subject, words, for_s=60, cause=refusal.reason.cause)
        if not refusal.lasting:
            self._mend()
        plain = self._packing.parcel(carried.delivery, _PLAIN, carried.due_ms)
        carried.route, carried.payload = plain.place, plain.payload
        carried.tries += 1
        wait_ms = next_try_ms(carried.tries, self._retries, _spread()) or self._retries.max_ms
        self._again_later(carried, wait_ms, refusal.reason)

    def _again_later(self, carried: Carried, wait_ms: int, reason: Reason) -> None:
        """Try what was refused again. While the process stops, give it back or bury it instead."""
        if not self._stopping:
            timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._rested, carried)
            self._resting[id(carried)] = carried, timer, reason
            self._resting_bytes += len(carried.delivery.payload)
        elif self._must_be_kept(carried):
            self._soon(self._carried(carried.delivery, Bury(reason)), 0)
        else:
            self._give_back((carried,))

    def _must_be_kept(self, carried: Carried) -> bool:
        """Return whether it has to become a dead letter before the process ends. A dead letter had its try."""
        return not isinstance(carried.move, Bury) and not self._packing.may_go_back(carried.delivery)

    def _rested(self, carried: Carried) -> None:
        self._end_rest(carried)
        self._again.put_nowait(carried)

    def _end_rest(self, carried: Carried) -> None:
        del self._resting[id(carried)]
        self._resting_bytes -= len(carried.delivery.payload)

    def _soon(self, carried: Carried, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._again.put_nowait, carried)


def _spread() -> float:
    return random.random()  # noqa: S311 (jitter, not a secret)


def _fitting(waiting: Sequence[Carried], messages_max: int, bytes_max: int) -> int:
    """Return how many of the first may be sent now. Pure. One that is larger than the window is sent alone."""
    count = size = 0
    for carried in waiting:
        size += len(carried.payload)
        if count == messages_max or (size > bytes_max and count):
            break
        count += 1
    return count if bytes_max > 0 else 0
