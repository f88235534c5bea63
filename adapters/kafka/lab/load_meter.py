"""A load generator and a lateness meter for Kafka.

Both use aiokafka for what happens once (leaders, TLS, passwords) and for its batch codec, but not its producer and
consumer. These would use more of the machine's cores than what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from adapters.kafka.access import trial_errors
from adapters.kafka.lab.wire import Fetch, KafkaWire, fetched
from adapters.kafka.partitioner import murmur2
from bridge.lab.load import STAMP, Got, Load, Sent, Tally
from bridge.settings import Settings

#: Unanswered requests per leader, as in Kafka's own producer.
_IN_FLIGHT = 5
#: The most that is built before it is sent and answers are read.
_TURN_RECORDS, _TURN_BYTES = 2000, 900_000
#: How long records are collected when a rate is held.
_LINGER_S = 0.005
_MAGIC, _ACKS_ALL, _TIMEOUT_MS = 2, -1, 30_000
_FETCH_WAIT_MS = 250
_READ_COMMITTED, _LATEST = 1, -1


class _LoadBatch:
    """Records of one partition that are sent together."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.records = 0
        builder = DefaultRecordBatchBuilder(_MAGIC, 0, 0, -1, -1, -1, 2 * _TURN_BYTES)
        self.append, self.build = builder.append, builder.build


def generate(settings: Settings, load: Load, start: Callable[[], object], confirmed: Callable[[int], None]) -> Sent:
    """Publish a load: ``bridge.lab.ports.BrokerLab``."""

    async def run() -> Sent:
        async with KafkaWire(settings.kafka, "postdate bench, generator", load.exchange) as wire:
            start()
            return await KafkaGenerator(wire, load).run(confirmed)

    with asyncio.Runner() as runner, trial_errors(settings.kafka):
        return runner.run(run())


class KafkaGenerator:
    """Acknowledged by all in-sync replicas. Keys choose partitions as in the Java client."""

    def __init__(self, wire: KafkaWire, load: Load) -> None:
        self._wire = wire
        self._load = load
        self._delays = load.delays()
        self._pad = b"x" * (load.size - STAMP.size)
        self._turn = min(_TURN_RECORDS, _TURN_BYTES // load.size)
        self._headers: dict[int, list[tuple[str, bytes | None]]] = {}
        self._answers: set[asyncio.Task[int]] = set()
        self._sent = self._confirmed = 0

    async def run(self, confirmed: Callable[[int], None]) -> Sent:
        wire = self._wire
        places = self._places(sum(map(len, wire.led.values())))
        began = time.time()
        while self._confirmed < self._load.count:
            batches = self._next_batches(began, places)
            for leader, led in wire.led.items():
                if mine := [batches[partition] for partition in led if partition in batches]:
                    self._send(leader, mine)
            await self._rest(_IN_FLIGHT * len(wire.led))
            confirmed(self._confirmed)
        return Sent(self._load.count, began, time.time(), 0)

    def _places(self, partitions: int) -> list[tuple[bytes, int]]:
        """Every key with its partition."""
        keys = [f"{self._load.key}{number}".encode() for number in range(self._load.keys)]
        return [(key, (murmur2(key) & 0x7FFFFFFF) % partitions) for key in keys]

    def _next_batches(self, began: float, places: Sequence[tuple[bytes, int]]) -> dict[int, _LoadBatch]:
        """The records to send now, by partition."""
        load, first = self._load, self._sent
        end = min(first + self._turn, load.allowed(time.time() - began, self._confirmed))
        batches: dict[int, _LoadBatch] = {}
        for index in range(first, end):
            key, partition = places[index % load.keys]
            batch = batches.get(partition)
            if batch is None:
                batch = batches[partition] = _LoadBatch(partition)
            delay_ms = next(self._delays)
            # The delay counts from the record's timestamp, which has whole milliseconds.
            now_ms = int(time.time() * 1000)
            stamp = STAMP.pack(load.run << 32 | index, load.due_at or (now_ms + delay_ms) / 1000)
            batch.append(batch.records, now_ms, key, stamp + self._pad, self._header(delay_ms))
            batch.records += 1
        self._sent = max(first, end)
        return batches

    def _header(self, delay_ms: int) -> list[tuple[str, bytes | None]]:
        headers = self._headers.get(delay_ms)
        if headers is None:
            headers = [(self._load.asks, b"%d" % delay_ms)] if delay_ms else []
            if self._load.due_at:
                headers = [("x-deliver-at", b"%d" % round(self._load.due_at * 1000))]
            self._headers[delay_ms] = headers
        return headers

    def _send(self, leader: int, batches: Sequence[_LoadBatch]) -> None:
        built = [(batch.partition, bytes(batch.build())) for batch in batches]
        request = ProduceRequest(None, _ACKS_ALL, _TIMEOUT_MS, [(self._load.exchange, built)])
        records = sum(batch.records for batch in batches)
        self._answers.add(asyncio.ensure_future(_answered(self._wire.ask(leader, request), records)))

    async def _rest(self, most: int) -> None:
        """Wait until there is something to do. Count new confirms."""
        load, waiting = self._load, self._sent - self._confirmed
        if waiting and (len(self._answers) >= most or waiting >= load.window or self._sent == load.count):
            await asyncio.wait(self._answers, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_LINGER_S if load.rate else 0)
        for answer in [pending for pending in self._answers if pending.done()]:
            self._answers.discard(answer)
            self._confirmed += answer.result()


async def _answered(answer: Awaitable[Any], records: int) -> int:
    """The number of records in an acknowledged request. Raises ``KafkaError`` if it failed."""
    for _, partitions in (await answer).topics:
        for _, code, *_ in partitions:
            if code:
                raise for_code(code)
    return records


def measure(
    settings: Settings,
    load: Load,
    consumes: Callable[[], object],
    over: Callable[[], bool],
    received: Callable[[int], None],
) -> Got:
    """Count a load in all partitions, without a group: ``bridge.lab.ports.BrokerLab``."""
    tally = Tally(load)

    async def run() -> None:
        async with KafkaWire(settings.kafka, "postdate bench, meter", load.queue) as wire:
            ends = {leader: await _ends(wire, load.queue, leader, led) for leader, led in wire.led.items()}
            consumes()
            await asyncio.gather(*(read(wire, leader, offsets) for leader, offsets in ends.items()))

    async def read(wire: KafkaWire, leader: int, offsets: dict[int, int]) -> None:
        while not (tally.complete() or over()):
            answer = await wire.ask(leader, Fetch(load.queue.encode(), offsets, _FETCH_WAIT_MS))
            now = time.time()
            for partition, batches in fetched(answer):
                offsets[partition] = _take(batches, tally, offsets[partition], now)
            received(tally.messages)

    with asyncio.Runner() as runner, trial_errors(settings.kafka):
        runner.run(run())
    return tally.got()


async def _ends(wire: KafkaWire, topic: str, leader: int, partitions: Sequence[int]) -> dict[int, int]:
    """The partitions' next offsets."""
    wanted = [(topic, [(partition, _LATEST) for partition in partitions])]
    answer = await wire.ask(leader, OffsetRequest(-1, _READ_COMMITTED, wanted))
    found = answer.topics[0][1]
    if wrong := [code for _, code, *_ in found if code]:
        raise for_code(wrong[0])
    return {partition: offset for partition, _, _, offset in found}


def _take(data: bytes, tally: Tally, offset: int, now: float) -> int:
    """Count every record in ``data``. Return the next offset. A truncated batch is fetched again."""
    unpack, note, records = STAMP.unpack_from, tally.note, MemoryRecords(data)
    while records.has_next():
        batch: Any = records.next_batch()
        if not batch.is_control_batch:
            for record in batch:
                number, due = unpack(record.value)
                note(number, due, now)
        offset = batch.next_offset
    return offset
