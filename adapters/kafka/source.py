"""The source: consumes the intake topics and hands their records on in batches.

One member of a consumer group. Offsets are committed by hand, and only as far as everything before is accepted. What
was handed over and not committed comes again after a loss, under the same ``origin``, by which the house knows it. The
order key is the partition: the producer's partitioner has put equal keys into one, so each key's order is kept with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from adapters.kafka.access import broker_errors
from adapters.kafka.assignments import Places, go_to
from adapters.kafka.client import answers, first_end, give_up_consumer, new_consumer, start
from adapters.kafka.commits import Commits
from adapters.kafka.held import Held
from adapters.kafka.intake import Intake, Intakes, Part
from adapters.kafka.listener import Listener
from adapters.kafka.raw.poison import fetch_batch
from adapters.kafka.topology.topic_watch import TopicWatch
from adapters.kafka.watchdog import Stuck
from bridge.core.clock import StoreClock
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Delivery
from bridge.pipeline.intake import Arrivals
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect, keep_connected

_SUBJECT = "kafka intake"
#: Records in one poll at most, and how long a poll waits for the first.
_POLL_RECORDS = 500
_POLL_MS = 500
#: How long a poll waits while one route has no room: it may have some again at any moment.
_TURN_MS = 10
_COMMIT_S = 1.0
_ANSWER_S = 3.0
#: Between two errors over topics that may not be read: there is one for each of their partitions.
_FORBIDDEN_S = 0.005
_START_S = 30.0
_WATCH_S = 5.0
#: A full buffer is waited for so long before the partitions are paused: to pause throws away what is fetched already.
_PATIENCE_S = 1.0
#: After a record that could not be decoded, partitions are polled one by one for so long.
_CAREFUL_S = 5.0
#: How long what is in hand is waited for when its partition goes. The whole group waits meanwhile, and with the commit
#: that follows it has to end before the group goes on without us (``client._REBALANCE_MS``).
_IN_HAND_S = 2.0


class KafkaSource:
    """``bridge.core.ports.Source`` on Kafka. ``run`` keeps it connected."""

    def __init__(
        self,
        rules: Kafka,
        intakes: Sequence[Intake],
        clock: StoreClock,
        bytes_max: int,
        health: Health,
        mend: Callable[[], None] = lambda: None,
    ) -> None:
        """``mend()`` is called when an intake topic is missing."""
        self._rules = rules
        self._intakes = Intakes(intakes)
        self._clock = clock
        self._health = health
        self._places = Places(rules, self._intakes, health)
        self._parts = self._places.parts
        self._commits = Commits(rules, health)
        self._topics = TopicWatch(self._intakes, mend, health)
        self._joined = False
        self._look_around = True
        self._arrivals = Arrivals()
        self._held = Held(rules.window, bytes_max, len(self._intakes.routes))
        self._room = asyncio.Event()
        self._let_out = asyncio.Event()
        self._careful_until = 0.0
        self._took_at = 0.0
        self._stopping = False

    # -- the port ---------------------------------------------------------------------------------------------------

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """See ``bridge.core.ports.Source.take``."""
        return _in_hand(await self._arrivals.take(messages_max, bytes_max))

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """See ``bridge.core.ports.Source.more``."""
        return _in_hand(self._arrivals.more(messages_max, bytes_max, without))

    def alive(self, delivery: Delivery) -> bool:
        """See ``bridge.core.ports.Source.alive``."""
        part: Part = delivery.tag[0]
        return part.alive and not part.leaving

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """See ``bridge.core.ports.Source.accept``."""
        offsets: dict[Part, list[int]] = {}
        for delivery in deliveries:
            part, offset = delivery.tag
            offsets.setdefault(part, []).append(offset)
        for part, done in offsets.items():
            part.in_hand -= len(done)
            if part.alive:
                part.progress.done(done)
        self._let_out.set()
        self._forget(deliveries)

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """See ``bridge.core.ports.Source.drop``."""
        for delivery in deliveries:
            delivery.tag[0].in_hand -= 1
        self._let_out.set()
        self._forget(deliveries)

    def place(self, delivery: Delivery) -> dict[str, object]:
        """See ``bridge.core.ports.Source.place``."""
        part, offset = delivery.tag
        return {"topic": part.place.topic, "partition": part.place.partition, "offset": offset}

    def stop(self) -> None:
        """Take nothing more. What is buffered is not committed and comes again, in the same order and as no copy."""
        self._stopping = True
        self._drop_buffer(set(self._parts.values()))

    def emptied(self) -> bool:
        """See ``bridge.core.ports.Source.emptied``."""
        return self._arrivals.empty()

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        self._held.forget(deliveries)
        if self._held.half_empty():
            self._room.set()

    def _full(self) -> bool:
        return self._stopping or self._held.full()

    def _most(self) -> int:
        return max(1, min(_POLL_RECORDS, self._held.room()))

    def _drop_buffer(self, parts: set[Part]) -> None:
        self._forget(self._arrivals.remove(lambda delivery: delivery.tag[0] in parts))

    # -- the consumer -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep consuming until cancelled: join the group, consume, and begin anew with a new consumer."""
        await keep_connected(self._translated, self._health, _SUBJECT, "nothing is taken from Kafka")

    async def _translated(self, reconnect: Reconnect) -> None:
        with broker_errors(self._rules):
            await self._session(reconnect)

    async def _session(self, reconnect: Reconnect) -> None:
        consumer = new_consumer(self._rules)
        try:
            async with asyncio.timeout(_START_S):
                await start(consumer, self._rules)
            consumer._client.cluster.add_listener(self._places.doubt)
            consumer.subscribe(
                pattern=self._intakes.pattern(), listener=Listener(partial(self.revoked, consumer), self.assigned)
            )
            self._took_at = time.monotonic()
            self._joined = False
            await first_end(self._poll(consumer, reconnect), self._keep_committing(consumer), self._watch(consumer))
        finally:
            task = asyncio.current_task()
            cancelled = task is not None and task.cancelling() > 0  # so are those who have something in hand
            await self.revoked(consumer, tuple(self._parts), 0.0 if cancelled else _IN_HAND_S)
            await give_up_consumer(consumer)

    async def revoked(
        self, consumer: AIOKafkaConsumer, places: Iterable[TopicPartition], wait_s: float = _IN_HAND_S
    ) -> None:
        """These partitions go to another member, or the consumer ends: nothing more of them is begun, what is in hand
        is waited for, or the next one would read it, too; then commit what is done, and forget the rest."""
        places = tuple(places)
        await self._wait_for_hands([part for place in places if (part := self._parts.get(place)) is not None], wait_s)
        gone = self._let_go(places)
        try:
            if gone:
                await self._commits.commit(consumer, gone)
        finally:
            for part in gone:
                part.alive = False

    async def _wait_for_hands(self, parts: Sequence[Part], wait_s: float) -> None:
        """Until nothing of these partitions is in hand; not for ever, because a store may be away for hours."""
        for part in parts:
            part.leaving = True
        self._drop_buffer(set(parts))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while any(part.in_hand > 0 for part in parts):
                    self._let_out.clear()
                    await self._let_out.wait()

    def assigned(self, places: Iterable[TopicPartition]) -> None:
        """These partitions are to be begun. What was begun since they were revoked belongs to the assignment before,
        and so does the offset that its consumer was told to go to: the new one stands where the group has committed."""
        for part in self._let_go(places):
            part.alive = False
        self.look_around()

    def _let_go(self, places: Iterable[TopicPartition]) -> list[Part]:
        """Forget these partitions and what is buffered of them; they live on until what they have done is committed."""
        gone = [part for place in places if (part := self._parts.pop(place, None)) is not None]
        self._drop_buffer(set(gone))
        return gone

    def look_around(self) -> None:
        """There may be partitions to begin, and topics that were made anew."""
        self._look_around = True

    # -- polling ----------------------------------------------------------------------------------------------------

    async def _poll(self, consumer: AIOKafkaConsumer, reconnect: Reconnect) -> None:
        while True:
            try:
                if self._look_around:
                    self._look_around = not await self._places.look(consumer)
                if self._full():
                    await self._wait_for_room(consumer)
                await self._poll_once(consumer)
                if not self._joined:  # only now: a group that does not let us in fails the first poll
                    self._joined = True
                    reconnect.worked()
                    self._health.say(_SUBJECT, "")
                if not self._stopping:
                    self._places.pass_by(consumer)
            except UnicodeDecodeError:
                self._careful_until = time.monotonic() + _CAREFUL_S
                self._step_back(consumer)
            except TopicAuthorizationFailedError as error:
                self._topics.refused(consumer, error.args)
                await asyncio.sleep(_FORBIDDEN_S)
            except NoOffsetForPartitionError:
                self._look_around = True
            except OffsetOutOfRangeError as error:
                await self._go_on(consumer, error.args[0])

    async def _go_on(self, consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
        """What is known of a log that lost records is committed at once: whoever reads it next has to know it."""
        for place, offset in offsets.items():
            if await self._places.go_on(consumer, place, offset):
                await self._commits.commit(consumer, tuple(self._parts.values()))

    async def _poll_once(self, consumer: AIOKafkaConsumer) -> None:
        if time.monotonic() < self._careful_until:
            await self._poll_each(consumer)
        else:
            places = self._intakes.but_those_of(self._held.crowded(), consumer.assignment())
            timeout_ms = _TURN_MS if places else _POLL_MS
            await self._take_in(
                consumer, await consumer.getmany(*places, timeout_ms=timeout_ms, max_records=self._most())
            )
        await asyncio.sleep(0)  # a poll that finds records does not let anybody else run

    async def _wait_for_room(self, consumer: AIOKafkaConsumer) -> None:
        """Wait a moment; then pause all partitions and go on polling, or the group would take them from us."""
        self._room.clear()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._room.wait()
        except TimeoutError:
            try:
                while self._full():
                    consumer.pause(*consumer.assignment())
                    await self._take_in(consumer, await consumer.getmany(timeout_ms=_POLL_MS // 2, max_records=1))
            finally:
                consumer.resume(*consumer.assignment())

    async def _take_in(
        self, consumer: AIOKafkaConsumer, fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]]
    ) -> None:
        fetched = await self._places.surely(consumer, fetched)
        if not fetched or self._stopping:
            return
        now_ms = self._clock.now_ms()
        for place, records in fetched.items():
            self._hand_over(self._parts[place].deliveries(records, now_ms))
        self._took_at = time.monotonic()

    def _hand_over(self, deliveries: Sequence[Delivery]) -> None:
        self._arrivals.add(deliveries)
        self._held.add(deliveries)

    # -- a record that cannot be decoded ----------------------------------------------------------------------------

    def _step_back(self, consumer: AIOKafkaConsumer) -> None:
        """A failed poll has lost the records that it had drained from other partitions: go back to before them."""
        for place in consumer.assignment().intersection(self._parts):  # what is not begun has handed over nothing
            go_to(consumer, place, self._parts[place].next)

    async def _poll_each(self, consumer: AIOKafkaConsumer) -> None:
        """Poll partition by partition, so that one that fails takes nothing of the others with it."""
        for place in tuple(consumer.assignment()):
            if self._full():
                return
            try:
                await self._take_in(consumer, await consumer.getmany(place, max_records=self._most()))
            except UnicodeDecodeError:
                await self._pass_over(consumer, place)
        await asyncio.sleep(0.02)

    async def _pass_over(self, consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
        """Take what is before the record one by one; then it, and what follows in its batch, from the bytes."""
        part = self._parts.get(place)
        if part is None:
            return
        try:
            while fetched := await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=1):
                await self._take_in(consumer, fetched)
                if self._full():
                    return
        except UnicodeDecodeError:
            offset = await consumer.position(place)
            batch = await fetch_batch(consumer, place, offset)
            if self._parts.get(place) is part and not self._stopping and place in consumer.assignment():
                now_ms = self._clock.now_ms()
                if batch is None:
                    consumer.seek(place, offset + 1)
                    self._hand_over([part.lost(offset, now_ms)])
                else:
                    consumer.seek(place, batch.end)
                    self._hand_over([part.raw(number, record, now_ms) for number, record in batch.records])
            self._careful_until = time.monotonic() + _CAREFUL_S

    # -- offsets ----------------------------------------------------------------------------------------------------

    async def _keep_committing(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            await asyncio.sleep(_COMMIT_S)
            if self._joined:
                await self._commits.commit(consumer, tuple(self._parts.values()))

    # -- watching ---------------------------------------------------------------------------------------------------

    async def _watch(self, consumer: AIOKafkaConsumer) -> None:
        """Look after the topics, and end the session of a consumer that is stuck."""
        stuck, silent = Stuck(consumer), False
        await answers(consumer._client, _ANSWER_S)  # the connections for it are made while all is well
        while True:
            await asyncio.sleep(_WATCH_S)
            if not await answers(consumer._client, _ANSWER_S):
                error = BrokerUnavailable(f"no broker of {self._rules.bootstrap_servers} answers")
                if silent:  # twice: what a broker's restart does to a consumer is not worth the risk
                    raise error
                self._health.say(_SUBJECT, f"nothing is taken from Kafka: {error}")
                silent = True
                continue
            silent = False
            if self._joined:
                self._health.say(_SUBJECT, "")
            self.look_around()
            self._topics.look(consumer)
            if self._full() or self._held.crowded():
                stuck.forget()
            else:
                await stuck.look(self._took_at)
                self._topics.try_again(consumer)


def _in_hand(deliveries: list[Delivery]) -> list[Delivery]:
    for delivery in deliveries:
        delivery.tag[0].in_hand += 1
    return deliveries
