"""The queue of a target partition: no answers, refusals, unforeseen errors, records that are too large."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError
from aiokafka.producer.message_accumulator import BatchBuilder

from adapters.kafka import partition_queue as queue_module
from adapters.kafka.outgoing import KafkaOut, OutgoingRecord
from adapters.kafka.partition_queue import PartitionQueue
from adapters.kafka.raw.record import Record, pack
from adapters.kafka.refusals import TooFewReplicasError
from adapters.kafka.routing import Router
from bridge.core.message import Claim, Outcome, Refusal
from bridge.delay.naming import Naming

PLACE = TopicPartition("target", 0)


class Producer:
    """A producer whose broker never answers, or answers with an error after so many sendings, or whose sending fails
    with an error of its own. ``counted`` are the sequence numbers that it has given away."""

    def __init__(
        self, error: Exception | None = None, leader: int = 1, answer: KafkaError | None = None, sendings: int = 1
    ) -> None:
        self._error = error
        self._answer = answer
        self.counted = 0
        self.sent: list[int] = []
        self._sendings = sendings
        self._message_accumulator = SimpleNamespace(_closed=False, _exception=None, _append_batch=self._append)
        self._txn_manager = SimpleNamespace(
            increment_sequence_number=self._count, sequence_number=lambda _: self.counted
        )
        cluster = SimpleNamespace(leader_for_partition=lambda _: leader, partitions_for_topic=lambda _: {0})
        self.client = SimpleNamespace(cluster=cluster, force_metadata_update=lambda: None)

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(1000, 0)

    def _append(self, batch: BatchBuilder, _: TopicPartition) -> SimpleNamespace:
        self.sent.append(batch.record_count())
        if self._error is not None:
            raise self._error
        self.counted += batch.record_count()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._answer is not None:
            answer.set_exception(self._answer)
        return SimpleNamespace(future=answer, retry_count=self._sendings)

    def _count(self, place: TopicPartition, records: int) -> None:
        self.counted += records


class Answers:
    """Collects the answers of a queue."""

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, Outcome, str]] = []
        self.broken: list[str] = []

    def tell(self, flights: Sequence[OutgoingRecord[Any]], outcome: Outcome, refusal: Refusal | None) -> None:
        reason = refusal.reason.kind if refusal else ""
        self.answers += [(flight.letter.public_id, outcome, reason) for flight in flights]


def flight(number: int, audit: bool = False, compress_always: bool = False) -> OutgoingRecord[Any]:
    record = Record(0, 0, b"k", b"v", [])
    public_id = b"%020d" % number
    claim = Claim(public_id, 0, b"", 0, 0, 0, "r", b"", pack(*record), public_id, time.monotonic() + 10)
    router = Router("r", [Naming("intake", "target")])
    out = KafkaOut(router.target, frozenset(), audit, compress_always=compress_always)
    return OutgoingRecord(claim, record, out, keep_timestamp=False)


@pytest.mark.parametrize("error", [None, ZeroDivisionError("nobody foresaw it")])
async def test_without_an_answer_the_producer_is_broken_and_each_record_is_unknown_once(
    error: Exception | None,
) -> None:
    told, producer = Answers(), Producer(error)
    queue = PartitionQueue(producer, PLACE, 0.05, False, told.tell, told.broken.append)
    for number in range(3):
        queue.add(flight(number))

    def broken() -> bool:
        queue.look()
        return bool(told.broken)

    await until(broken)
    queue.add(flight(3))
    queue.end()
    queue.end()
    assert [answer[1:] for answer in sorted(told.answers)] == [(Outcome.UNKNOWN, "")] * 4
    assert producer.sent == [3]
    assert "partition 0" in told.broken[0]


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "reason"), [(TopicAuthorizationFailedError(), "forbidden"), (TooFewReplicasError(), "few_replicas")]
)
async def test_a_batch_refused_at_its_only_try_gives_its_sequence_numbers_back(answer: KafkaError, reason: str) -> None:
    told, producer = Answers(), Producer(answer=answer)
    queue = PartitionQueue(producer, PLACE, 10, False, told.tell, told.broken.append)
    for number in range(3):
        queue.add(flight(number))
    await until(lambda: len(told.answers) == 3)
    assert [found[1:] for found in told.answers] == [(Outcome.REFUSED, reason)] * 3
    assert (producer.sent, producer.counted, told.broken) == ([3], 0, [])


async def test_a_batch_refused_after_a_retry_may_have_been_written_and_is_unknown() -> None:
    told, producer = Answers(), Producer(answer=TooFewReplicasError(), sendings=2)
    queue = PartitionQueue(producer, PLACE, 10, False, told.tell, told.broken.append)
    queue.add(flight(0))
    await until(lambda: told.broken)
    queue.end()
    assert told.answers == [(b"%020d" % 0, Outcome.UNKNOWN, "")]
    assert producer.counted == 1, "the numbers of a batch that may stand in the log were given to others"


async def test_a_partition_without_a_leader_is_not_tried_and_not_waited_for() -> None:
    told, producer = Answers(), Producer(leader=-1)
    queue = PartitionQueue(producer, PLACE, 10, False, told.tell, told.broken.append)
    queue.add(flight(0))
    await until(lambda: told.answers)
    assert told.answers == [(b"%020d" % 0, Outcome.REFUSED, "no_leader")]
    assert (producer.sent, told.broken) == ([], [])


@pytest.mark.parametrize(
    ("squeezed_max", "compressed", "always", "sendings", "words"),
    [
        (1000, False, False, 2, "not even compressed"),
        (1000, True, False, 1, "not even compressed"),
        (0, False, False, 1, "and it was sent uncompressed (kafka.compression)"),
        (0, False, True, 2, "not even compressed"),
    ],
)
async def test_a_record_that_is_too_large_is_compressed_once_unless_that_would_block_the_loop(
    monkeypatch: pytest.MonkeyPatch, squeezed_max: int, compressed: bool, always: bool, sendings: int, words: str
) -> None:
    monkeypatch.setattr(queue_module, "_SQUEEZED_MAX", squeezed_max)
    said: list[str] = []

    def tell(flights: Sequence[OutgoingRecord[Any]], outcome: Outcome, refusal: Refusal | None) -> None:
        said.extend(refusal.reason.sentence if refusal else "" for _ in flights)

    producer = Producer(answer=MessageSizeTooLargeError())
    queue = PartitionQueue(producer, PLACE, 10, compressed, tell, said.append)
    queue.add(flight(0, compress_always=always))
    await until(lambda: said)
    assert said == [f"topic 'target' accepts no record of this size (max.message.bytes), {words}"]
    assert (producer.sent, producer.counted) == ([1] * sendings, 0)


async def test_a_dead_letter_larger_than_any_request_is_compressed_at_its_first_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_module, "REQUEST_BYTES", 0)
    told, producer = Answers(), Producer(answer=MessageSizeTooLargeError())
    queue = PartitionQueue(producer, PLACE, 10, False, told.tell, told.broken.append)
    queue.add(flight(0, compress_always=True))
    await until(lambda: told.answers)
    assert (told.answers[0][2], producer.sent) == ("too_large", [1])


@pytest.mark.parametrize(("compressed", "sendings"), [(False, 4), (True, 3)])
async def test_a_record_that_is_too_large_is_sent_without_the_audit_headers_at_last(
    compressed: bool, sendings: int
) -> None:
    said: list[str] = []
    producer = Producer(answer=MessageSizeTooLargeError())
    queue = PartitionQueue(
        producer, PLACE, 10, compressed, lambda flights, *_: said.extend("" for _ in flights), said.append
    )
    record = flight(0, audit=True)
    queue.add(record)
    await until(lambda: said)
    assert (producer.sent, producer.counted, record.headers) == ([1] * sendings, 0, [])
