"""One target partition: a queue, and a loop that sends it batch by batch, one at a time, so that nothing overtakes.

While a batch is in flight the next one gathers, so the batches grow with the load by themselves. A batch that the
broker refuses for the sake of one record is sent again record by record, so that its neighbours are not refused. A
record that is too large is sent once more, compressed: its producer may have compressed it, and it was not too large.
And then without the audit headers: what fits the intake topic must fit a target with the same limit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from adapters.kafka import refusals
from adapters.kafka.outgoing import OutgoingRecord
from bridge.core.message import Outcome, Refusal

_RECORD_BATCH_MAGIC = 2
#: Codecs, as Kafka numbers them.
UNCOMPRESSED, GZIP = 0, 1
#: What became of records: called exactly once for each.
Tell = Callable[[Sequence[OutgoingRecord], Outcome, Refusal | None], None]
#: The size of a batch that is not the producer's own; the first record of one may be larger.
_OWN_BATCH_BYTES = 64 * 1024
#: A larger record is not compressed only to see whether it goes: for this one everybody waits for half a second.
_SQUEEZED_MAX = 16 << 20
_WRAP = 2**31


class PartitionQueue:
    """See the head of this file. ``compressed`` says whether the producer compresses everything; ``broken`` is told why
    it can no longer be trusted."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        tp: TopicPartition,
        timeout_s: float,
        compressed: bool,
        tell: Tell,
        broken: Callable[[str], None],
    ) -> None:
        self.tp = tp
        self._producer = producer
        self._timeout_s = timeout_s
        self._compressed = compressed
        self._tell = tell
        self._broken = broken
        self._queue: deque[OutgoingRecord] = deque()
        self._sent: list[OutgoingRecord] = []
        self._alone = 0
        #: How the next batch is compressed; None for the producer's own way.
        self._codec: int | None = None
        self._ended = False
        self._loop: asyncio.Task[None] | None = None

    def add(self, flight: OutgoingRecord) -> None:
        """Send it when its turn comes."""
        self._queue.append(flight)
        if self._loop is None and not self._ended:
            self._loop = asyncio.get_running_loop().create_task(self._run())
            self._loop.add_done_callback(self._on_end)

    def end(self) -> None:
        """Send nothing more; what has no answer will get none."""
        self._ended = True
        if self._loop is not None:
            self._loop.cancel()
        left = [*self._sent, *self._queue]
        self._sent = []
        self._queue.clear()
        if left:
            self._tell(left, Outcome.UNKNOWN, None)

    async def _run(self) -> None:
        while self._queue and not self._ended:
            await self._send()
        self._loop = None

    def _on_end(self, loop: asyncio.Task[None]) -> None:
        """An error that nobody foresaw must not leave records behind without a word."""
        if loop.cancelled():
            if not self._ended:
                self._break("the producer gave up by itself")
        elif loop.exception() is not None:
            self._break(f"{type(loop.exception()).__name__}: {loop.exception()}")

    def _break(self, why: str) -> None:
        self._ended = True
        self._broken(f"topic {self.tp.topic}, partition {self.tp.partition}: {why}")

    async def _send(self) -> None:
        topic, partition = self.tp
        cluster = self._producer.client.cluster
        leader = cluster.leader_for_partition(self.tp)
        if leader is None or leader < 0:  # to send would be to ask for the topic by name, or to wait for a leader
            gone = cluster.partitions_for_topic(topic) is None
            self._refuse_all(refusals.missing_topic(topic) if gone else refusals.no_leader(topic, partition))
            self._producer.client.force_metadata_update()
            return
        batch, sending = self._next_batch(), None
        try:
            answer = await self._producer.send_batch(batch, topic, partition=partition)
            sending = last_batch(self._producer, self.tp)
            if not await self._confirmed(answer):
                self._break(f"Kafka confirmed nothing for {self._timeout_s:g} s")
                return
        except KafkaError as error:
            self._refused(error, sending is not None and sent_once(sending))
            return
        wrap(self._producer, self.tp)
        sent, self._sent = self._sent, []
        self._alone = max(0, self._alone - len(sent))
        self._codec = None
        self._tell(sent, Outcome.CONFIRMED, None)

    async def _confirmed(self, answer: asyncio.Future[Any]) -> bool:
        """False when no answer came in time. Raises ``KafkaError``."""
        try:
            await asyncio.wait([answer], timeout=self._timeout_s)
            if answer.done():
                answer.result()
                return True
        finally:
            answer.cancel()  # its error, should it come after all, is nobody's any more
        return False

    def _next_batch(self) -> Any:
        """As many as fit, from the front of the queue."""
        queue, sent, now_ms = self._queue, self._sent, int(time.time() * 1000)
        odd = queue[0].odd
        batch = self._new_batch(odd)
        append = batch.append
        while queue:
            flight = queue[0]
            if flight.odd is not odd or (sent and self._alone):
                break
            timestamp = now_ms if flight.timestamp is None else flight.timestamp
            if append(timestamp=timestamp, key=flight.key, value=flight.value, headers=flight.headers) is None:
                break
            sent.append(queue.popleft())
        batch.close()
        return batch

    def _new_batch(self, odd: bool) -> Any:
        if odd:
            return OddBatch(_OWN_BATCH_BYTES, UNCOMPRESSED if self._codec is None else self._codec)
        return self._producer.create_batch() if self._codec is None else BatchBuilder(_OWN_BATCH_BYTES, self._codec)

    def _refused(self, error: KafkaError, once: bool) -> None:
        """The whole batch was refused, or nobody knows what became of it: not after it was sent more than ``once``."""
        keyless = len(self._sent) == 1 and self._sent[0].key is None
        refusal = refusals.of_error(error, self.tp, keyless)
        if refusal is None or not once:
            self._break(str(error))
            return
        take_back(self._producer, self.tp, len(self._sent))
        if refusal.reason in refusals.OF_TOPIC or refusal.again_ms is not None:
            self._refuse_all(refusal)
        elif len(self._sent) > 1:
            self._alone = len(self._sent)
            self._queue.extendleft(reversed(self._sent))
            self._sent = []
        else:
            self._refused_alone(refusal)

    def _refused_alone(self, refusal: Refusal) -> None:
        """One record. Where it is too large, it may have another try."""
        sent, self._sent = self._sent, []
        if refusal.reason == "too_large":
            if self._make_smaller(sent[0]):
                self._alone = max(1, self._alone)
                self._queue.extendleft(sent)
                return
            tried_compressed = self._compressed or sent[0].size <= _SQUEEZED_MAX
            refusal = refusals.too_large(self.tp.topic, tried_compressed)
        self._codec = None
        self._alone = max(0, self._alone - 1)
        self._tell(sent, Outcome.REFUSED, refusal)

    def _make_smaller(self, flight: OutgoingRecord) -> bool:
        """For the next try; false when there is none left. First compressed, then without the audit headers, and last
        without both: compression makes some records larger."""
        compressed = self._codec == GZIP or (self._codec is None and self._compressed and not flight.odd)
        if self._codec is None and not compressed and flight.size <= _SQUEEZED_MAX:
            self._codec = GZIP
        elif flight.audited:
            flight.strip()
        elif flight.stripped and compressed:
            self._codec = UNCOMPRESSED
        else:
            return False
        return True

    def _refuse_all(self, refusal: Refusal) -> None:
        refused = [*self._sent, *self._queue]
        self._sent = []
        self._queue.clear()
        self._codec = None
        self._tell(refused, Outcome.REFUSED, refusal)


def last_batch(producer: AIOKafkaProducer, tp: TopicPartition) -> Any:
    """What ``send_batch`` has just taken, while nobody else has run: aiokafka's own record of the batch."""
    return producer._message_accumulator._batches[tp][-1]


def sent_once(batch: Any) -> bool:
    """Whether the answer to this batch of ``last_batch`` is the only one there can be."""
    return bool(batch.retry_count <= 1)


def take_back(producer: AIOKafkaProducer, tp: TopicPartition, records: int) -> None:
    """The broker refused the last batch of this partition, which had so many records and was sent once."""
    producer._txn_manager.increment_sequence_number(tp, -records)
    wrap(producer, tp)


def wrap(producer: AIOKafkaProducer, tp: TopicPartition) -> None:
    """After a batch was counted: begin again at zero where the numbers ended."""
    if producer._txn_manager.sequence_number(tp) < 0:
        producer._txn_manager.increment_sequence_number(tp, _WRAP)


class OddBatch(BatchBuilder):
    """A batch for records with odd names. ``size`` is bytes and ``codec`` Kafka's number, as in the producer's own."""

    def __init__(self, size: int, codec: int = UNCOMPRESSED) -> None:
        super().__init__(size, codec)
        self._builder = _DefaultRecordBatchBuilderPy(
            _RECORD_BATCH_MAGIC,
            codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=0,
            batch_size=size,
        )

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)
