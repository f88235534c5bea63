"""What Kafka means when it will not take records: pure, from its errors to a refusal.

Error codes: the Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from aiokafka import TopicPartition
from aiokafka.errors import (
    BrokerResponseError,
    CorruptRecordException,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    kafka_errors,
)

from bridge.core.message import Refusal


class InvalidRecordError(BrokerResponseError):
    """Kafka's code for a record that a topic will not have; aiokafka does not know it and would call it unknown."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The topic does not take such a record."


class TooFewReplicasError(NotEnoughReplicasError):
    """Kafka's code for a partition that has too few replicas in sync, and so has written nothing; aiokafka would send
    the batch again until the replicas are back, and nobody would be told why nothing is delivered."""

    retriable = False


kafka_errors.setdefault(InvalidRecordError.errno, InvalidRecordError)
kafka_errors[TooFewReplicasError.errno] = TooFewReplicasError

_SOON_MS = 1000
#: The reasons that speak of a topic and not of a record: its other records would be refused, too.
OF_TOPIC = frozenset({"missing_topic", "forbidden"})


def too_many_headers(most: int) -> Refusal:
    """More headers than the settings allow: a retried dead letter, or a limit that is lower now."""
    return Refusal("bad_header", f"it has more than {most} headers (limits.header_entries)", lasting=True)


def no_leader(topic: str, partition: int) -> Refusal:
    """The broker that leads the partition is away and no other has taken over yet: nothing was tried."""
    text = f"partition {partition} of topic '{topic}' has no leader at the moment"
    return Refusal("no_leader", text, again_ms=_SOON_MS)


def few_replicas(topic: str, partition: int) -> Refusal:
    """Brokers are away, and the others alone may not take anything: nothing was written."""
    text = f"partition {partition} of topic '{topic}' has fewer replicas in sync than the topic's min.insync.replicas"
    return Refusal("few_replicas", text, again_ms=_SOON_MS)


def not_known(topic: str) -> Refusal:
    """It may be there, and has just been made, or nobody answered: nothing was tried."""
    text = f"whether there is a topic '{topic}' is not known at the moment"
    return Refusal("not_known", text, again_ms=_SOON_MS)


def missing_topic(topic: str) -> Refusal:
    """No such topic. Making one is left to whoever knows how many partitions it should have."""
    return Refusal("missing_topic", f"there is no topic '{topic}', or it may not be seen (no Describe permission)")


def forbidden(topic: str) -> Refusal:
    """The cluster knows who we are, and we may not."""
    return Refusal("forbidden", f"postdate may not write to topic '{topic}'")


def too_large(topic: str, compressed: bool) -> Refusal:
    """Whether it was sent compressed: else it may go that way, as it may have come from its producer."""
    hint = "not even compressed with gzip" if compressed else "and it was not sent compressed (kafka.compression)"
    return Refusal(
        "too_large", f"topic '{topic}' takes no record of this size (max.message.bytes), {hint}", lasting=True
    )


def over_request(topic: str) -> Refusal:
    """Too large for any broker, whatever the topic takes."""
    text = f"topic '{topic}': Kafka takes no request of 100 MiB (kafka.compression, limits.max_body)"
    return Refusal("too_large", text, lasting=True)


def of_error(error: KafkaError, tp: TopicPartition, keyless: bool = False) -> Refusal | None:
    """Why nothing of a batch was written; None where that is not known, or something was. ``keyless``: its only record
    has no key."""
    topic = tp.topic
    if isinstance(error, NotEnoughReplicasError):
        return few_replicas(topic, tp.partition)
    if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
        return too_large(topic, compressed=True)
    if isinstance(error, TopicAuthorizationFailedError):
        return forbidden(topic)
    if isinstance(error, (UnknownTopicOrPartitionError, InvalidTopicError)):
        return missing_topic(topic)
    if isinstance(error, InvalidTimestampError):
        return Refusal("bad_timestamp", f"topic '{topic}' refuses its timestamp", lasting=True)
    if isinstance(error, (CorruptRecordException, InvalidRecordError, PolicyViolationError)):
        rule = (
            "it has no key, and a compacted topic takes none without: write it with one, or set the topic's "
            "cleanup.policy to delete"
            if keyless
            else "the topic, or the cluster, has a rule that it breaks: change that or what the producer writes"
        )
        text = f"topic '{topic}' does not take this record, Kafka says {error.message} ({error.errno}); {rule}"
        return Refusal("rejected", text)
    return None
