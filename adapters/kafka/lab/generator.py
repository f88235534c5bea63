"""Produces, acknowledged by all in-sync replicas, at a rate or as fast as the acknowledgements allow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka.errors import for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from adapters.kafka.access import trial_errors
from adapters.kafka.lab.wire import Wire
from adapters.kafka.partitioner import murmur2
from bridge.lab.bench.load import STAMP, Load, Sent
from bridge.settings import Kafka

#: Requests of one leader that have no answer yet, as with Kafka's own producer.
_IN_FLIGHT = 5
#: What one turn makes at most: then it is sent, and the answers have their turn.
_TURN_RECORDS, _TURN_BYTES = 2000, 900_000
#: How long records are gathered when they come at a rate.
_LINGER_S = 0.005
_MAGIC, _ACKS_ALL, _TIMEOUT_MS = 2, -1, 30_000


class _Batch:
    """The records of one partition that are sent together."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.records = 0
        builder = DefaultRecordBatchBuilder(_MAGIC, 0, 0, -1, -1, -1, 2 * _TURN_BYTES)
        self.append, self.build = builder.append, builder.build


class Generator:
    """One load. Its records have keys, which the partitions follow as with the Java client."""

    def __init__(self, settings: Kafka, load: Load) -> None:
        self._settings = settings
        self._load = load
        self._delays = load.delays()
        self._pad = b"x" * (load.size - STAMP.size)
        self._turn = min(_TURN_RECORDS, _TURN_BYTES // load.size)
        self._headers: dict[int, list[tuple[str, bytes | None]]] = {}
        self._answers: set[asyncio.Task[int]] = set()
        self._sent = self._confirmed = 0

    def run(self, confirmed: Callable[[int], None]) -> Sent:
        """See ``bridge.lab.bench.processes.Generator``."""
        with asyncio.Runner() as runner, trial_errors(self._settings):
            return runner.run(self._run(confirmed))

    async def _run(self, confirmed: Callable[[int], None]) -> Sent:
        wire = Wire(self._settings, "postdate bench, generator", self._load.exchange)
        await wire.open()
        try:
            return await self._produce(wire, confirmed)
        finally:
            await wire.close()

    async def _produce(self, wire: Wire, confirmed: Callable[[int], None]) -> Sent:
        places = self._places(sum(map(len, wire.led.values())))
        began = time.time()
        while self._confirmed < self._load.count:
            batches = self._made(began, places)
            for leader, led in wire.led.items():
                if mine := [batches[partition] for partition in led if partition in batches]:
                    self._send(wire, leader, mine)
            await self._rest(_IN_FLIGHT * len(wire.led))
            confirmed(self._confirmed)
        return Sent(self._load.count, began, time.time(), 0)

    def _places(self, partitions: int) -> list[tuple[bytes, int]]:
        """Every key, and its partition."""
        keys = [f"{self._load.key}{number}".encode() for number in range(self._load.keys)]
        return [(key, (murmur2(key) & 0x7FFFFFFF) % partitions) for key in keys]

    def _made(self, began: float, places: Sequence[tuple[bytes, int]]) -> dict[int, _Batch]:
        """The records that are to be sent now, by partition."""
        load, first = self._load, self._sent
        end = min(load.count, first + self._turn, self._confirmed + load.window)
        if load.rate:
            end = min(end, int((time.time() - began) * load.rate) + 1)
        made: dict[int, _Batch] = {}
        for index in range(first, end):
            key, partition = places[index % load.keys]
            batch = made.get(partition)
            if batch is None:
                batch = made[partition] = _Batch(partition)
            delay_ms = next(self._delays)
            # The delay counts from the record's timestamp, which has whole milliseconds.
            now_ms = int(time.time() * 1000)
            stamp = STAMP.pack(load.run << 32 | index, load.due_at or (now_ms + delay_ms) / 1000)
            batch.append(batch.records, now_ms, key, stamp + self._pad, self._header(delay_ms))
            batch.records += 1
        self._sent = max(first, end)
        return made

    def _header(self, delay_ms: int) -> list[tuple[str, bytes | None]]:
        made = self._headers.get(delay_ms)
        if made is None:
            made = [(self._load.asks, b"%d" % delay_ms)] if delay_ms else []
            if self._load.due_at:
                made = [("x-deliver-at", b"%d" % round(self._load.due_at * 1000))]
            self._headers[delay_ms] = made
        return made

    def _send(self, wire: Wire, leader: int, batches: Sequence[_Batch]) -> None:
        built = [(batch.partition, bytes(batch.build())) for batch in batches]
        request = ProduceRequest(None, _ACKS_ALL, _TIMEOUT_MS, [(self._load.exchange, built)])
        records = sum(batch.records for batch in batches)
        self._answers.add(asyncio.ensure_future(_answered(wire.ask(leader, request), records)))

    async def _rest(self, most: int) -> None:
        """Until there is something to do; then count what was confirmed."""
        load, waiting = self._load, self._sent - self._confirmed
        if waiting and (len(self._answers) >= most or waiting >= load.window or self._sent == load.count):
            await asyncio.wait(self._answers, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_LINGER_S if load.rate else 0)
        for answer in [one for one in self._answers if one.done()]:
            self._answers.discard(answer)
            self._confirmed += answer.result()


async def _answered(answer: Awaitable[Any], records: int) -> int:
    """How many records the broker has taken. Raises ``KafkaError`` if it has not."""
    for _, partitions in (await answer).topics:
        for _, code, *_ in partitions:
            if code:
                raise for_code(code)
    return records
