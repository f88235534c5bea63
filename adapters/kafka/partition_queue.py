"""One target partition: a queue that is sent batch by batch, one at a time, so that order is kept.

The next batch gathers while one is in flight, so batches grow with the load. If the broker refuses a batch for one
record, its records are sent singly, so that the others are not refused. There is no task and no timer for a partition:
the answer to a batch sends the next one, and the sink looks for overdue answers.

A record that is too large is sent again, compressed: its producer may have compressed it. If that fails, it is sent
without the audit headers, so that what fits the intake topic fits a target with the same limit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerClosed
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from adapters.kafka import refusals
from adapters.kafka.access import plain
from adapters.kafka.outgoing import OutgoingRecord
from bridge.core.message import Outcome, Refusal
from bridge.core.reasons import ReasonKind

_RECORD_BATCH_MAGIC = 2
#: Codecs, as Kafka numbers them.
UNCOMPRESSED, GZIP = 0, 1
#: Reports the outcome of records, exactly once for each.
Tell = Callable[[Sequence[OutgoingRecord[Any]], Outcome, Refusal | None], None]
#: The size of a batch that the producer does not create itself. Its first record may be larger.
_OWN_BATCH_BYTES = 64 * 1024
#: Larger records are not compressed for a second try: this size already blocks the event loop for half a second.
_SQUEEZED_MAX = 16 << 20
_WRAP = 2**31


#: A broker closes a connection over a larger request without an answer (socket.request.max.bytes, 100 MiB by default).
#: The client would send everything on that connection again, for ever.
REQUEST_BYTES = (100 << 20) - (64 << 10)


class PartitionQueue:
    """The queue of one partition. ``compressed``: the producer compresses everything. ``broken`` is called with the
    reason when the producer can no longer be trusted."""

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
        self._queue: deque[OutgoingRecord[Any]] = deque()
        self._sent: list[OutgoingRecord[Any]] = []
        self._alone = 0
        #: Codec of the next batch; None for the producer's own.
        self._codec: int | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._planned = False
        #: aiokafka's record of the batch in flight, and when it was sent (the loop's clock).
        self._in_flight: Any = None
        self._sent_at = 0.0

    def add(self, flight: OutgoingRecord[Any]) -> None:
        """Send the record when its turn comes, together with what is added before the loop's next turn."""
        self._queue.append(flight)
        if not self._planned and self._in_flight is None:
            self._planned = True
            self._loop.call_soon(self._next)

    def look(self) -> None:
        """Break the producer if the batch in flight is overdue."""
        if self._in_flight is not None and self._loop.time() - self._sent_at > self._timeout_s:
            self._break(f"Kafka confirmed nothing for {self._timeout_s:g} s")

    def end(self) -> None:
        """Send nothing more. Records without an answer become unknown."""
        self._ended = True
        left = [*self._sent, *self._queue]
        self._sent = []
        self._queue.clear()
        if left:
            self._tell(left, Outcome.UNKNOWN, None)

    def _next(self) -> None:
        """Send the next batch, unless one is in flight or nothing waits."""
        self._planned = False
        try:
            while self._queue and self._in_flight is None and not self._ended:
                self._send()
        except Exception as error:  # an unforeseen error must not leave records behind silently
            self._break(f"{type(error).__name__}: {error}")

    def _break(self, why: str) -> None:
        self._ended = True
        self._broken(f"topic {self.tp.topic}, partition {self.tp.partition}: {why}")

    def _send(self) -> None:
        refusal = refusals.unreachable(self._producer.client.cluster, self.tp)
        if refusal is not None:
            self._refuse_all(refusal)
            self._producer.client.force_metadata_update()
            return
        self._in_flight = enqueue(self._producer, self.tp, self._next_batch())
        self._sent_at = self._loop.time()
        self._in_flight.future.add_done_callback(self._on_answer)

    def _on_answer(self, answer: asyncio.Future[Any]) -> None:
        batch, self._in_flight = self._in_flight, None
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if self._ended:
            return
        if error is None:
            self._confirmed()
        elif isinstance(error, KafkaError):
            self._refused(error, once=batch.retry_count <= 1)
        else:
            self._break(f"aiokafka's producer stopped by itself ({type(error).__name__}: {error})")
        self._next()

    def _confirmed(self) -> None:
        wrap(self._producer, self.tp)
        sent, self._sent = self._sent, []
        self._alone = max(0, self._alone - len(sent))
        self._codec = None
        self._tell(sent, Outcome.CONFIRMED, None)

    def _next_batch(self) -> Any:
        """Move as many records as fit from the front of the queue into a batch."""
        queue, sent, now_ms = self._queue, self._sent, int(time.time() * 1000)
        odd = queue[0].odd
        if queue[0].size > REQUEST_BYTES and not self._compressed:
            self._codec = GZIP  # only a record with ``compress_always`` gets here
        batch = new_batch(self._producer, odd, self._codec)
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

    def _refused(self, error: KafkaError, once: bool) -> None:
        """The broker refused the whole batch. The outcome is unknown if the batch was sent more than ``once``."""
        keyless = len(self._sent) == 1 and self._sent[0].key is None
        refusal = refusals.of_error(error, self.tp, keyless)
        if refusal is None or not once:
            self._break(plain(error))
            return
        take_back(self._producer, self.tp, len(self._sent))
        if refusal.reason.kind in refusals.OF_TOPIC or refusal.again_ms is not None:
            self._refuse_all(refusal)
        elif len(self._sent) > 1:
            self._alone = len(self._sent)
            self._queue.extendleft(reversed(self._sent))
            self._sent = []
        else:
            self._refused_alone(refusal)

    def _refused_alone(self, refusal: Refusal) -> None:
        """The broker refused a single record. One that is too large may get another try."""
        sent, self._sent = self._sent, []
        if refusal.reason.kind is ReasonKind.TOO_LARGE:
            smaller, self._codec = make_smaller(sent[0], self._codec, self._compressed)
            if smaller:
                self._alone = max(1, self._alone)
                self._queue.extendleft(sent)
                return
            refusal = refusals.too_large(self.tp.topic, self._compressed or may_compress(sent[0]))
        self._codec = None
        self._alone = max(0, self._alone - 1)
        self._tell(sent, Outcome.REFUSED, refusal)

    def _refuse_all(self, refusal: Refusal) -> None:
        refused = [*self._sent, *self._queue]
        self._sent = []
        self._queue.clear()
        self._codec = None
        self._tell(refused, Outcome.REFUSED, refusal)


def new_batch(producer: AIOKafkaProducer, odd: bool, codec: int | None, transactional: bool = False) -> Any:
    """Create an empty batch. ``odd``: a header name is not UTF-8. ``codec`` is None for the producer's own."""
    if odd:
        return OddBatch(_OWN_BATCH_BYTES, UNCOMPRESSED if codec is None else codec, transactional)
    if codec is None:
        return producer.create_batch()
    return BatchBuilder(_OWN_BATCH_BYTES, codec, is_transactional=int(transactional))


def make_smaller(flight: OutgoingRecord[Any], codec: int | None, compressed: bool) -> tuple[bool, int | None]:
    """Prepare the next try of a record that is too large. Return whether there is one, and its codec.

    ``codec`` is that of the last try, None for the producer's own. ``compressed``: the producer compresses everything.
    First compress, then drop the audit headers, and last send it uncompressed without them, because some records grow
    by compression.
    """
    squeezed = codec == GZIP or (codec is None and compressed and not flight.odd)
    if codec is None and not squeezed and may_compress(flight):
        return True, GZIP
    if flight.audited:
        flight.strip()
        return True, codec
    if flight.stripped and squeezed:
        return True, UNCOMPRESSED
    return False, codec


def may_compress(flight: OutgoingRecord[Any]) -> bool:
    """Return whether a record is small enough to be compressed for another try."""
    return flight.size <= _SQUEEZED_MAX or flight.compress_always


# -- sequence numbers of an idempotent producer, corrected where aiokafka leaves them wrong ---------------------------
#
# aiokafka counts a batch when it is first sent, and leaves it counted when the broker refuses it. The next batch would
# be out of order, and the partition would be lost to this producer. It also wraps at 2^31 to a negative number, where
# the broker expects zero. A partition has one batch in flight at a time, so both can be corrected after its answer.
# A batch that aiokafka retried by itself is different: the first try may have been written, whatever the second answer
# says. Its numbers must not be reused, or the broker would acknowledge other records without writing them.


def enqueue(producer: AIOKafkaProducer, tp: TopicPartition, batch: Any) -> Any:
    """Hand a batch to the producer. Return aiokafka's record of it, whose ``future`` gets the answer.

    ``send_batch`` does the same in coroutines that wait for metadata, and for an earlier batch of the partition. The
    caller knows the leader, and has no other batch in flight. Raises ``KafkaError`` for a producer that has failed.
    """
    accumulator = producer._message_accumulator
    if accumulator._closed:
        raise ProducerClosed
    if accumulator._exception is not None:
        raise copy(accumulator._exception)
    return accumulator._append_batch(batch, tp)


def last_batch(producer: AIOKafkaProducer, tp: TopicPartition) -> Any:
    """aiokafka's record of the batch that ``send_batch`` has just taken. Call it before any other task runs."""
    return producer._message_accumulator._batches[tp][-1]


def take_back(producer: AIOKafkaProducer, tp: TopicPartition, records: int) -> None:
    """Correct the numbers after the broker refused the last batch, of ``records``, which was sent once."""
    producer._txn_manager.increment_sequence_number(tp, -records)
    wrap(producer, tp)


def wrap(producer: AIOKafkaProducer, tp: TopicPartition) -> None:
    """Restart at zero where the numbers end. Call it after each counted batch."""
    if producer._txn_manager.sequence_number(tp) < 0:
        producer._txn_manager.increment_sequence_number(tp, _WRAP)


class OddBatch(BatchBuilder):
    """A batch for records with header names that are not UTF-8. ``size`` is bytes, ``codec`` Kafka's number.

    aiokafka's builder in Python only asks a name for its bytes. It is several times slower than the one in C, and
    such records are rare.
    """

    def __init__(self, size: int, codec: int = UNCOMPRESSED, transactional: bool = False) -> None:
        super().__init__(size, codec)
        self._builder = _DefaultRecordBatchBuilderPy(
            _RECORD_BATCH_MAGIC,
            codec,
            is_transactional=int(transactional),
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=0,
            batch_size=size,
        )

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._builder.set_producer_state(producer_id, producer_epoch, base_sequence)
