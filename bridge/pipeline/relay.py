"""The way of a message on a route without a store: taken, sent on to where it waits or is wanted, then accepted.

A delivery is accepted only when the broker has confirmed what it became: a message in a level's queue, at its
destination, or among the dead letters. Until then the source has it, so a crash costs copies and no message. What the
destination refuses is tried again for a while, by its own timer, in nobody's way; only so many wait like that, and
those beyond become dead letters at once, so that a destination that is gone holds up nobody else's messages. At a stop
they become dead letters, too, where the broker would not wait for the next process with what it gets back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import structlog

from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Delivery, Outcome, Refusal
from bridge.core.ports import Result, Sink, Source
from bridge.delay.levels import Bury, Deliver, Hold, LevelRules, Move, decide
from bridge.pipeline.retry import RetryRules, next_try_ms
from bridge.telemetry.health import Health, RefusedRoutes
from bridge.telemetry.notices import Notices

log = structlog.get_logger("postdate")

#: What had no answer, because the connection went, is looked at again after so long.
_UNKNOWN_S = 0.05
#: So long it waits for the sink before it looks again.
_ROOM_S = 1.0
#: A place that is gone is made again within this.
_MENDED_MS = 1000


class Parcel(NamedTuple):
    """A message as it is to be sent: the name of the place for the sink (``Claim.route``), and its payload. The sink
    may tell the consumer an id, and when it was due (Unix ms; None for the moment that the move means)."""

    place: str
    payload: bytes
    public_id: bytes = b""
    due_ms: int | None = None


class Packing(Protocol):
    """What the broker's side makes of a move."""

    def route_of(self, delivery: Delivery) -> str:
        """The route of the settings that a delivery belongs to, wherever it was taken from."""

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        """``due_ms``: when a held message will be due, Unix ms."""

    def cut_short(self, delivery: Delivery) -> int | None:
        """The wait (ms) that ended before its time, by the message's own expiration, and has to be waited again."""

    def left_out(self, delivery: Delivery) -> int | None:
        """The part of its wait (ms) that a delivery has not had, because a place was gone where it should have been."""

    def may_go_back(self, delivery: Delivery) -> bool:
        """Whether the broker, when it gets a delivery back, keeps it until it is taken again."""

    def plain_dead_letter(self, delivery: Delivery) -> Parcel:
        """A dead letter with nothing added to it: for one that the broker would not take with its reason."""

    def in_parts(self, delivery: Delivery, reason: str) -> Iterator[Parcel] | None:
        """A dead letter that the broker would not take as a whole, in parts that it takes, one after the other; None
        where a message cannot be parted."""


@dataclass(slots=True)
class Carried(Claim):
    """A delivery on its way, as the sink knows it. Of what goes in parts, ``parts`` are those still to come."""

    delivery: Delivery
    move: Move
    parts: Iterator[Parcel] | None = None


@dataclass(frozen=True)
class RelayLimits:
    """How many messages and bytes are taken at once, and how many refused ones may wait for another try."""

    batch_max: int
    batch_bytes: int
    refused_max: int


class Relay:
    """The loops. ``rules`` are by ``Delivery.route``; what has none there has waited already, and is delivered."""

    def __init__(
        self,
        source: Source,
        sink: Sink,
        clock: StoreClock,
        rules: Mapping[str, LevelRules],
        packing: Packing,
        retries: RetryRules,
        mend: Callable[[], None],
        health: Health,
        limits: RelayLimits,
    ) -> None:
        """``mend()`` is called when the broker has no place where a message could wait or be kept."""
        self._source = source
        self._sink = sink
        self._clock = clock
        self._rules = rules
        self._packing = packing
        self._retries = retries
        self._mend = mend
        self._health = health
        self._limits = limits
        self._room = asyncio.Event()
        self._again: asyncio.Queue[Carried] = asyncio.Queue()
        #: What waits for another try, by its id, with its timer and why it does.
        self._resting: dict[bytes, tuple[Carried, asyncio.TimerHandle, str]] = {}
        self._number = 0
        self._dead = Notices(log.warning)
        self._refused = Notices(log.info)
        self._refused_routes = RefusedRoutes(health)
        self._stopping = False
        self._open = 0
        self._turns = 0
        self._idle = True

    def able(self) -> bool:
        """Whether it may publish."""
        return self._sink.able()

    def mark(self) -> object:
        """What changes with every turn of the loop; None where it waits for something to come."""
        return None if self._idle else self._turns

    def under_way(self) -> int:
        """Deliveries that are taken, neither accepted nor given back, and not waiting for another try."""
        return self._open - len(self._resting)

    def stop(self) -> None:
        """The process stops: there is no other try. What waits for one goes back to the source, or becomes a dead
        letter where it may not."""
        self._stopping = True
        for carried, timer, reason in tuple(self._resting.values()):
            if self._must_be_kept(carried):
                timer.cancel()
                del self._resting[carried.id]
                self._again.put_nowait(self._carried(carried.delivery, Bury(reason)))

    async def run(self) -> None:
        """Take and send on until cancelled."""
        limits = self._limits
        with closing(self._dead), closing(self._refused):
            while True:
                self._idle = True
                deliveries = await self._source.take(limits.batch_max, limits.batch_bytes)
                self._idle = False
                self._turns += 1
                self._open += len(deliveries)
                now_ms = self._clock.now_ms()
                carried = [self._begun(delivery, now_ms) for delivery in deliveries]
                await self._send([one for one in carried if one is not None])

    async def run_again(self) -> None:
        """Send once more what came back, until cancelled."""
        while True:
            waiting = [await self._again.get()]
            while not self._again.empty():
                waiting.append(self._again.get_nowait())
            await self._send(waiting)

    def answered(self, results: Sequence[Result]) -> None:
        """The sink's answers; none at all says that there may be room again."""
        done: list[Delivery] = []
        for result in results:
            carried = result.claim
            assert isinstance(carried, Carried)
            if result.outcome is Outcome.CONFIRMED:
                if carried.parts is None or not self._next_part(carried, carried.parts):
                    done.append(carried.delivery)
            elif result.outcome is Outcome.UNKNOWN or result.refusal is None:
                self._soon(carried, _UNKNOWN_S)
            else:
                self._on_refusal(carried, result.refusal)
        self._source.accept(done)
        if done and self._refused_routes:
            self._refused_routes.delivered({self._packing.route_of(delivery) for delivery in done})
        self._open -= len(done)
        self._room.set()

    # -- one delivery -----------------------------------------------------------------------------------------------

    def _begun(self, delivery: Delivery, now_ms: int) -> Carried | None:
        """As it is to be sent; None if that is not yet."""
        rules = self._rules.get(delivery.route)
        if rules is not None:
            return self._carried(delivery, decide(delivery, rules, now_ms))
        left_ms = self._packing.left_out(delivery)
        if left_ms is not None:
            self._mend()
            self._wait_on(delivery, left_ms)
            return None
        wait_ms = self._packing.cut_short(delivery)
        return self._carried(delivery, Deliver() if wait_ms is None else Hold(wait_ms))

    def _wait_on(self, delivery: Delivery, left_ms: int) -> None:
        """Hold what is early, when the place that it has not been in is there again."""
        route, reason = self._packing.route_of(delivery), "early: a queue that it should have waited in was gone"
        self._refused_routes.refused(route, reason)
        self._refused.tell("refused", route, reason, next_ms=_MENDED_MS)
        self._again_later(self._carried(delivery, Hold(left_ms)), _MENDED_MS, reason)

    def _carried(self, delivery: Delivery, move: Move) -> Carried:
        now_ms = self._clock.now_ms()
        due_ms = now_ms + move.wait_ms if isinstance(move, Hold) else now_ms
        if isinstance(move, Bury):
            self._dead.tell("dead letter", self._packing.route_of(delivery), move.reason)
        try:
            parcel = self._packing.parcel(delivery, move, due_ms)
        except ValueError as error:
            if isinstance(move, Bury):
                parcel = self._packing.plain_dead_letter(delivery)
            else:
                return self._carried(delivery, Bury(f"unreadable: {error}"))
        self._number += 1
        return Carried(
            id=self._number.to_bytes(8, "big"),
            shard=0,
            token=b"",
            due_ms=due_ms if parcel.due_ms is None else parcel.due_ms,
            arrived_ms=delivery.arrived_ms,
            tries=0,
            route=parcel.place,
            key=b"",
            payload=parcel.payload,
            public_id=parcel.public_id,
            lease_ends=0.0,
            delivery=delivery,
            move=move,
        )

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _send(self, waiting: Sequence[Carried]) -> None:
        """Publish in order, as far as there is room, and wait for more."""
        left = list(waiting)
        while left := self._still_heard(left):
            self._room.clear()
            messages_max, bytes_max = self._sink.room()
            now = _fitting(left, messages_max, bytes_max)
            if now:
                self._sink.publish(left[:now])
                left = left[now:]
            else:
                await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """A second at most: no single event is trusted to wake it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROOM_S):
                await self._room.wait()
        self._turns += 1

    def _still_heard(self, waiting: list[Carried]) -> list[Carried]:
        """Those whose acceptance would still be heard; the others have been, or will be, delivered again."""
        alive = [carried for carried in waiting if self._source.alive(carried.delivery)]
        if len(alive) < len(waiting):
            self._give_back(carried for carried in waiting if not self._source.alive(carried.delivery))
        return alive

    def _give_back(self, carried: Iterable[Carried]) -> None:
        deliveries = [one.delivery for one in carried]
        self._source.drop(deliveries)
        self._open -= len(deliveries)

    # -- what came back ---------------------------------------------------------------------------------------------

    def _on_refusal(self, carried: Carried, refusal: Refusal) -> None:
        reason = f"{refusal.reason}: {refusal.text}"
        if isinstance(carried.move, Bury):
            self._on_refused_dead_letter(carried, carried.move, refusal)
            return
        route = self._packing.route_of(carried.delivery)
        self._refused_routes.refused(route, reason)
        if isinstance(carried.move, Hold) and not refusal.lasting:
            self._mend()
        wait_ms = refusal.again_ms
        if wait_ms is None:
            wait_ms = self._next_try_ms(carried)
            if refusal.lasting or wait_ms is None or len(self._resting) >= self._limits.refused_max:
                self._soon(self._carried(carried.delivery, Bury(reason)), 0)
                return
        self._refused.tell("refused", route, reason, tries=carried.tries, next_ms=wait_ms)
        self._again_later(carried, wait_ms, reason)

    def _next_try_ms(self, carried: Carried) -> int | None:
        carried.tries += 1
        return next_try_ms(carried.tries, self._retries, random.random())  # noqa: S311 (jitter, not a secret)

    def _on_refused_dead_letter(self, carried: Carried, move: Bury, refusal: Refusal) -> None:
        """There is nowhere else to put it, so it goes in parts, or is tried for ever, in a place made anew."""
        delivery, reason = carried.delivery, f"{refusal.reason}: {refusal.text}"
        if refusal.lasting and carried.parts is None and (parts := self._packing.in_parts(delivery, move.reason)):
            self._dead.tell("dead letter in parts", self._packing.route_of(delivery), reason)
            self._next_part(carried, parts)
            return
        words = f"a dead letter cannot be kept, and as many as are taken at once stop their route, {reason}"
        self._health.say("dead letters", words, for_s=60)
        if not refusal.lasting:
            self._mend()
        if carried.parts is None:
            plain = self._packing.plain_dead_letter(delivery)
            carried.route, carried.payload = plain.place, plain.payload
        self._again_later(carried, self._next_try_ms(carried) or self._retries.max_ms, reason)

    def _next_part(self, carried: Carried, parts: Iterator[Parcel]) -> bool:
        """Send the next part; false when there is none left."""
        part = next(parts, None)
        if part is None:
            return False
        self._soon(replace(carried, route=part.place, payload=part.payload, parts=parts), 0)
        return True

    def _again_later(self, carried: Carried, wait_ms: int, reason: str) -> None:
        """Another try of what was refused; when the process stops there is none."""
        if not self._stopping:
            timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._rested, carried)
            self._resting[carried.id] = carried, timer, reason
        elif self._must_be_kept(carried):
            self._soon(self._carried(carried.delivery, Bury(reason)), 0)
        else:
            self._give_back((carried,))

    def _must_be_kept(self, carried: Carried) -> bool:
        """Whether it has to become a dead letter before the process ends; what is one already had its try."""
        return not isinstance(carried.move, Bury) and not self._packing.may_go_back(carried.delivery)

    def _rested(self, carried: Carried) -> None:
        del self._resting[carried.id]
        self._again.put_nowait(carried)

    def _soon(self, carried: Carried, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._again.put_nowait, carried)


def _fitting(waiting: Sequence[Carried], messages_max: int, bytes_max: int) -> int:
    """Pure: how many of the first may be sent; one that is larger than all room goes when the room is empty."""
    count = size = 0
    for carried in waiting:
        size += len(carried.payload)
        if count == messages_max or (size > bytes_max and count):
            break
        count += 1
    return count if bytes_max > 0 else 0
