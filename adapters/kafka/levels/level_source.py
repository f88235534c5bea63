"""The source of a route without a store: its intake topic, and its level topics, whose records it hands over when
due.

Each partition is ordered by due time, so only its head matters. Records due soon are read ahead and held back. For
the others the consumer seeks back and pauses the partition until shortly before they are due. So only the records of
the next two seconds are in memory, however many wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from adapters.kafka.intake import Partition
from adapters.kafka.levels.packing import due_ms_of, held_until, too_late
from adapters.kafka.outgoing import DUE_HEADER
from adapters.kafka.source import KafkaSource
from bridge.core.message import Delivery
from bridge.pipeline.intake import HeldBack
from bridge.settings import Kafka

#: Records due within this are read ahead. A paused partition resumes this long before its next record is due: an empty
#: poll and an empty fetch each take half a second.
_AHEAD_MS = 2000
_BEFORE_MS = 1200
#: Pause of a partition whose first record that is not accepted holds up the offset.
_REST_MS = 1000
#: In windows: one in flight, and one accepted behind a record that is not.
_WINDOWS_OPEN = 2
#: Records due soon, in windows: those read ahead must not hold them up.
_WINDOWS_SOON = 10


class BoundedSource(KafkaSource):
    """A source for records that no store recognizes when they are read again. It hands over at most twice
    ``kafka.window`` records of a partition beyond the first that is not accepted. That bounds the copies after a
    crash."""

    #: Records of a partition that are in memory, in windows.
    _held_windows = 1

    def __init__(self, rules: Kafka, *others: Any) -> None:
        super().__init__(rules.model_copy(update={"window": self._held_windows * rules.window}), *others)
        self._open_max = _WINDOWS_OPEN * rules.window

    async def _take_in(
        self, consumer: AIOKafkaConsumer, fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]]
    ) -> None:
        now_ms, taken = self._clock.now_ms(), {}
        for tp, records in fetched.items():
            part = self._parts.get(tp)
            if part is None:  # not started yet: its start is determined first
                taken[tp] = records
                continue
            now, look_ms = self._cut(records, self._open_max - part.progress.open(), now_ms)
            if now < len(records):
                consumer.seek(tp, records[now].offset)
                self._rest(consumer, tp, look_ms)
            if now:
                taken[tp] = records[:now]
        await super()._take_in(consumer, taken)
        if fetched:  # records that went back count too: the consumer does not hang
            self._took_at = time.monotonic()

    def _cut(self, records: Sequence[ConsumerRecord], room: int, now_ms: int) -> tuple[int, int]:
        """The number of records to hand over now, and when to look at the others again (Unix ms)."""
        return max(0, min(room, len(records))), now_ms + _REST_MS


class LevelSource(BoundedSource):
    """The source of the level topics."""

    _held_windows = _WINDOWS_SOON

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._arrivals = HeldBack(self._clock, held_until)

    def _cut(self, records: Sequence[ConsumerRecord], room: int, now_ms: int) -> tuple[int, int]:
        soon_ms = now_ms + _AHEAD_MS
        for tp, record in enumerate(records[: max(0, room)]):
            due_ms = _due_ms(record)
            if due_ms > soon_ms and not too_late(due_ms, record.topic, now_ms):
                return tp, due_ms - _BEFORE_MS
        return super()._cut(records, room, now_ms)

    def _hand_over(self, deliveries: Sequence[Delivery]) -> None:
        now_ms = self._clock.now_ms()
        for delivery in deliveries:
            part: Partition = delivery.tag[0]
            if (due_ms := held_until(delivery)) and (why := too_late(due_ms, part.tp.topic, now_ms)):
                delivery.fault = f"it {why}"
        super()._hand_over(deliveries)


def _due_ms(record: ConsumerRecord) -> int:
    return next((due_ms_of(content) for name, content in record.headers if name == DUE_HEADER), 0)
