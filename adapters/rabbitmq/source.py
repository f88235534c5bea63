"""The source: consumes the intake queues and hands their messages on in batches.

One connection, one channel a queue. Deliveries are acknowledged in runs (``multiple``) where they are contiguous. A
connection or channel that is lost takes its unacknowledged deliveries with it: the broker gives them out again, marked
as redelivered, to whoever consumes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError

from adapters.rabbitmq.connection import Link, open_link
from adapters.rabbitmq.raw import frames
from adapters.rabbitmq.raw.fields import Field
from adapters.rabbitmq.raw.payload import pack
from adapters.rabbitmq.raw.properties import UnreadableTable, ordered, read
from adapters.rabbitmq.topology.declarations import Binding
from adapters.rabbitmq.trouble import no_answer, sentence
from bridge.core.clock import StoreClock
from bridge.core.errors import BrokerUnavailable, PostdateError
from bridge.core.message import Delivery
from bridge.pipeline.intake import Arrivals
from bridge.settings import RabbitMQ
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect, keep_connected

_NOT_FOUND = 404
#: A queue that has not let postdate consume by then is spoken of. A quorum queue without a leader never answers.
_ANSWER_S = 10.0
#: So often the binding of an intake queue is made again.
_BIND_S = 3.0
_COUNT = b"-count"
_COUNTS = frozenset({b"x-delivery-count", b"x-acquired-count"})
#: A working consumer makes the number of waiting messages fall now and then, also when more come than it takes. So many
#: looks without that are no chance: one in 40,000 where the number rises and falls like a coin.
LOOKS = 8
LOOK_S = 1.0


@dataclass(frozen=True)
class Intake:
    """One intake queue: its route, and the header names that matter on that route.

    ``bindings`` are what leads to the queue, none where postdate is not to declare anything. A front exchange without
    its binding sends delayed messages to the real exchange, at once: they are made again every few seconds, because
    AMQP cannot ask whether they are there. ``without``: what happens while the queue is gone, half a sentence.
    ``entries_max`` bounds the header entries of a message; None for no bound.
    """

    route: str
    queue: str
    wanted: frozenset[bytes]
    bindings: tuple[Binding, ...] = ()
    without: str = "delayed messages are delivered at once"
    entries_max: int | None = None


class Idle:
    """What the looks at one queue have found."""

    def __init__(self) -> None:
        self._waiting = 0
        self._received = 0
        self._still = 0

    def look(self, waiting: int, received: int, in_hand: bool) -> bool:
        """Whether this instance is left out, from how many messages are ready in the queue, how many it has ever
        received from there, and whether it has some that are not acknowledged: then it is the one that is busy."""
        moves = waiting < self._waiting or received != self._received or in_hand
        self._still = 0 if moves or not waiting else self._still + 1
        self._waiting, self._received = waiting, received
        return self._still >= LOOKS


def left_out(queue: str, waiting: int) -> str:
    """The sentence about it, without its stop. AMQP does not say who holds a queue: a quorum queue counts its active
    consumer alone (3.10.8)."""
    return (
        f"this instance is given none of the messages that wait in queue {queue}: {waiting}. Another consumer holds "
        "the queue and takes none: its instance is frozen or overloaded"
    )


class _Lane:
    """An intake's channel while it lives, and how far its deliveries are acknowledged.

    ``consumer`` is the consumer's tag; it is ``cancelled`` when nothing more will come. ``last`` is the tag of the last
    delivery, which is also how many there were.
    """

    __slots__ = ("alive", "cancelled", "channel", "consumer", "early", "floor", "idle", "intake", "last", "number")

    def __init__(self, intake: Intake, channel: Channel) -> None:
        self.intake = intake
        self.channel = channel
        self.number = channel.channel_number
        self.consumer = ""
        self.floor = self.last = 0
        self.early: set[int] = set()
        self.idle = Idle()
        self.alive = True
        self.cancelled = False

    def cancel(self) -> None:
        """Ask RabbitMQ to send nothing more. What it sends comes before its answer; what is on its way from a quorum
        queue to the channel at this moment RabbitMQ itself puts back to the head of the queue."""

        def on_cancelled(_: Any) -> None:
            self.cancelled = True

        if self.alive:
            with suppress(AMQPError):  # it is being closed, and then nothing more comes either
                self.channel.basic_cancel(self.consumer, on_cancelled)


def acknowledgements(floor: int, early: set[int], tags: Sequence[int]) -> tuple[int, list[tuple[int, bool]]]:
    """The fewest (tag, multiple) for ``tags``, and the new floor, below which everything is acknowledged.

    ``multiple`` acknowledges everything below, so it reaches only as far as nothing is missing; the rest go singly and
    are remembered in ``early``, so that the floor can pass them when the gap below is closed.
    """
    new, last = set(tags), 0
    while floor + 1 in new or floor + 1 in early:
        floor += 1
        if floor in new:
            last = floor
        early.discard(floor)
    singles = sorted(tag for tag in new if tag > floor)
    early.update(singles)
    return floor, ([(last, True)] if last else []) + [(tag, False) for tag in singles]


def _keep_bound(channel: Channel, intake: Intake) -> None:
    """Bind now and then for as long as the channel lives."""
    if not intake.bindings or not channel.is_open:
        return
    for one in intake.bindings:
        arguments = dict(one.arguments)
        if one.to_exchange:
            channel.exchange_bind(one.queue, one.exchange, "", arguments, callback=lambda _: None)
        else:
            channel.queue_bind(one.queue, one.exchange, "", arguments, callback=lambda _: None)
    asyncio.get_running_loop().call_later(_BIND_S, _keep_bound, channel, intake)


def digest(payload: bytes) -> bytes:
    """Eight bytes that tell a message from others; the same for a redelivery of it."""
    return blake2b(payload, digest_size=8).digest()


def _ordered_digest(routing_key: bytes, properties: bytes, body: bytes, fields: Sequence[Field]) -> bytes:
    """A quorum queue writes into a redelivered message's headers how often it came, and sorts them by name."""
    return digest(pack(routing_key, ordered(properties, _COUNTS, fields), body))


class RabbitSource:
    """``bridge.core.ports.Source`` on RabbitMQ. ``run`` keeps it connected."""

    def __init__(
        self,
        settings: RabbitMQ,
        intakes: Sequence[Intake],
        clock: StoreClock,
        bytes_max: int,
        health: Health,
        declare: Callable[[], object] | None = None,
    ) -> None:
        """``declare`` makes the topology again, blocking; None where postdate is not to."""
        self._declare = declare
        self._settings = settings
        self._intakes = intakes
        self._clock = clock
        self._bytes_max = bytes_max
        self._health = health
        self._link: Link | None = None
        self._first_host = 0
        self._lanes: dict[int, _Lane] = {}
        self._arrivals = Arrivals()
        self._bytes = 0
        self._broker_time = settings.delay_from == "broker"
        self._now_ms = 0
        self._stopping = False

    # -- the port ---------------------------------------------------------------------------------------------------

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """See ``bridge.core.ports.Source.take``."""
        return await self._arrivals.take(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """See ``bridge.core.ports.Source.more``."""
        return self._arrivals.more(messages_max, bytes_max, without)

    def alive(self, delivery: Delivery) -> bool:
        """See ``bridge.core.ports.Source.alive``."""
        lane: _Lane = delivery.tag[0]
        return lane.alive

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """See ``bridge.core.ports.Source.accept``."""
        tags: dict[_Lane, list[int]] = {}
        for delivery in deliveries:
            lane, tag = delivery.tag
            tags.setdefault(lane, []).append(tag)
        parts = []
        for lane, numbers in tags.items():
            if lane.alive:
                lane.floor, acks = acknowledgements(lane.floor, lane.early, numbers)
                parts += [frames.ack(lane.number, tag, multiple) for tag, multiple in acks]
        if parts and self._link is not None and self._link.is_open():
            self._link.connection.send(b"".join(parts))
        self._forget(deliveries)

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """See ``bridge.core.ports.Source.drop``."""
        self._forget(deliveries)

    def place(self, delivery: Delivery) -> dict[str, object]:
        """See ``bridge.core.ports.Source.place``."""
        return {}

    def stop(self) -> None:
        """Cancel the consumers. What RabbitMQ has sent is still taken: from what goes back to it when the connection
        closes, RabbitMQ 3 makes another order."""
        self._stopping = True
        for lane in self._lanes.values():
            lane.cancel()

    def emptied(self) -> bool:
        """See ``bridge.core.ports.Source.emptied``."""
        return self._arrivals.empty() and all(lane.cancelled or not lane.alive for lane in self._lanes.values())

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        self._bytes -= sum(len(delivery.payload) for delivery in deliveries)
        if self._link is not None and self._bytes < self._bytes_max // 2:
            self._link.connection.resume_reading()

    # -- the connection ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep consuming until cancelled: connect, consume, and connect again when the connection goes."""
        await keep_connected(self._session, self._health, "rabbitmq intake", "nothing is taken from RabbitMQ")

    async def _session(self, reconnect: Reconnect) -> None:
        self._link = link = await open_link(self._settings, "postdate intake", self._first_host)
        self._first_host = link.next_host
        try:
            link.connection.on_delivery = self._on_delivery
            link.connection.on_read = self._on_read
            async with asyncio.TaskGroup() as lanes:
                tasks = [lanes.create_task(self._keep_lane(link, intake)) for intake in self._intakes]
                reconnect.worked()
                self._health.say("rabbitmq intake", "")
                end = await link.closed
                for task in tasks:
                    task.cancel()
            raise BrokerUnavailable(sentence(end))
        finally:
            for lane in self._lanes.values():
                lane.alive = False
            self._lanes.clear()
            self._drop_buffer()
            self._link = None
            await link.close()

    async def _keep_lane(self, link: Link, intake: Intake) -> None:
        """Consume one queue; a queue that is gone or refuses is tried again, and troubles no other."""
        subject = f"rabbitmq queue {intake.queue}"
        reconnect = Reconnect()
        while True:
            try:
                ended = await self._consume(link, intake)
                if not ended.done():
                    reconnect.worked()
                    self._health.say(subject, "")
                why = await ended
            except BrokerUnavailable as error:
                why = str(error)
            if not link.is_open():
                return  # all queues are concerned, and the session says so once
            self._health.say(subject, f"nothing is taken from the queue {intake.queue}: {why}")
            await self._declare_again(subject)
            await reconnect.wait()

    async def _declare_again(self, subject: str) -> None:
        """A queue that someone deleted is made again, if postdate may: every second without it hastens messages."""
        if self._declare is not None:
            try:
                await asyncio.to_thread(self._declare)
            except PostdateError as error:
                self._health.say(subject, str(error))

    async def _consume(self, link: Link, intake: Intake) -> asyncio.Future[str]:
        """Open a channel and start consuming; the future gets the sentence about its end."""
        channel = await link.channel()
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._stopping:
            return ended
        lane = self._lanes[channel.channel_number] = _Lane(intake, channel)

        def on_end(why: str) -> None:
            lane.alive = False
            self._health.say(f"rabbitmq intake {intake.queue}", "")
            self._forget(self._arrivals.remove(lambda delivery: delivery.tag[0] is lane))
            if not ended.done():
                ended.set_result(why)

        def on_close(_: Channel, error: BaseException) -> None:
            gone = getattr(error, "reply_code", 0) == _NOT_FOUND
            on_end(f"{sentence(error)}. Meanwhile {intake.without}" if gone else sentence(error))

        def on_cancel(_: Any) -> None:
            if channel.is_open:
                channel.close()
            on_end(f"RabbitMQ cancelled the consumer. If the queue was deleted, {intake.without}")

        def on_started(_: Any) -> None:
            if not started.done():
                started.set_result(None)

        try:
            channel.add_on_close_callback(on_close)
            channel.add_on_cancel_callback(on_cancel)
            channel.basic_qos(prefetch_count=self._settings.prefetch)
            lane.consumer = channel.basic_consume(intake.queue, lambda *_: None, callback=on_started)
        except AMQPError as error:  # it closed between its opening and now
            lane.alive = False
            raise BrokerUnavailable(sentence(error)) from error
        done, _ = await asyncio.wait((started, ended), timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self._health.say(f"rabbitmq queue {intake.queue}", no_answer(intake.queue))
            await asyncio.wait((started, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            _keep_bound(channel, intake)
            self._look(lane)
        return ended

    def _look(self, lane: _Lane) -> None:
        """Now and then ask how many messages wait in the queue, for as long as the lane lives."""

        def on_counts(answer: Any) -> None:
            waiting = answer.method.message_count
            left = lane.idle.look(waiting, lane.last, lane.floor < lane.last)
            queue = lane.intake.queue
            self._health.say(f"rabbitmq intake {queue}", left_out(queue, waiting) if left else "")

        if lane.alive and lane.channel.is_open and not self._stopping:
            lane.channel.queue_declare(lane.intake.queue, passive=True, callback=on_counts)
            asyncio.get_running_loop().call_later(LOOK_S, self._look, lane)

    # -- deliveries, called by the connection -----------------------------------------------------------------------

    def _on_delivery(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        lane = self._lanes.get(channel)
        if lane is None or not lane.alive:
            return
        at = 1 + method[0]
        tag, redelivered = frames.tag_and_flag.unpack_from(method, at)
        lane.last = tag
        at += 9
        at += 1 + method[at]
        routing_key = method[at + 1 : at + 1 + method[at]]
        if not self._now_ms:
            self._now_ms = self._clock.now_ms()
        payload = pack(routing_key, properties, body)
        intake = lane.intake
        try:
            headers, message_id, published_ms, in_order, fields = read(
                properties, intake.wanted, self._broker_time, intake.entries_max
            )
            fault = ""
        except UnreadableTable as error:
            headers, message_id, published_ms, in_order, fields, fault = {}, None, None, True, (), str(error)
        delivery = Delivery(
            (lane, tag),
            intake.route,
            payload,
            routing_key,
            headers,
            self._now_ms,
            published_ms,
            message_id,
            bool(redelivered & 1),
            fault,
            digest(payload)
            if fault or (in_order and _COUNT not in properties)
            else _ordered_digest(routing_key, properties, body, fields),
        )
        self._arrivals.add((delivery,))
        self._bytes += len(payload)

    def _on_read(self) -> None:
        self._now_ms = 0
        if self._bytes >= self._bytes_max and self._link is not None:
            self._link.connection.pause_reading()

    def _drop_buffer(self) -> None:
        self._bytes -= sum(len(delivery.payload) for delivery in self._arrivals.clear())
