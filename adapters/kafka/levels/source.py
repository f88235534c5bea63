"""The source of a route without a store: the intake topic, and the level topics, whose records it hands over when due.

What a partition has is in the order in which it is due. So only its head is looked at: what is due soon is read ahead
and held back; the rest goes back to Kafka (seek), and the partition rests (pause) until shortly before it is due
(resume). Only what is due in the next two seconds is in memory, however many wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from adapters.kafka.intake import KafkaIntake, Partition
from adapters.kafka.levels.packing import due_ms_of, held_until, too_late
from adapters.kafka.outgoing import DUE_HEADER
from adapters.kafka.source import KafkaSource
from bridge.core.clock import StoreClock
from bridge.core.message import Delivery
from bridge.pipeline.intake import HeldBack
from bridge.settings import Kafka
from bridge.telemetry.health import Health

#: What is due within so long is read ahead. And a partition is read again so long before its next record is due: a poll
#: and a fetch that found nothing each wait for half a second, and the partition with them.
_AHEAD_MS = 2000
_BEFORE_MS = 1200
#: How long a partition rests of which the first record not accepted holds up the offset.
_REST_MS = 1000
#: A window of them, and what was accepted meanwhile behind one of those.
_WINDOWS_OPEN = 2
#: What is due soon, in windows: it is not held up by what was taken and is not due yet.
_WINDOWS_SOON = 10


class BoundedSource(KafkaSource):
    """A source of which nobody knows a record that is read again. So it hands over only twice ``kafka.window`` records
    of a partition beyond the first that is not accepted: a crash makes no more copies than those."""

    def __init__(
        self,
        rules: Kafka,
        intakes: Sequence[KafkaIntake],
        clock: StoreClock,
        bytes_max: int,
        health: Health,
        mend: Callable[[], None] = lambda: None,
        windows: int = 1,
    ) -> None:
        wide = rules.model_copy(update={"window": windows * rules.window})
        super().__init__(wide, intakes, clock, bytes_max, health, mend)
        self._open_max = _WINDOWS_OPEN * rules.window
        self._resting: dict[TopicPartition, int] = {}

    async def _poll_once(self, consumer: AIOKafkaConsumer) -> None:
        now_ms = self._clock.now_ms()
        for tp in [tp for tp, look_ms in self._resting.items() if look_ms <= now_ms]:
            del self._resting[tp]
            if tp in consumer.assignment():
                consumer.resume(tp)
        await super()._poll_once(consumer)

    async def _take_in(
        self, consumer: AIOKafkaConsumer, fetched: Mapping[TopicPartition, Sequence[ConsumerRecord]]
    ) -> None:
        now_ms, taken = self._clock.now_ms(), {}
        for tp, records in fetched.items():
            part = self._parts.get(tp)
            if part is None:  # not begun yet: where that is to be is found out first
                taken[tp] = records
                continue
            now, look_ms = self._cut(records, self._open_max - part.progress.open(), now_ms)
            if now < len(records):
                consumer.seek(tp, records[now].offset)
                consumer.pause(tp)
                self._resting[tp] = look_ms
            if now:
                taken[tp] = records[:now]
        await super()._take_in(consumer, taken)
        if fetched:  # what goes back to Kafka was taken, too: the consumer is not stuck
            self._took_at = time.monotonic()

    def _cut(self, records: Sequence[ConsumerRecord], room: int, now_ms: int) -> tuple[int, int]:
        """How many of the first are handed over now, and when the others are looked at again (Unix ms)."""
        return max(0, min(room, len(records))), now_ms + _REST_MS


class LevelSource(BoundedSource):
    """See the head of this file."""

    def __init__(
        self,
        rules: Kafka,
        intakes: Sequence[KafkaIntake],
        clock: StoreClock,
        bytes_max: int,
        health: Health,
        mend: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(rules, intakes, clock, bytes_max, health, mend, _WINDOWS_SOON)
        self._arrivals = HeldBack(clock, held_until)

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
