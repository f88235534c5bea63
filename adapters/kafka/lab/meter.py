"""Reads all partitions of a topic from their ends on, and notes each record in a tally."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from adapters.kafka.access import trial_errors
from adapters.kafka.lab.fetch import Fetch, fetched
from adapters.kafka.lab.wire import Wire
from bridge.lab.bench.load import STAMP, Got, Load
from bridge.lab.bench.tally import Tally
from bridge.settings import Kafka

_WAIT_MS = 250
_READ_COMMITTED, _LATEST = 1, -1


class Meter:
    """One consumer of one run's records, without a group. It begins with what comes after it was made."""

    def __init__(self, settings: Kafka, load: Load) -> None:
        self._settings = settings
        self._load = load
        self._tally = Tally(load)
        self._runner = asyncio.Runner()
        with trial_errors(settings):
            self._runner.run(self._begin())

    def run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        """See ``bridge.lab.bench.processes.Meter``."""
        with self._runner, trial_errors(self._settings):
            self._runner.run(self._read(over, received))
        return self._tally.got()

    async def _begin(self) -> None:
        topic = self._load.queue
        self._wire = Wire(self._settings, "postdate bench, meter", topic)
        await self._wire.open()
        self._offsets: dict[int, dict[int, int]] = {}
        for leader, partitions in self._wire.led.items():
            wanted = [(topic, [(partition, _LATEST) for partition in partitions])]
            answer = await self._wire.ask(leader, OffsetRequest(-1, _READ_COMMITTED, wanted))
            found = answer.topics[0][1]
            if wrong := [code for _, code, *_ in found if code]:
                raise for_code(wrong[0])
            self._offsets[leader] = {partition: offset for partition, _, _, offset in found}

    async def _read(self, over: Callable[[], bool], received: Callable[[int], None]) -> None:
        self._end = float("inf")
        reading = (self._read_from(leader, offsets, over, received) for leader, offsets in self._offsets.items())
        try:
            await asyncio.gather(*reading)
        finally:
            await self._wire.close()

    async def _read_from(
        self, leader: int, offsets: dict[int, int], over: Callable[[], bool], received: Callable[[int], None]
    ) -> None:
        topic, tally = self._load.queue.encode(), self._tally
        while time.time() < self._end and not over():
            answer = await self._wire.ask(leader, Fetch(topic, offsets, _WAIT_MS))
            now = time.time()
            for partition, batches in fetched(answer):
                offsets[partition] = self._take(batches, offsets[partition], now)
            received(tally.messages)
            if tally.messages >= self._load.count and self._end == float("inf"):
                self._end = time.time() + self._load.linger_s

    def _take(self, data: bytes, offset: int, now: float) -> int:
        """Note every record in ``data``; the offset after them. A batch that is cut short comes again whole."""
        unpack, note, records = STAMP.unpack_from, self._tally.note, MemoryRecords(data)
        while records.has_next():
            batch: Any = records.next_batch()
            if not batch.is_control_batch:
                for record in batch:
                    number, due = unpack(record.value)
                    note(number, due, now)
            offset = batch.next_offset
        return offset
