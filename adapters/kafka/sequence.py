"""The sequence numbers of an idempotent producer, mended where aiokafka leaves them wrong.

aiokafka counts a batch when it is first sent and leaves it counted when the broker refuses it, so the next one would
be out of order and the partition would be lost to this producer. And it wraps at 2^31 to a negative number, where the
broker expects zero. One batch of a partition is in flight at a time, so both can be put right after its answer.
"""

from __future__ import annotations

from aiokafka import AIOKafkaProducer, TopicPartition

_WRAP = 2**31


def take_back(producer: AIOKafkaProducer, place: TopicPartition, records: int) -> None:
    """The broker refused the last batch of this partition, which had so many records."""
    producer._txn_manager.increment_sequence_number(place, -records)
    wrap(producer, place)


def wrap(producer: AIOKafkaProducer, place: TopicPartition) -> None:
    """After a batch was counted: begin again at zero where the numbers ended."""
    if producer._txn_manager.sequence_number(place) < 0:
        producer._txn_manager.increment_sequence_number(place, _WRAP)
