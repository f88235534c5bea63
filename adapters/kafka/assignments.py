"""The partitions assigned to a consumer: where each starts, and whether its topic is still the same one.

A fetch names a topic and not its id. Records are handed over only if their topic's id is confirmed. That is,
postdate asked for it less than a second ago and the cluster's metadata has not changed since. A recreated topic is
read from its beginning, and its partitions count as new ones (``intake.start_offset_in``).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.errors import KafkaError

from adapters.kafka.access import sentence
from adapters.kafka.client import has_leader
from adapters.kafka.deleted_topic import DeletedTopics
from adapters.kafka.intake import Intakes, Partition, Sighting, StartOffset, start_offset_after, start_offset_in
from adapters.kafka.topology.topic_ids import TopicId, ask_ids
from bridge.delay.duration import write_moment
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

#: Records by partition, as a poll gives them.
Fetched = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_SUBJECT = Subject("kafka", "begin")
_ANSWER_S = 3.0
_AGAIN_S = 0.1
_SURE_S = 1.0
_PASS_S = 0.5
#: Idle topics confirmed in one check: an answer about very many takes long to parse.
_TOPICS_A_LOOK = 50
log = structlog.get_logger("postdate")

_LOST_S = 24 * 3600.0
_RESET_S = 600.0


class Losses:
    """Reports lost records, and offsets set by other tools.

    Each event is a log line with the offsets. A loss stays in the process's health for a day, so that it is seen the
    next morning. An offset set by a person stays for ten minutes.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._offsets: Counter[str] = Counter()

    def removed(self, tp: TopicPartition, start: int, end: int) -> None:
        """Kafka removed the offsets from ``start`` up to ``end`` before they were read."""
        topic, partition = tp
        self._offsets[topic] += end - start
        log.warning(
            "kafka removed unread records", topic=topic, partition=partition, first_offset=start, next_offset=end
        )
        text = (
            f"Kafka removed {self._offsets[topic]} offsets of topic {topic} before postdate could read them, the last "
            f"time {start} to {end - 1} of partition {partition} ({_now()}). The topic's retention is too short, or "
            "someone deleted records"
        )
        self._health.say(Subject("kafka", "removed", topic), text, _LOST_S, cause="removed")

    def offset_set_externally(self, tp: TopicPartition, offset: int) -> None:
        """The group's offset has no note of this cluster, so it may belong to an earlier topic of this name."""
        topic, partition = tp
        log.warning("kafka offset set by another tool", topic=topic, partition=partition, offset=offset)
        text = (
            f"the group's offset {offset} of partition {partition} of topic {topic} was set by another tool "
            f"({_now()}). postdate continues there: it reads no earlier records, and parks no record a second time"
        )
        self._health.say(Subject("kafka", "offset", topic), text, _RESET_S, cause="offset")

    def lost(self, tp: TopicPartition, end: int, read: int) -> None:
        """Kafka's partition ends at ``end`` although offsets up to ``read`` were read."""
        topic, partition = tp
        log.warning("kafka lost records", topic=topic, partition=partition, end=end, read=read)
        text = (
            f"Kafka lost the offsets {end} to {read - 1} of partition {partition} of topic {topic}, which had been "
            f"read ({_now()}). A broker crashed, or elected a leader without them. postdate reads the partition again"
        )
        self._health.say(Subject("kafka", "lost", topic), text, _LOST_S, cause="lost")


def _now() -> str:
    return write_moment(int(time.time() * 1000))


class Assignments:
    """``parts`` are the partitions that are started. One consumer uses it at a time, from one task."""

    def __init__(self, rules: Kafka, intakes: Intakes, health: Health) -> None:
        self.parts: dict[TopicPartition, Partition] = {}
        self._rules = rules
        self._intakes = intakes
        self._health = health
        self._losses = Losses(health)
        self._deleted = DeletedTopics(health)
        self._sure_until: dict[str, float] = {}
        self._pass_at = 0.0

    def invalidate(self, *_: object) -> None:
        """The cluster's metadata changed: confirm every topic again."""
        self._sure_until.clear()

    async def confirmed(self, consumer: AIOKafkaConsumer, fetched: Fetched) -> Fetched:
        """Keep records whose topic id is confirmed. Seek back so that the others are fetched again."""
        asking = (
            consumer._client._md_update_fut is not None
        )  # a metadata request is open, so a topic may just have changed
        now, parts, sure_until = time.monotonic(), self.parts, self._sure_until
        doubtful = {tp for tp in fetched if asking or tp not in parts or sure_until.get(tp.topic, 0.0) < now}
        if not doubtful:
            return fetched
        before = dict(parts)
        doubtful -= await self._checked(consumer, doubtful)
        assigned = consumer.assignment()  # other members read what was revoked meanwhile
        for tp in assigned & doubtful:
            if parts.get(tp) is before.get(tp):  # not confirmed
                consumer.seek(tp, fetched[tp][0].offset)
        there = {tp for tp in assigned - doubtful if parts.get(tp) is before.get(tp)}
        return {tp: records for tp, records in fetched.items() if tp in there}

    async def check_all(self, consumer: AIOKafkaConsumer) -> bool:
        """Start the partitions that are not started. Confirm the topics whose last answer is oldest. Return whether
        that worked."""
        assigned = consumer.assignment()
        one_each = {tp.topic: tp for tp in assigned}
        former = self._deleted.former()
        longest = sorted(one_each, key=lambda topic: self._sure_until.get(topic, 0.0))[:_TOPICS_A_LOOK]
        tps = {one_each[topic] for topic in longest}.union(tp for tp in assigned if tp not in self.parts)
        if not tps | former:
            self._health.say(_SUBJECT, "")
            return True
        return bool(await self._checked(consumer, tps | former)) or tps <= self.parts.keys()

    def let_go(self, tps: Iterable[TopicPartition]) -> list[Partition]:
        """Forget these partitions, but for what is lost if their topic was deleted. Return them."""
        gone = [part for tp in tps if (part := self.parts.pop(tp, None)) is not None]
        self._deleted.remember(gone)
        return gone

    def lost_in_absent(self, topic: str) -> str:
        """Return what is lost if ``topic``, which is not there, was deleted."""
        return self._deleted.in_absent(topic, self.parts.values())

    async def note_ends(self, consumer: AIOKafkaConsumer) -> None:
        """Note where the partitions end. A fetch tells it, but for those that are paused or were not fetched yet."""
        ends: dict[TopicPartition, int] = {}
        asked: dict[TopicPartition, int] = {}
        for tp in consumer.assignment() & self.parts.keys():
            end = None if tp in consumer.paused() else consumer.highwater(tp)
            if end is not None:
                ends[tp] = end
            elif has_leader(consumer._client.cluster, tp):
                asked[tp] = OffsetResetStrategy.LATEST
        try:
            async with asyncio.timeout(_ANSWER_S):
                found = await consumer._fetcher._proc_offset_requests(asked) if asked else {}
        except (KafkaError, OSError):  # perhaps a deleted topic: the next metadata lack it
            consumer._client.force_metadata_update()
            found = {}
        ends |= {tp: answer[0] for tp, answer in found.items()}
        at_ms, at_s = int(time.time() * 1000), time.monotonic()
        for tp in ends.keys() & self.parts.keys():
            self.parts[tp].sighting = Sighting(ends[tp], at_ms, at_s)

    def skip_non_records(self, consumer: AIOKafkaConsumer) -> None:
        """Move progress over offsets that hold no record: transaction markers and aborted records.

        Call it after a poll, when all its records are handed over or put back. It does its work at most twice a
        second.
        """
        now, subscription = time.monotonic(), consumer._subscription.subscription
        if now < self._pass_at or subscription is None or subscription.assignment is None:
            return
        self._pass_at = now + _PASS_S
        for tp, part in self.parts.items():
            state = subscription.assignment.state_value(tp)
            if state is not None and state.has_valid_position and state.position > (part.next or 0):
                part.next = state.position
                part.progress.reached(part.next)

    async def resume_after_loss(self, consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> bool:
        """Kafka has nothing at this offset: report the loss and continue with what there is. Return whether to
        commit at once."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                at_once = await self._resume_after_loss(consumer, tp, offset)
        except (KafkaError, OSError) as error:
            await self._failed(error)
            return False
        self._health.say(_SUBJECT, "")
        return at_once

    async def _checked(self, consumer: AIOKafkaConsumer, tps: Set[TopicPartition]) -> Set[TopicPartition]:
        """The partitions whose topic is confirmed."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                sure = await self._check(consumer, tps)
        except (KafkaError, OSError) as error:
            await self._failed(error)
            return set()
        self._health.say(_SUBJECT, "")
        return sure

    async def _failed(self, error: Exception) -> None:
        """The next look tries again. The watchdog notices a consumer that stays stuck."""
        text = f"cannot determine where Kafka's partitions start: {sentence(error, self._rules)}"
        self._health.say(_SUBJECT, text)
        await asyncio.sleep(_AGAIN_S)

    async def _check(self, consumer: AIOKafkaConsumer, tps: Set[TopicPartition]) -> Set[TopicPartition]:
        """Ask for the topic ids. Start partitions that are new or whose topic was recreated.

        Raises the errors of aiokafka and of the network.
        """
        before, since = dict(self.parts), time.monotonic()
        found = await ask_leaders(consumer, tps)
        lost = self._deleted.changed_among(found)
        for tp in consumer.assignment() & self.parts.keys():
            topic_id = found.get(tp.topic)
            if topic_id is not None and self.parts[tp].topic_id != topic_id:
                lost.append(self.parts[tp])
                self._begin(consumer, tp, topic_id, StartOffset(None))
            elif topic_id is not None:
                self.parts[tp].confirm(since)
        self._deleted.report(lost, found)
        fresh = {tp for tp in tps if tp.topic in found and tp not in self.parts}
        if fresh:
            await self._begin_where_committed(consumer, fresh, found)
        self._sure_until.update((topic, since + _SURE_S) for topic in found)
        stayed = {tp for tp, part in before.items() if self.parts.get(tp) is part}
        return {tp for tp in stayed & tps if tp.topic in found}

    async def _begin_where_committed(
        self, consumer: AIOKafkaConsumer, tps: Set[TopicPartition], found: dict[str, TopicId]
    ) -> None:
        subscription = consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None:  # the subscription is just changing
            return
        committed = await consumer._coordinator.fetch_committed_offsets(tps)
        if not assignment.active:
            return  # another member may have committed more meanwhile
        for tp in consumer.assignment() & tps:
            topic_id, known = found[tp.topic], committed.get(tp)
            offset, note = (None, "") if known is None else (known.offset, known.metadata or "")
            begin = start_offset_in(topic_id, offset, note)
            self._begin(consumer, tp, topic_id, begin)
            if begin.offset is None and offset is not None:
                self._deleted.report([self.parts[tp]], found)
            elif offset is not None and note != self.parts[tp].note:
                self.parts[tp].progress.reached(offset)  # commit it again, with its note
                self._losses.offset_set_externally(tp, offset)

    def _begin(self, consumer: AIOKafkaConsumer, tp: TopicPartition, topic_id: TopicId, begin: StartOffset) -> None:
        self.parts[tp] = Partition(tp, self._intakes.of(tp.topic), topic_id, begin)
        go_to(consumer, tp, begin.offset)

    async def _resume_after_loss(self, consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> bool:
        if tp not in consumer.assignment() or await consumer.position(tp) != offset:
            return False  # it has moved on
        if not await self._check(consumer, {tp}):
            return False  # it was just started, or restarted
        part = self.parts[tp]
        first = (await consumer.beginning_offsets([tp]))[tp]
        end = (await consumer.end_offsets([tp]))[tp]
        if self.parts.get(tp) is not part or tp not in consumer.assignment():
            return False
        begin = start_offset_after(offset, first, end, part.cut)
        if begin.cut != part.cut:
            self._begin(consumer, tp, part.topic_id, begin)
            self.parts[tp].progress.reached(first)
            self._losses.lost(tp, end, offset)
            return True
        go_to(consumer, tp, begin.offset)
        if begin.offset != offset:
            part.next = begin.offset
            self._losses.removed(tp, offset, first)
            part.progress.reached(first)
        return False


def go_to(consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int | None) -> None:
    """Continue at this offset; None for the oldest, which aiokafka may have to look up."""
    if offset is None:
        # The public method would wait for the answer and for the leaders of all partitions.
        consumer._fetcher.request_offset_reset([tp], OffsetResetStrategy.EARLIEST)
    else:
        consumer.seek(tp, offset)


async def ask_leaders(consumer: AIOKafkaConsumer, tps: Iterable[TopicPartition]) -> dict[str, TopicId]:
    """Topic ids from the brokers that lead these partitions. Topics whose leader cannot answer are left out."""
    client, wanted = consumer._client, dict[int, set[str]]()
    for tp in tps:
        node = client.cluster.leader_for_partition(tp)
        if node is not None and node >= 0:
            wanted.setdefault(node, set()).add(tp.topic)
    answers = await asyncio.gather(*(ask_ids(client, *asked) for asked in wanted.items()), return_exceptions=True)
    found: dict[str, TopicId] = {}
    for answer in answers:
        if isinstance(answer, dict):
            found |= answer
        elif not isinstance(answer, (KafkaError, OSError)):
            raise answer
    return found
