"""The sequence numbers of an idempotent producer, mended where aiokafka leaves them wrong.

aiokafka counts a batch when it is first sent and leaves it counted when the broker refuses it, so the next one would
be out of order and the partition would be lost to this producer. And it wraps at 2^31 to a negative number, where the
broker expects zero. One batch of a partition is in flight at a time, so both can be put right after its answer.

A batch that aiokafka has sent again by itself is another matter: the first time it may have been written, whatever is
said of the second. Its numbers must not be given to other records, which the broker would take for the same batch, and
acknowledge without writing them.
"""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition

_WRAP = 2**31


def last_batch(producer: AIOKafkaProducer, place: TopicPartition) -> Any:
    """What ``send_batch`` has just taken, while nobody else has run: aiokafka's own record of the batch."""
    return producer._message_accumulator._batches[place][-1]


def sent_once(batch: Any) -> bool:
    """Whether the answer to this batch of ``last_batch`` is the only one there can be."""
    return bool(batch.retry_count <= 1)


def take_back(producer: AIOKafkaProducer, place: TopicPartition, records: int) -> None:
    """The broker refused the last batch of this partition, which had so many records and was sent once."""
    producer._txn_manager.increment_sequence_number(place, -records)
    wrap(producer, place)


def wrap(producer: AIOKafkaProducer, place: TopicPartition) -> None:
    """After a batch was counted: begin again at zero where the numbers ended."""
    if producer._txn_manager.sequence_number(place) < 0:
        producer._txn_manager.increment_sequence_number(place, _WRAP)
