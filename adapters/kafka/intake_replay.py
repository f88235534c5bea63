"""Reads the intake topics of a route once more, by a consumer that is in no group and commits nothing.

Records of all partitions come merged by their timestamps, so that a cancellation comes after what it cancels, whatever
partition has it. They count as having arrived at their timestamps. One with a timestamp far ahead of the clock counts
as having arrived with the record before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from heapq import heappop, heappush

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from adapters.kafka.access import broker_errors
from adapters.kafka.assignments import ask_leaders
from adapters.kafka.client import connection, give_up_consumer, new_reader, start
from adapters.kafka.intake import NO_FAULTS, Intakes, KafkaIntake, Partition, start_offset_in
from adapters.kafka.pointers import Originals, points
from adapters.kafka.raw.poison import fetch_batch
from adapters.kafka.topology.topics import known_topics
from bridge.core.errors import BrokerUnavailable, NotFound
from bridge.core.message import Delivery
from bridge.settings import Kafka

_READ_MS = 500
_READ_RECORDS = 500
#: After this time without a record a partition counts as read, where only an open transaction can follow; and after
#: this time it counts as stuck.
_QUIET_S, _STUCK_S = 3.0, 30.0
#: A timestamp further ahead than this is no moment. Most often it counts microseconds.
_AHEAD_MS = 86_400_000


class IntakeReplay:
    """``bridge.pipeline.ends.LogReplay`` on Kafka."""

    def __init__(self, rules: Kafka, intakes: Sequence[KafkaIntake]) -> None:
        self._rules = rules
        self._intakes = Intakes(intakes)
        self._originals = Originals()
        self._consumer: AIOKafkaConsumer | None = None
        self._parts: dict[TopicPartition, Partition] = {}
        #: Where records begin, what the group has committed, and where records ended at the last look.
        self._begin: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._end: dict[TopicPartition, int] = {}
        self._now_ms = int(time.time() * 1000)
        #: When the last record of each partition arrived. The same in each pass: ids contain it.
        self._arrived: dict[TopicPartition, int] = {}

    async def open(self, from_ms: int) -> None:
        """Find the first record of each partition that was written at ``from_ms`` or later, and the last."""
        with broker_errors(self._rules):
            tps, committed = await self._ask()
            if not tps:
                raise NotFound("Kafka has no intake topic of this route, or its user may not see it")
            consumer = self._consumer = new_reader(self._rules)
            await start(consumer, self._rules)
            consumer.assign(tps)
            consumer._client.set_topics(())  # know the leaders of every topic: records may point there
            self._end = await consumer.end_offsets(tps)  # which waits until the leaders are known
            self._begin = await consumer.beginning_offsets(tps)
            ids = await ask_leaders(consumer, tps)
            if missing := sorted({tp.topic for tp in tps} - ids.keys()):
                raise BrokerUnavailable(f"no broker tells which topic '{missing[0]}' is. Its leader is away. Try again")
            for tp in tps:
                offset, note = committed.get(tp, (None, ""))
                begin = start_offset_in(ids[tp.topic], offset, note)
                self._parts[tp] = Partition(tp, self._intakes.of(tp.topic), ids[tp.topic], begin)
                self._committed[tp] = begin.offset or 0
            for tp, found in (await consumer.offsets_for_times(dict.fromkeys(tps, max(0, from_ms)))).items():
                self._begin[tp] = self._end[tp] if found is None else max(self._begin[tp], found.offset)

    async def close(self) -> None:
        if self._consumer is not None:
            await give_up_consumer(self._consumer)

    def taken(self, delivery: Delivery) -> bool:
        """Whether the group has committed this record: an instance had handled it."""
        part, offset = delivery.tag
        return int(offset) < self._committed[part.tp]

    def records(self) -> AsyncIterator[Delivery]:
        """Read from the beginning up to the end at the last look."""
        return self._read(self._begin, self._end)

    async def later(self) -> AsyncIterator[Delivery]:
        consumer, before = self._reading(), self._end
        with broker_errors(self._rules):
            self._end = await consumer.end_offsets(list(before))
        async for delivery in self._read(before, self._end):
            yield delivery

    async def _ask(self) -> tuple[list[TopicPartition], dict[TopicPartition, tuple[int, str]]]:
        """Return the partitions of the intake topics, and what the group has committed."""
        admin = AIOKafkaAdminClient(**connection(self._rules, "postdate replay"))
        try:
            await start(admin, self._rules)
            topics = {name: size for name, size in (await known_topics(admin)).items() if self._intakes.reads(name)}
            tps = [TopicPartition(name, number) for name, (count, _) in topics.items() for number in range(count)]
            found = await admin.list_consumer_group_offsets(self._rules.group)
            return tps, {tp: (at.offset, at.metadata or "") for tp, at in found.items() if at.offset >= 0}
        finally:
            await admin.close()

    def _reading(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "it is not open"
        return self._consumer

    async def _read(
        self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> AsyncIterator[Delivery]:
        buffers: dict[TopicPartition, deque[Delivery]] = {}
        heads: list[tuple[int, TopicPartition]] = []
        self._arrived.clear()
        for tp, offset in begin.items():
            self._reading().seek(tp, offset)
            self._parts[tp].next = offset
            buffers[tp] = deque()
            if offset < end[tp]:
                await self._push(heads, tp, buffers[tp], end[tp])
        while heads:
            _, tp = heappop(heads)
            yield buffers[tp].popleft()
            await self._push(heads, tp, buffers[tp], end[tp])

    async def _push(
        self, heads: list[tuple[int, TopicPartition]], tp: TopicPartition, buffer: deque[Delivery], end: int
    ) -> None:
        """Put the next record of a partition among the heads that are compared; none at its end."""
        if not buffer:
            with broker_errors(self._rules):
                buffer.extend(await self._fetch(tp, end))
        if buffer:
            heappush(heads, (buffer[0].arrived_ms, tp))

    async def _fetch(self, tp: TopicPartition, end: int) -> list[Delivery]:
        """Read the next records before ``end``; none if there are none."""
        consumer, part, began_s = self._reading(), self._parts[tp], time.monotonic()
        while (part.next or 0) < end:
            try:
                found = await self._poll(tp, _READ_RECORDS)
            except UnicodeDecodeError:
                consumer.seek(tp, part.next or 0)  # the failed poll has discarded what it had decoded
                found = await self._poll_carefully(tp)
            if found:
                return [delivery for delivery in found if delivery.tag[1] < end]
            waited_s = time.monotonic() - began_s
            if await consumer.position(tp) >= end or (waited_s > _QUIET_S and (part.next or 0) >= self._committed[tp]):
                return []
            if waited_s > _STUCK_S:
                raise BrokerUnavailable(f"Kafka gives no records of topic '{tp.topic}', partition {tp.partition}")
        return []

    async def _poll(self, tp: TopicPartition, most: int) -> list[Delivery]:
        fetched = await self._reading().getmany(tp, timeout_ms=_READ_MS, max_records=most)
        await asyncio.sleep(0)  # a poll that finds records does not yield to other tasks
        records, faults = fetched.get(tp, []), NO_FAULTS
        if any(map(points, records)) and self._parts[tp].intake.retries:
            found = await self._originals.follow(self._reading(), records, self._parts[tp].originals)
            if len(found.records) < len(records):
                self._reading().seek(tp, records[len(found.records)].offset)
            records, faults = found.records, found.faults
        return [self._delivery(tp, record, faults) for record in records]

    async def _poll_carefully(self, tp: TopicPartition) -> list[Delivery]:
        """Read one record. One that cannot be decoded comes from raw bytes, with the rest of its batch."""
        consumer, part = self._reading(), self._parts[tp]
        try:
            return await self._poll(tp, 1)
        except UnicodeDecodeError:
            offset = await consumer.position(tp)
            batch = await fetch_batch(consumer, tp, offset)
            consumer.seek(tp, batch.end)
            return [
                part.raw(number, record, self._arrived_ms(tp, record.timestamp) if record else 0)
                for number, record in batch.records
            ]

    def _delivery(self, tp: TopicPartition, record: ConsumerRecord, faults: Mapping[int, str]) -> Delivery:
        part = self._parts[tp]
        (delivery,) = part.deliveries([record], self._arrived_ms(tp, record.timestamp), faults)
        part.progress.done([record.offset])  # nothing is committed, so nothing needs to be remembered
        return delivery

    def _arrived_ms(self, tp: TopicPartition, timestamp: int) -> int:
        """Return when the next record of a partition arrived, as far as that is known."""
        if timestamp > self._now_ms + _AHEAD_MS:
            return self._arrived.get(tp, self._now_ms)
        self._arrived[tp] = max(0, timestamp)
        return self._arrived[tp]
