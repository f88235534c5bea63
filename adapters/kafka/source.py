"""The source: reads the intake topics as one member of a consumer group, and hands records on in batches.

Offsets are committed by hand, up to the first record that is not accepted. Records handed over and not committed are
read again after a crash, under the same ``origin``, by which the store recognizes them. The order key is the partition:
the producer's partitioner puts equal keys into one partition.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from adapters.kafka.access import broker_errors, sentence
from adapters.kafka.assignments import Assignments, Fetched, go_to
from adapters.kafka.client import answers, commit_once, first_end, gather, give_up_consumer, new_consumer, start
from adapters.kafka.intake import NO_FAULTS, Intakes, KafkaIntake, Partition
from adapters.kafka.pointers import Followed, Originals, points
from adapters.kafka.raw.poison import fetch_batch
from adapters.kafka.watchdog import ConsumerWatchdog, OldTimestamps, TopicWatch
from bridge.core.clock import StoreClock
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Delivery
from bridge.pipeline.intake import Arrivals
from bridge.pipeline.wake import Throughput, gather_ms
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect, keep_connected
from bridge.telemetry.subject import INTAKE, Subject

_SUBJECT = Subject("kafka", INTAKE)
#: Maximum records in one poll, and how long a poll waits for the first.
_POLL_RECORDS = 500
_POLL_MS = 500
#: Poll wait while a route is full: it may have room again at any moment.
_TURN_MS = 10
_COMMIT_S = 1.0
_ANSWER_S = 3.0
#: Pause after an authorization error: aiokafka raises one for each partition of the topic.
_FORBIDDEN_S = 0.005
_START_S = 30.0
_WATCH_S, _WATCH_AWAY_S = 5.0, 1.0
#: Wait for room before pausing partitions, because a pause discards fetched records.
_PATIENCE_S = 1.0
#: Time to poll partitions one by one after a record that could not be decoded.
_CAREFUL_S = 5.0
#: Wait for deliveries in hand when their partition is revoked. The whole group waits meanwhile. This wait and the
#: commit after it must end before the group's rebalance timeout (``client._REBALANCE_MS``).
_IN_HAND_S = 2.0
#: How many topics a sentence names.
_NAMED = 4
_COMMIT_SUBJECT = Subject("kafka", "commit")
#: How long a partition is paused whose next record points at one that cannot be fetched now.
_POINTER_S = 5.0


class RebalanceListener(ConsumerRebalanceListener):
    """Tells a source what its group does. The group continues when ``revoked`` has returned."""

    def __init__(self, source: KafkaSource, consumer: AIOKafkaConsumer) -> None:
        self._source = source
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._source.revoked(self._consumer, revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._source.assigned(assigned)


class HeldDeliveries:
    """Deliveries that are neither accepted nor dropped: total bounds, and each route's share. ``routes`` is the number
    of routes."""

    def __init__(self, messages_max: int, bytes_max: int, routes: int) -> None:
        self.messages = 0
        self._bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        #: The number of routes that share the room.
        self.routes = routes
        self._of_route: Counter[str] = Counter()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Count deliveries that were handed over."""
        self.messages += len(deliveries)
        self._bytes += sum(len(delivery.payload) for delivery in deliveries)
        self._of_route.update(delivery.route for delivery in deliveries)

    def forget(self, deliveries: Sequence[Delivery]) -> None:
        """Subtract deliveries that were accepted or dropped."""
        self.messages -= len(deliveries)
        self._bytes -= sum(len(delivery.payload) for delivery in deliveries)
        self._of_route.subtract(delivery.route for delivery in deliveries)

    def full(self) -> bool:
        """Whether a bound is reached."""
        return self.messages >= self._messages_max or self._bytes >= self._bytes_max

    def half_empty(self) -> bool:
        """Whether there is enough room to resume."""
        return self.messages <= self._messages_max // 2 and self._bytes <= self._bytes_max // 2

    def room(self) -> int:
        """How many more messages may be handed over."""
        return self._messages_max - self.messages

    def crowded(self) -> set[str]:
        """Routes that hold their full share. One share stays free for another route, so that a flood on one route
        delays no other."""
        if self.routes == 1:
            return set()
        held = {route: count for route, count in self._of_route.items() if count > 0}
        return {route for route, count in held.items() if count >= self._messages_max // (len(held) + 1)}


class OffsetCommits:
    """Commits progress, one commit at a time, so that an older offset never follows a newer one."""

    def __init__(self, rules: Kafka, health: Health) -> None:
        self._rules = rules
        self._health = health
        self._lock = asyncio.Lock()
        self._failed = False

    def begin(self) -> None:
        """A new consumer is about to join: what the last one could not commit says nothing of it."""
        self._failed = False
        self._health.say(_COMMIT_SUBJECT, "")

    async def commit(self, consumer: AIOKafkaConsumer, parts: Collection[Partition]) -> None:
        """Commit the progress of each partition. A failure does no harm: the next call commits more, and a record that
        is read again is recognized by its origin."""
        try:
            async with self._lock:
                await self._commit(consumer, parts)
        except (KafkaError, OSError) as error:
            self._failed = True
            why = sentence(error, self._rules)
            if isinstance(error, UnknownTopicOrPartitionError):
                await _new_metadata(consumer)
                why = _without_topic(parts, consumer._client.cluster.topics())
            elif isinstance(error, TimeoutError):
                who = f"broker {consumer._coordinator.coordinator_id}, the group's coordinator"
                why = f"{who}, has not confirmed them in time. It, or a broker with a replica, does not answer"
            if self._failed:  # another commit may have worked meanwhile
                self._health.say(_COMMIT_SUBJECT, f"cannot commit offsets to Kafka: {why}")

    async def _commit(self, consumer: AIOKafkaConsumer, parts: Collection[Partition]) -> None:
        """After a failure commit everything again, because only an answer proves that commits work. A rebalance in
        between voids the commit."""
        done = {part: offset for part in parts if (offset := part.progress.committable) is not None}
        fresh = done if self._failed else {part: offset for part, offset in done.items() if offset != part.committed}
        if fresh:
            async with asyncio.timeout(_ANSWER_S):
                valid = await commit_once(consumer, {part.tp: (offset, part.note) for part, offset in fresh.items()})
            if not valid:
                return
            for part, offset in fresh.items():
                part.committed = offset
        if self._failed:
            self._failed = False
            self._health.say(_COMMIT_SUBJECT, "")


class KafkaSource:
    """``bridge.core.ports.Source`` on Kafka. ``run`` keeps it connected."""

    def __init__(
        self,
        rules: Kafka,
        intakes: Sequence[KafkaIntake],
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
        self._assignments = Assignments(rules, self._intakes, health)
        self._parts = self._assignments.parts
        self._commits = OffsetCommits(rules, health)
        self._topics = TopicWatch(self._intakes, mend, health, self._assignments.lost_in_absent)
        self._old = OldTimestamps(health, clock)
        self._originals = Originals()
        #: Partitions paused for a while: until when (Unix ms), and at the latest (monotonic s), because clocks step.
        self._resting: dict[TopicPartition, tuple[int, float]] = {}
        self._joined = False
        #: The next turn checks for partitions to start and for recreated topics.
        self._recheck = True
        self._arrivals = Arrivals()
        self._held = HeldDeliveries(rules.window, bytes_max, len(self._intakes.routes))
        self._room = asyncio.Event()
        self._released = asyncio.Event()
        self._careful_until = 0.0
        self._took_at = 0.0
        #: Since when no broker has answered the consumer (monotonic, s); 0 while one does. It outlives a consumer.
        self._silent_s = 0.0
        #: The last consumer's name in its group. The next one joins under it: a group waits for the session of a member
        #: that could not leave, such as while Kafka was away. A name that has left counts as none.
        self._member_id = ""
        self._rate = Throughput()
        self._closed_routes: frozenset[str] = frozenset()
        self._paused: set[TopicPartition] = set()
        self._stopping = False
        self._subscribe: Callable[[], None] = lambda: None

    def follow(self, intakes: Sequence[KafkaIntake]) -> None:
        """Read the topics of these intakes from now on. The group assigns its partitions again where topics differ."""
        self._intakes.follow(intakes)
        for tp, part in self._parts.items():  # the group assigns nothing again where the topics stay the same
            part.follow(self._intakes.of(tp.topic))
        self._held.routes = len(self._intakes.routes)
        self._subscribe()

    # -- the port ---------------------------------------------------------------------------------------------------

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        return _in_hand(await self._arrivals.take(messages_max, bytes_max))

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        return _in_hand(self._arrivals.more(messages_max, bytes_max, without))

    def alive(self, delivery: Delivery) -> bool:
        """Whether this process still owns the delivery's partition."""
        part: Partition = delivery.tag[0]
        return part.alive and not part.leaving

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """These deliveries are durable: advance the offsets to commit."""
        offsets: dict[Partition, list[int]] = {}
        for delivery in deliveries:
            part, offset = delivery.tag
            offsets.setdefault(part, []).append(offset)
        for part, done in offsets.items():
            part.in_hand -= len(done)
            if part.alive:
                part.progress.done(done)
        self._released.set()
        self._forget(deliveries)

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Forget these deliveries. Whoever reads the partition next reads them again."""
        for delivery in deliveries:
            delivery.tag[0].in_hand -= 1
        self._released.set()
        self._forget(deliveries)

    def place(self, delivery: Delivery) -> dict[str, object]:
        part, offset = delivery.tag
        return {"topic": part.tp.topic, "partition": part.tp.partition, "offset": offset}

    def close_intakes(self, routes: Collection[str]) -> None:
        """Pause the partitions of these routes before the next poll, and resume the others."""
        self._closed_routes = frozenset(routes)

    def stop(self) -> None:
        """Take nothing more. Buffered records are not committed, so they are read again later, without copies."""
        self._stopping = True
        self._drop_buffer(set(self._parts.values()))

    def emptied(self) -> bool:
        return self._arrivals.empty()

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        self._held.forget(deliveries)
        if self._held.half_empty():
            self._room.set()

    def _full(self) -> bool:
        return self._stopping or self._held.full()

    def _most(self) -> int:
        return max(1, min(_POLL_RECORDS, self._held.room()))

    def _drop_buffer(self, parts: set[Partition]) -> None:
        self._forget(self._arrivals.remove(lambda delivery: delivery.tag[0] in parts))

    # -- the consumer -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Consume until cancelled. After an error start again with a new consumer."""
        await keep_connected(self._session, self._health, _SUBJECT, "nothing is taken from Kafka")

    async def _session(self, reconnect: Reconnect) -> None:
        with broker_errors(self._rules):
            consumer = new_consumer(self._rules)
            try:
                async with asyncio.timeout(_START_S):
                    await start(consumer, self._rules)
                self._commits.begin()
                consumer._coordinator.member_id = self._member_id
                if self._silent_s:
                    self._health.say(_SUBJECT, "nothing is taken from Kafka yet: the consumer joins its group again")
                consumer._client.cluster.add_listener(self._assignments.invalidate)
                consumer._client.cluster.add_listener(self._topics.on_metadata)
                listener = RebalanceListener(self, consumer)
                self._subscribe = lambda: consumer.subscribe(pattern=self._intakes.pattern(), listener=listener)
                self._subscribe()
                self._took_at = time.monotonic()
                self._joined = False
                await first_end(self._poll(consumer, reconnect), self._keep_committing(consumer), self._watch(consumer))
            finally:
                self._subscribe = lambda: None
                task = asyncio.current_task()
                cancelled = task is not None and task.cancelling() > 0  # and so are the tasks that hold deliveries
                await self.revoked(consumer, tuple(self._parts), 0.0 if cancelled else _IN_HAND_S)
                if consumer._coordinator is not None:
                    self._member_id = consumer._coordinator.member_id
                await give_up_consumer(consumer)

    async def revoked(
        self, consumer: AIOKafkaConsumer, tps: Iterable[TopicPartition], wait_s: float = _IN_HAND_S
    ) -> None:
        """Another member gets these partitions, or the consumer ends. Wait for deliveries in hand, or the next owner
        would read them too. Then commit what is done and forget the rest."""
        tps = tuple(tps)
        await self._wait_for_hands([part for tp in tps if (part := self._parts.get(tp)) is not None], wait_s)
        gone = self._let_go(tps)
        try:
            if gone:
                await self._commits.commit(consumer, gone)
        finally:
            for part in gone:
                part.alive = False

    async def _wait_for_hands(self, parts: Sequence[Partition], wait_s: float) -> None:
        """Wait until no delivery of these partitions is in hand; at most ``wait_s``, because a store may be away for
        hours."""
        for part in parts:
            part.leaving = True
        self._drop_buffer(set(parts))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while any(part.in_hand > 0 for part in parts):
                    self._released.clear()
                    await self._released.wait()

    def assigned(self, tps: Iterable[TopicPartition]) -> None:
        """Start these partitions. Anything started since they were revoked belongs to the previous assignment, and so
        does its position. The new consumer starts at the committed offset."""
        for part in self._let_go(tps):
            part.alive = False
        self._recheck = True

    def _let_go(self, tps: Iterable[TopicPartition]) -> list[Partition]:
        """Forget these partitions and their buffered records. They stay alive until their progress is committed."""
        gone = self._assignments.let_go(tps)
        self._drop_buffer(set(gone))
        return gone

    # -- polling ----------------------------------------------------------------------------------------------------

    async def _poll(self, consumer: AIOKafkaConsumer, reconnect: Reconnect) -> None:
        while True:
            try:
                if self._recheck:
                    self._recheck = not await self._assignments.check_all(consumer)
                if self._full():
                    await self._wait_for_room(consumer)
                if self._closed_routes or self._paused:
                    self._pause_closed(consumer)
                if self._resting:
                    self._resume_rested(consumer)
                await self._poll_once(consumer)
                if not self._joined:  # a group that refuses this member fails the first poll
                    self._joined = True
                    reconnect.worked()
                    self._health.say(_SUBJECT, "")
                if not self._stopping:
                    self._assignments.skip_non_records(consumer)
            except UnicodeDecodeError:
                self._careful_until = time.monotonic() + _CAREFUL_S
                self._step_back(consumer)
            except TopicAuthorizationFailedError as error:
                self._topics.refused(consumer, error.args)
                await asyncio.sleep(_FORBIDDEN_S)
            except NoOffsetForPartitionError:
                self._recheck = True
            except OffsetOutOfRangeError as error:
                await self._go_on(consumer, error.args[0])

    def _pause_closed(self, consumer: AIOKafkaConsumer) -> None:
        """Pause what is closed and resume the rest. A rebalance, and waiting for room, resume every partition."""
        closed = {tp for tp in consumer.assignment() if self._intakes.of(tp.topic).route in self._closed_routes}
        consumer.pause(*closed - consumer.paused())
        consumer.resume(*(self._paused - closed) & consumer.assignment())
        self._paused = closed

    def _rest(self, consumer: AIOKafkaConsumer, tp: TopicPartition, until_ms: int) -> None:
        consumer.pause(tp)
        self._resting[tp] = until_ms, time.monotonic() + (until_ms - self._clock.now_ms()) / 1000

    def _resume_rested(self, consumer: AIOKafkaConsumer) -> None:
        now_ms, now_s = self._clock.now_ms(), time.monotonic()
        for tp in [tp for tp, (at_ms, at_s) in self._resting.items() if at_ms <= now_ms or at_s <= now_s]:
            del self._resting[tp]
            if tp in consumer.assignment() and tp not in self._paused:
                consumer.resume(tp)

    def _without_closed(
        self, consumer: AIOKafkaConsumer, fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]]
    ) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Leave out what came in the poll during which its intake was closed, to be fetched again."""
        closed = {tp for tp in fetched if self._intakes.of(tp.topic).route in self._closed_routes}
        for tp in closed & consumer.assignment():
            consumer.seek(tp, fetched[tp][0].offset)
        return {tp: records for tp, records in fetched.items() if tp not in closed}

    async def _go_on(self, consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
        """Resume after Kafka lost records, and commit at once where the next reader must know of the loss."""
        for tp, offset in offsets.items():
            if await self._assignments.resume_after_loss(consumer, tp, offset):
                await self._commits.commit(consumer, tuple(self._parts.values()))

    async def _poll_once(self, consumer: AIOKafkaConsumer) -> None:
        if time.monotonic() < self._careful_until:
            await self._poll_each(consumer)
        else:
            tps = self._intakes.partitions_except(self._held.crowded(), consumer.assignment())
            timeout_ms = _TURN_MS if tps else _POLL_MS
            fetched = await consumer.getmany(*tps, timeout_ms=timeout_ms, max_records=self._most())
            gather(consumer, gather_ms(self._rate.add(sum(map(len, fetched.values())))))
            await self._take_in(consumer, fetched)
        await asyncio.sleep(0)  # a poll that finds records does not yield to other tasks

    async def _wait_for_room(self, consumer: AIOKafkaConsumer) -> None:
        """Wait a moment. Then pause all partitions and keep polling, or the group would reassign them."""
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
        fetched = await self._assignments.confirmed(consumer, fetched)
        if self._closed_routes and fetched:
            fetched = self._without_closed(consumer, fetched)
        retrying = [tp for tp in fetched if self._parts[tp].intake.retries]
        pointed = {tp for tp in retrying if any(map(points, fetched[tp]))}
        fetched, faults = await self._followed(consumer, fetched, pointed) if pointed else (fetched, {})
        if not fetched or self._stopping:
            return
        now_ms = self._clock.now_ms()
        for tp, records in fetched.items():
            part = self._parts[tp]
            deliveries = part.deliveries(records, now_ms, faults.get(tp, NO_FAULTS))
            self._old.look(part, deliveries[-1])
            self._hand_over(deliveries)
        self._took_at = time.monotonic()

    async def _followed(
        self, consumer: AIOKafkaConsumer, fetched: Fetched, pointed: Collection[TopicPartition]
    ) -> tuple[Fetched, dict[TopicPartition, dict[int, str]]]:
        """Put originals in place of pointers, and return the faults. Seek back to what has to wait."""
        parts = {tp: self._parts[tp] for tp in fetched}
        found = {tp: await self._originals.follow(consumer, fetched[tp], parts[tp].originals) for tp in pointed}
        still = {tp for tp in consumer.assignment() & fetched.keys() if self._parts.get(tp) is parts[tp]}
        for tp in still & found.keys():
            self._leave_rest(consumer, tp, fetched[tp], found[tp])
        done = {tp: found[tp].records if tp in found else fetched[tp] for tp in still}
        return {tp: records for tp, records in done.items() if records}, {tp: found[tp].faults for tp in found}

    def _leave_rest(
        self, consumer: AIOKafkaConsumer, tp: TopicPartition, records: Sequence[ConsumerRecord], found: Followed
    ) -> None:
        if len(found.records) < len(records):
            consumer.seek(tp, records[len(found.records)].offset)
        text = f"partition {tp.partition} of topic {tp.topic} waits, it points at {found.trouble}"
        subject = Subject("kafka", "pointer", tp.topic)
        self._health.say(subject, text if found.trouble else "", 3 * _POINTER_S)
        if found.trouble:
            self._rest(consumer, tp, self._clock.now_ms() + int(_POINTER_S * 1000))

    def _hand_over(self, deliveries: Sequence[Delivery]) -> None:
        self._arrivals.add(deliveries)
        self._held.add(deliveries)

    # -- a record that cannot be decoded ----------------------------------------------------------------------------

    def _step_back(self, consumer: AIOKafkaConsumer) -> None:
        """Seek back: a failed poll has discarded records that it had drained from other partitions."""
        for tp in consumer.assignment().intersection(self._parts):  # the others have handed over nothing
            go_to(consumer, tp, self._parts[tp].next)

    async def _poll_each(self, consumer: AIOKafkaConsumer) -> None:
        """Poll partition by partition, so that one that fails discards nothing of the others."""
        for tp in tuple(consumer.assignment()):
            if self._full():
                return
            try:
                await self._take_in(consumer, await consumer.getmany(tp, max_records=self._most()))
            except UnicodeDecodeError:
                await self._pass_over(consumer, tp)
        await asyncio.sleep(0.02)

    async def _pass_over(self, consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
        """Read the records before the undecodable one singly. Decode it, and the rest of its batch, from raw bytes."""
        part = self._parts.get(tp)
        if part is None:
            return
        try:
            while fetched := await consumer.getmany(tp, timeout_ms=_POLL_MS, max_records=1):
                await self._take_in(consumer, fetched)
                if self._full():
                    return
        except UnicodeDecodeError:
            offset = await consumer.position(tp)
            batch = await fetch_batch(consumer, tp, offset)
            if self._parts.get(tp) is part and not self._stopping and tp in consumer.assignment():
                now_ms = self._clock.now_ms()
                consumer.seek(tp, batch.end)
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
        """Check the topics, and end the session of a consumer that hangs."""
        stuck = ConsumerWatchdog(consumer)
        self._topics.forget()
        await answers(consumer._client, _ANSWER_S)  # opens its connections while all is well
        while True:
            hurried = self._silent_s or self._topics.hurried()
            await self._topics.until_gone(_WATCH_AWAY_S if hurried else _WATCH_S)
            if not await answers(consumer._client, _ANSWER_S):
                self._topics.forget()
                error = BrokerUnavailable(f"no broker of {self._rules.bootstrap_servers} answers")
                self._silent_s = self._silent_s or time.monotonic()
                # aiokafka may hang after a broker restart, so replace the consumer.
                if time.monotonic() - self._silent_s >= _WATCH_S:
                    raise error
                self._health.say(_SUBJECT, f"nothing is taken from Kafka: {error}")
                continue
            self._silent_s = 0.0
            if self._joined:
                self._health.say(_SUBJECT, "")
            self._old.note_ends(consumer, self._parts)
            await self._assignments.note_ends(consumer)
            self._recheck = True
            if self._topics.missing:  # what was declared since is not missing any more
                await _new_metadata(consumer)
            self._topics.look(consumer)
            if self._full() or self._held.crowded():
                stuck.forget()
            else:
                await stuck.look(self._took_at)
                self._topics.try_again(consumer)


async def _new_metadata(consumer: AIOKafkaConsumer) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            await consumer._client.force_metadata_update()


def _without_topic(parts: Collection[Partition], topics: Collection[str]) -> str:
    """Return which topics are missing. aiokafka does not pass on their names, and one broker may learn of a deletion
    after the others."""
    missing = sorted({part.tp.topic for part in parts}.difference(topics))
    return f"topics that it does not know: {', '.join(missing[:_NAMED])}" if missing else "it does not know a topic"


def _in_hand(deliveries: list[Delivery]) -> list[Delivery]:
    for delivery in deliveries:
        delivery.tag[0].in_hand += 1
    return deliveries
