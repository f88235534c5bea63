"""The partitions that a consumer holds: where each is begun, and whether its topic is still the one it was.

A fetch gives a topic's name and not its id. So before records are handed over it has to be sure that they are of the
topic whose id they will bear: it was asked for less than a second ago, and the cluster has said nothing new since. One
that was deleted and made anew is read from its beginning, and its partitions are other partitions (``begin.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence, Set

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.errors import KafkaError

from adapters.kafka.access import sentence
from adapters.kafka.intake import Intakes, Part
from adapters.kafka.losses import Gone
from adapters.kafka.start_offset import Begin, begin_after, begin_at
from adapters.kafka.topology.topic_ids import TopicId, ask_ids
from bridge.settings import Kafka
from bridge.telemetry.health import Health

#: Records by partition, as a poll gives them.
Fetched = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_SUBJECT = "kafka begin"
_ANSWER_S = 3.0
_AGAIN_S = 0.1
_SURE_S = 1.0
_PASS_S = 0.5
#: Topics in one look at those that nothing comes from: an answer about very many takes the process long to read.
_TOPICS_A_LOOK = 50


class Places:
    """``parts`` are the partitions that were begun. One consumer uses it at a time, from one task."""

    def __init__(self, rules: Kafka, intakes: Intakes, health: Health) -> None:
        self.parts: dict[TopicPartition, Part] = {}
        self._rules = rules
        self._intakes = intakes
        self._health = health
        self._gone = Gone(health)
        self._sure_until: dict[str, float] = {}
        self._pass_at = 0.0

    def doubt(self, *_: object) -> None:
        """The cluster has said something new: no topic is surely the one it was."""
        self._sure_until.clear()

    async def surely(self, consumer: AIOKafkaConsumer, fetched: Fetched) -> Fetched:
        """What is surely of the topics that its parts name. All else is put back, and read again."""
        asking = consumer._client._md_update_fut is not None  # somebody has met an error, and why is not known yet
        now, parts, sure_until = time.monotonic(), self.parts, self._sure_until
        doubtful = {
            place for place in fetched if asking or place not in parts or sure_until.get(place.topic, 0.0) < now
        }
        if not doubtful:
            return fetched
        before = dict(parts)
        doubtful -= await self._checked(consumer, doubtful)
        assigned = consumer.assignment()  # what went meanwhile is read by somebody else
        for place in assigned & doubtful:
            if parts.get(place) is before.get(place):  # nothing could be learnt of it
                consumer.seek(place, fetched[place][0].offset)
        there = {place for place in assigned - doubtful if parts.get(place) is before.get(place)}
        return {place: records for place, records in fetched.items() if place in there}

    async def look(self, consumer: AIOKafkaConsumer) -> bool:
        """Begin what is not begun, and see whether the topics that were not asked for longest are what they were.
        Whether it could be done."""
        assigned = consumer.assignment()
        one_each = {place.topic: place for place in assigned}
        longest = sorted(one_each, key=lambda topic: self._sure_until.get(topic, 0.0))[:_TOPICS_A_LOOK]
        places = {one_each[topic] for topic in longest}.union(place for place in assigned if place not in self.parts)
        if not places:
            self._known()
            return True
        return bool(await self._checked(consumer, places)) or places <= self.parts.keys()

    def pass_by(self, consumer: AIOKafkaConsumer) -> None:
        """Count what the consumer has read past and that is no record: markers of transactions, aborted records.

        Call it after a poll, when everything that it brought has been handed over or put back. It looks at most
        twice a second."""
        now, subscription = time.monotonic(), consumer._subscription.subscription
        if now < self._pass_at or subscription is None or subscription.assignment is None:
            return
        self._pass_at = now + _PASS_S
        for place, part in self.parts.items():
            state = subscription.assignment.state_value(place)
            if state is not None and state.has_valid_position and state.position > (part.next or 0):
                part.next = state.position
                part.progress.reached(part.next)

    async def go_on(self, consumer: AIOKafkaConsumer, place: TopicPartition, offset: int) -> bool:
        """Kafka has nothing at this offset: say what is gone, and go on with what there is. Whether that has to be
        committed at once."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                at_once = await self._go_on(consumer, place, offset)
        except (KafkaError, OSError) as error:
            await self._not_known(error)
            return False
        self._known()
        return at_once

    async def _checked(self, consumer: AIOKafkaConsumer, places: Set[TopicPartition]) -> Set[TopicPartition]:
        """Those of the places that surely are what they were."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                sure = await self._check(consumer, places)
        except (KafkaError, OSError) as error:
            await self._not_known(error)
            return set()
        self._known()
        return sure

    async def _not_known(self, error: Exception) -> None:
        """It is tried again soon; who is stuck with it is noticed by what he does not take (``stuck.py``)."""
        text = f"where Kafka's partitions begin is not known: {sentence(error, self._rules)}"
        self._health.say(_SUBJECT, text)
        await asyncio.sleep(_AGAIN_S)

    def _known(self) -> None:
        """Kafka has answered, or has nothing of ours to be asked about."""
        self._health.say(_SUBJECT, "")

    async def _check(self, consumer: AIOKafkaConsumer, places: Set[TopicPartition]) -> Set[TopicPartition]:
        """Ask for the ids of their topics. What is not begun, or was made anew, is begun: the consumer goes on there.

        Raises the errors of aiokafka and of the network."""
        before, since = dict(self.parts), time.monotonic()
        found = await _ask_leaders(consumer, places)
        for place in consumer.assignment() & self.parts.keys():
            topic_id = found.get(place.topic)
            if topic_id is not None and self.parts[place].topic_id != topic_id:
                self._begin(consumer, place, topic_id, Begin(None))
                self._gone.made_anew(place)
        fresh = {place for place in places if place.topic in found and place not in self.parts}
        if fresh:
            await self._begin_where_committed(consumer, fresh, found)
        self._sure_until.update((topic, since + _SURE_S) for topic in found)
        stayed = {place for place, part in before.items() if self.parts.get(place) is part}
        return {place for place in stayed & places if place.topic in found}

    async def _begin_where_committed(
        self, consumer: AIOKafkaConsumer, places: Set[TopicPartition], found: dict[str, TopicId]
    ) -> None:
        subscription = consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None:  # the topics that there are have just become others
            return
        committed = await consumer._coordinator.fetch_committed_offsets(places)
        if not assignment.active:
            return  # somebody else may have had them meanwhile, and have committed more
        for place in consumer.assignment() & places:
            topic_id, known = found[place.topic], committed.get(place)
            offset, note = (None, "") if known is None else (known.offset, known.metadata or "")
            begin = begin_at(topic_id, offset, note)
            self._begin(consumer, place, topic_id, begin)
            if begin.offset is None and offset is not None:
                self._gone.made_anew(place)
            elif offset is not None and note != self.parts[place].note:
                self.parts[place].progress.reached(offset)  # once more, and now with its note
                self._gone.set_by_others(place, offset)

    def _begin(self, consumer: AIOKafkaConsumer, place: TopicPartition, topic_id: TopicId, begin: Begin) -> None:
        self.parts[place] = Part(place, self._intakes.of(place.topic), topic_id, begin)
        go_to(consumer, place, begin.offset)

    async def _go_on(self, consumer: AIOKafkaConsumer, place: TopicPartition, offset: int) -> bool:
        if place not in consumer.assignment() or await consumer.position(place) != offset:
            return False  # it is elsewhere by now
        if not await self._check(consumer, {place}):
            return False  # it was begun just now, or anew
        part = self.parts[place]
        first = (await consumer.beginning_offsets([place]))[place]
        end = (await consumer.end_offsets([place]))[place]
        if self.parts.get(place) is not part or place not in consumer.assignment():
            return False
        begin = begin_after(offset, first, end, part.cut)
        if begin.cut != part.cut:
            self._begin(consumer, place, part.topic_id, begin)
            self.parts[place].progress.reached(first)
            self._gone.lost(place, end, offset)
            return True
        go_to(consumer, place, begin.offset)
        if begin.offset != offset:
            part.next = begin.offset
            self._gone.removed(place, offset, first)
            part.progress.reached(first)
        return False


def go_to(consumer: AIOKafkaConsumer, place: TopicPartition, offset: int | None) -> None:
    """The consumer goes on at this offset, or at the oldest there is; it may have to ask which that is."""
    if offset is None:
        # The documented way waits for the answer, and for the leaders of all the partitions.
        consumer._fetcher.request_offset_reset([place], OffsetResetStrategy.EARLIEST)
    else:
        consumer.seek(place, offset)


async def _ask_leaders(consumer: AIOKafkaConsumer, places: Iterable[TopicPartition]) -> dict[str, TopicId]:
    """The ids of the topics, from the brokers that lead these partitions; without those that cannot be had now."""
    client, wanted = consumer._client, dict[int, set[str]]()
    for place in places:
        node = client.cluster.leader_for_partition(place)
        if node is not None and node >= 0:
            wanted.setdefault(node, set()).add(place.topic)
    answers = await asyncio.gather(*(ask_ids(client, *one) for one in wanted.items()), return_exceptions=True)
    found: dict[str, TopicId] = {}
    for answer in answers:
        if isinstance(answer, dict):
            found |= answer
        elif not isinstance(answer, (KafkaError, OSError)):
            raise answer
    return found
