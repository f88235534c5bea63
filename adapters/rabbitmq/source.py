"""The source: consumes the intake queues and passes their messages on in batches.

It has one connection, and one channel for each queue. It acknowledges contiguous deliveries together (``multiple``).
When a connection or channel is lost, the broker redelivers its unacknowledged messages to the next consumer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError

from adapters.rabbitmq.connection import RabbitLink, open_link, resolve
from adapters.rabbitmq.declarations import Binding
from adapters.rabbitmq.deleted_queue import DELETED_SHOWN_S, deleted, is_deleted, recreated
from adapters.rabbitmq.failure import RETRY_HEADERS, read_rejected
from adapters.rabbitmq.intake_queue import LOOK_S, IntakeConsumer, IntakeQueue, acknowledgements, left_out
from adapters.rabbitmq.probes import is_probe
from adapters.rabbitmq.raw import frames
from adapters.rabbitmq.raw.amqp10 import unpacked
from adapters.rabbitmq.raw.fields import Field
from adapters.rabbitmq.raw.payload import pack
from adapters.rabbitmq.raw.properties import UnreadableTable, edit, ordered, priority_in, read
from adapters.rabbitmq.refusals import is_gone
from adapters.rabbitmq.trouble import no_answer, sentence
from bridge.core.clock import StoreClock
from bridge.core.errors import BrokerUnavailable, PostdateError
from bridge.core.message import Delivery
from bridge.pipeline.intake import Arrivals
from bridge.settings import RabbitMQ
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect, keep_connected
from bridge.telemetry.subject import INTAKE, Subject

#: The part of the broker that takes in what RabbitMQ would delay by itself. Without it the process is still ready.
NATIVE_DELAYS = "native delays"
#: After this time without an answer to basic.consume, health names the queue. A quorum queue without a leader never
#: answers.
_ANSWER_S = 10.0
#: How often the source declares the bindings of an intake queue again.
_BIND_S = 3.0
#: How long it waits after RabbitMQ refused a binding to something of the consumers' that is missing.
_MISSING_S = 2.0
#: RabbitMQ closes a connection after two to three silent heartbeats, and the last bytes went half a heartbeat ago.
#: So it keeps the connection of a process that stood still for no longer than this number of heartbeats.
_SURE = 1.5
#: How often the process checks that it did not stand still, in heartbeats.
_LOOK = 0.25
#: How often the source asks whether RabbitMQ answers, and the number of questions without an answer that is a trouble.
_ASK_S, _UNANSWERED = 1.0, 3
_SUBJECT = Subject("rabbitmq", INTAKE)
_COUNT = b"-count"
_COUNTS = frozenset({b"x-delivery-count", b"x-acquired-count"})


def _keep_bound(channel: Channel, intake: IntakeQueue) -> None:
    """Declare the bindings every few seconds while the channel is open, then remove those that must be gone."""
    if not intake.bindings or not channel.is_open:
        return
    for binding in intake.bindings:
        binding.bind(channel, callback=lambda _: None)
    for binding in intake.unbound:
        binding.unbind(channel, callback=lambda _: None)
    asyncio.get_running_loop().call_later(_BIND_S, _keep_bound, channel, intake)


async def _keep_bound_to_foreign(link: RabbitLink, binding: Binding) -> None:
    """Declare a foreign binding every few seconds, on a channel of its own: RabbitMQ closes that over a missing end."""
    while link.is_open():
        with suppress(AMQPError, BrokerUnavailable):
            channel, closed = await link.channel(), asyncio.Event()
            channel.add_on_close_callback(lambda *_, closed=closed: closed.set())
            while channel.is_open:
                binding.bind(channel, callback=lambda _: None)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BIND_S):
                        await closed.wait()
        await asyncio.sleep(_MISSING_S)


def _queue_subject(intake: IntakeQueue) -> Subject:
    """Return the subject in health of a queue that is not consumed."""
    return Subject("rabbitmq", NATIVE_DELAYS if intake.guards else INTAKE, f"queue {intake.queue}")


def _held_subject(intake: IntakeQueue) -> Subject:
    """Return the subject in health of a queue that another consumer holds."""
    return Subject("rabbitmq", NATIVE_DELAYS if intake.guards else INTAKE, intake.queue)


def digest(payload: bytes) -> bytes:
    """Return eight bytes that identify a message. A redelivery has the same."""
    return blake2b(payload, digest_size=8).digest()


def _ordered_digest(routing_key: bytes, properties: bytes, body: bytes, fields: Sequence[Field]) -> bytes:
    """Return the digest of a message without its delivery counts and with its headers in order.

    A quorum queue adds the counts to the headers of a redelivered message, and sorts them by name.
    """
    return digest(pack(routing_key, ordered(properties, _COUNTS, fields), body))


class RabbitSource:
    """``bridge.core.ports.Source`` on RabbitMQ. ``run`` keeps it connected."""

    def __init__(
        self,
        settings: RabbitMQ,
        intakes: Sequence[IntakeQueue],
        clock: StoreClock,
        bytes_max: int,
        health: Health,
        declare: Callable[[], object] | None = None,
    ) -> None:
        """``declare`` declares the topology again, blocking; None where postdate may not."""
        self._declare = declare
        self._settings = settings
        self._intakes = intakes
        self._clock = clock
        self._bytes_max = bytes_max
        self._health = health
        self._link: RabbitLink | None = None
        self._first_host = 0
        self._group: asyncio.TaskGroup | None = None
        self._works: dict[str, list[asyncio.Task[None]]] = {}
        self._consumers: dict[int, IntakeConsumer] = {}
        #: Queues that this process has consumed. A missing one among them was deleted; another was never there.
        self._seen: set[str] = set()
        #: When queues were deleted that are not declared again yet.
        self._deleted_ms: dict[str, int] = {}
        self._arrivals = Arrivals()
        self._bytes = 0
        self._broker_time = settings.delay_from == "broker"
        self._now_ms = 0
        self._closed_routes: frozenset[str] = frozenset()
        self._stopping = False
        self._heartbeat_s = settings.heartbeat / 1000
        #: Until then deliveries are surely still this instance's, although the process may stand still.
        self._sure_until_s = 0.0

    def follow(self, intakes: Sequence[IntakeQueue]) -> None:
        """Consume the intakes of new routes, too, and end those of removed routes: a route is known by its name."""
        before, self._intakes = {intake.route: intake for intake in self._intakes}, intakes
        now = {intake.route: intake for intake in intakes}
        for route in before.keys() - now.keys():
            for task in self._works.pop(route, []):
                task.cancel()
            for part in (before[route], *before[route].native):
                self._health.say(_queue_subject(part), "")
            for consumer in self._consumers.values():
                if consumer.intake.route == route:
                    consumer.leave()
        if self._link is not None and self._group is not None:
            for route in now.keys() - before.keys():
                self._begin(self._link, self._group, now[route])

    # -- the port ---------------------------------------------------------------------------------------------------

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        return await self._arrivals.take(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        return self._arrivals.more(messages_max, bytes_max, without)

    def alive(self, delivery: Delivery) -> bool:
        """Return whether the channel of a delivery can still acknowledge it."""
        consumer: IntakeConsumer = delivery.tag[0]
        return consumer.alive and time.monotonic() < self._sure_until_s

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries with as few frames as possible."""
        tags: dict[IntakeConsumer, list[int]] = {}
        for delivery in deliveries:
            consumer, tag = delivery.tag
            tags.setdefault(consumer, []).append(tag)
        self._acknowledge(tags)
        self._forget(deliveries)

    def _acknowledge(self, tags: Mapping[IntakeConsumer, Sequence[int]]) -> None:
        parts = []
        for consumer, numbers in tags.items():
            if consumer.alive:
                consumer.floor, acks = acknowledgements(consumer.floor, consumer.early, numbers)
                parts += [frames.ack(consumer.number, tag, multiple) for tag, multiple in acks]
        if parts and self._link is not None and self._link.is_open():
            self._link.connection.send(b"".join(parts))

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        self._forget(deliveries)

    def place(self, delivery: Delivery) -> dict[str, object]:
        """Return nothing: RabbitMQ numbers no messages."""
        return {}

    def close_intakes(self, routes: Collection[str]) -> None:
        """Cancel the consumers of these routes, and consume the queues of the others.

        The channels stay open: what was taken must still be acknowledged on them. Messages wait in the intake queues.
        """
        self._closed_routes = frozenset(routes)
        for consumer in self._consumers.values():
            if consumer.intake.route in self._closed_routes:
                consumer.cancel()
            elif consumer.leaving:
                continue
            elif not consumer.consumer_tag and consumer.alive and not self._stopping:
                with suppress(AMQPError):  # a channel that is closing is opened again
                    consumer.consume()

    def stop(self) -> None:
        """Cancel the consumers. What RabbitMQ has sent is still taken: RabbitMQ 3 would reorder messages that a closing
        connection returns."""
        self._stopping = True
        for consumer in self._consumers.values():
            consumer.cancel()

    def emptied(self) -> bool:
        """Return whether every consumer is cancelled and everything was taken."""
        return self._arrivals.empty() and all(
            consumer.cancelled or not consumer.alive for consumer in self._consumers.values()
        )

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        self._bytes -= sum(len(delivery.payload) for delivery in deliveries)
        if self._link is not None and self._bytes < self._bytes_max // 2:
            self._link.connection.resume_reading()

    def consumed(self) -> list[str]:
        """Return the queues that this process consumes now."""
        return [
            consumer.intake.queue for consumer in self._consumers.values() if consumer.alive and consumer.consumer_tag
        ]

    # -- the connection ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect and consume until cancelled; connect again when the connection ends."""
        await keep_connected(self._session, self._health, _SUBJECT, "nothing is taken from RabbitMQ")

    async def _session(self, reconnect: Reconnect) -> None:
        self._link = link = await open_link(self._settings, "postdate intake", self._first_host)
        self._first_host = link.next_host
        try:
            link.connection.on_delivery = self._on_delivery
            link.connection.on_read = self._on_read
            self._sure_until_s = time.monotonic() + _SURE * self._heartbeat_s
            self._watch_pauses(link)
            async with asyncio.TaskGroup() as group:
                self._group = group
                for intake in self._intakes:
                    self._begin(link, group, intake)
                reconnect.worked()
                group.create_task(self._watch_answers(link))
                end = await asyncio.shield(link.closed)  # a cancellation must not cancel it: the close waits for it
                self._group = None
                for task in chain.from_iterable(self._works.values()):
                    task.cancel()
            raise BrokerUnavailable(sentence(end))
        finally:
            self._group = None
            self._works.clear()
            for consumer in self._consumers.values():
                consumer.alive = False
            self._consumers.clear()
            self._drop_buffer()
            self._link = None
            await link.close()

    def _begin(self, link: RabbitLink, group: asyncio.TaskGroup, intake: IntakeQueue) -> None:
        parts = (link.native and intake.native) or (intake,)
        works = [self._keep_consuming(link, part) for part in parts]
        works += [_keep_bound_to_foreign(link, binding) for part in parts for binding in part.foreign]
        self._works[intake.route] = [group.create_task(work) for work in works]

    def _watch_pauses(self, link: RabbitLink) -> None:
        """Give the connection up after a pause of this process, in which RabbitMQ may have closed it.

        Another instance may have parked these messages. Parked here as well, they would get another id. A timer runs
        before every task that was waiting, so nothing is parked in between.
        """
        now_s = time.monotonic()
        if now_s < self._sure_until_s:
            self._sure_until_s = now_s + _SURE * self._heartbeat_s
            if link.is_open():
                asyncio.get_running_loop().call_later(_LOOK * self._heartbeat_s, self._watch_pauses, link)
            return
        for consumer in self._consumers.values():
            consumer.alive = False
        self._drop_buffer()
        if link.is_open():
            link.connection.close(reply_text="postdate stood still")

    async def _watch_answers(self, link: RabbitLink) -> None:
        """Report a RabbitMQ that sends nothing, long before a heartbeat is missing. No queue, alarm or flow control
        delays the answer to basic.qos.

        It counts questions, because a process that stood still has read nothing either.
        """
        received, unanswered = -1, 0
        with suppress(AMQPError, BrokerUnavailable):
            self._health.say(_SUBJECT, "")
            channel = await link.channel()
            while link.is_open():
                unanswered = unanswered + 1 if link.connection.bytes_received == received else 0
                received = link.connection.bytes_received
                text = f"nothing is taken from RabbitMQ: it has not answered for {unanswered * _ASK_S:.0f} s"
                self._health.say(_SUBJECT, text if unanswered >= _UNANSWERED else "", cause="unanswered")
                channel.basic_qos(prefetch_count=1, callback=lambda _: self._health.say(_SUBJECT, ""))
                await asyncio.wait((link.closed,), timeout=_ASK_S)

    async def _keep_consuming(self, link: RabbitLink, intake: IntakeQueue) -> None:
        """Consume one queue until the connection ends. Retry a missing or refusing one; the others go on."""
        subject = _queue_subject(intake)
        reconnect = Reconnect()
        while True:
            try:
                ended = await self._consume(link, intake)
                if not ended.done():
                    reconnect.worked()
                    self._seen.add(intake.queue)
                    self._health.say(subject, "")
                    self._exists_again(intake)
                why = await ended
            except BrokerUnavailable as error:
                why = str(error)
            if not link.is_open():
                return  # the session reports this once for all queues
            self._health.say(subject, f"nothing is taken from the queue {intake.queue}: {why}")
            gone_ms = self._clock.now_ms()  # before the look, which takes a moment
            if intake.queue in self._seen and await is_deleted(link, intake.queue):
                self._seen.discard(intake.queue)
                self._deleted_ms[intake.queue] = gone_ms
                self._health.say(
                    Subject("rabbitmq", "deleted", intake.queue), deleted(intake, gone_ms), DELETED_SHOWN_S
                )
            await self._declare_again(subject)
            await reconnect.wait()

    def _exists_again(self, intake: IntakeQueue) -> None:
        """Make the loss of a queue that was deleted a warning: nothing passes undelayed any more."""
        if deleted_ms := self._deleted_ms.pop(intake.queue, 0):
            self._health.say(Subject("rabbitmq", "deleted", intake.queue), "")
            warning = Subject("rabbitmq", "recreated", intake.queue)
            self._health.say(warning, recreated(intake, deleted_ms, self._clock.now_ms()), DELETED_SHOWN_S)

    async def _declare_again(self, subject: Subject) -> None:
        """Recreate a deleted queue, if postdate may: without it, delayed messages are delivered at once."""
        if self._declare is not None:
            try:
                await asyncio.to_thread(self._declare)
            except PostdateError as error:
                self._health.say(subject, str(error))

    async def _consume(self, link: RabbitLink, intake: IntakeQueue) -> asyncio.Future[str]:
        """Open a channel and start consuming. The future gets the reason for its end."""
        channel = await link.channel()
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if self._stopping:
            return ended
        consumer = self._consumers[channel.channel_number] = IntakeConsumer(intake, channel)

        def on_end(why: str) -> None:
            consumer.alive = False
            self._health.say(_held_subject(intake), "")
            self._forget(self._arrivals.remove(lambda delivery: delivery.tag[0] is consumer))
            resolve(ended, why)

        def on_close(_: Channel, error: BaseException) -> None:
            on_end(f"{sentence(error)}. Meanwhile {intake.without}" if is_gone(error) else sentence(error))

        def on_cancel(_: Any) -> None:
            if channel.is_open:
                channel.close()
            on_end(f"RabbitMQ cancelled the consumer. If the queue was deleted, {intake.without}")

        try:
            channel.add_on_close_callback(on_close)
            channel.add_on_cancel_callback(on_cancel)
            channel.basic_qos(prefetch_count=self._settings.prefetch)
            if intake.route in self._closed_routes:
                consumer.cancelled = True
                resolve(started, None)
            else:
                consumer.consume(partial(resolve, started))
        except AMQPError as error:  # the channel has closed meanwhile
            consumer.alive = False
            raise BrokerUnavailable(sentence(error)) from error
        done, _ = await asyncio.wait((started, ended), timeout=_ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self._health.say(_queue_subject(intake), no_answer(intake.queue))
            await asyncio.wait((started, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            _keep_bound(channel, intake)
            self._watch_idle(consumer)
        return ended

    def _watch_idle(self, consumer: IntakeConsumer) -> None:
        """Ask every second how many messages wait in the queue, while the consumer is alive."""

        def on_counts(answer: Any) -> None:
            waiting = answer.method.message_count
            in_hand = (
                consumer.floor < consumer.last or not consumer.consumer_tag
            )  # of a cancelled one nothing is left out
            left = consumer.idle.look(waiting, consumer.last, in_hand)
            text = left_out(consumer.intake.queue, waiting) if left else ""
            self._health.say(_held_subject(consumer.intake), text, cause="left out")

        if consumer.alive and consumer.channel.is_open and not self._stopping:
            consumer.channel.queue_declare(consumer.intake.queue, passive=True, callback=on_counts)
            asyncio.get_running_loop().call_later(LOOK_S, self._watch_idle, consumer)

    # -- deliveries, called by the connection -----------------------------------------------------------------------

    def _on_delivery(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        consumer = self._consumers.get(channel)
        if consumer is None or not consumer.alive:
            return
        at = 1 + method[0]
        tag, redelivered = frames.tag_and_flag.unpack_from(method, at)
        consumer.last = tag
        at += 9
        if not method[at] and is_probe(properties, body):
            self._acknowledge({consumer: [tag]})
            return
        at += 1 + method[at]
        routing_key = method[at + 1 : at + 1 + method[at]]
        if not self._now_ms:
            self._now_ms = self._clock.now_ms()
        intake, failure = consumer.intake, None
        try:
            if intake.failing is not None:
                failure, own_key, _, forged = read_rejected(properties, intake.failing, intake.entries_max)
                if forged:
                    properties = edit(properties, RETRY_HEADERS, False, b"", intake.entries_max)
                routing_key = routing_key if own_key is None else own_key
            headers, message_id, published_ms, in_order, fields = read(
                properties, intake.wanted, self._broker_time, intake.entries_max, intake.correlated
            )
            if intake.packed and headers:
                headers = unpacked(headers, intake.wanted, intake.entries_max)
            fault = ""
        except UnreadableTable as error:
            headers, message_id, published_ms, in_order, fields, fault = {}, None, None, True, (), str(error)
        payload = pack(routing_key, properties, body)
        delivery = Delivery(
            (consumer, tag),
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
            failure=failure,
            priority=priority_in(properties) if intake.prioritized and not fault else None,
        )
        self._arrivals.add((delivery,))
        self._bytes += len(payload)

    def _on_read(self) -> None:
        self._now_ms = 0
        if self._bytes >= self._bytes_max and self._link is not None:
            self._link.connection.pause_reading()

    def _drop_buffer(self) -> None:
        self._bytes -= sum(len(delivery.payload) for delivery in self._arrivals.clear())
