"""Translates Kafka's errors into refusals. Pure.

Error codes: the Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition, errors

from adapters.kafka.client import has_leader
from bridge.core.message import Refusal
from bridge.core.reasons import Reason, ReasonKind, bad_headers


class InvalidRecordError(errors.BrokerResponseError):
    """INVALID_RECORD, which aiokafka does not know and would report as unknown."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The topic does not accept such a record."


class TooFewReplicasError(errors.NotEnoughReplicasError):
    """NOT_ENOUGH_REPLICAS: nothing was written. aiokafka would retry it silently until the replicas are back."""

    retriable = False


errors.kafka_errors.setdefault(InvalidRecordError.errno, InvalidRecordError)
errors.kafka_errors[TooFewReplicasError.errno] = TooFewReplicasError

_SOON_MS = 1000
#: Reasons that concern a topic and not one record: its other records would be refused too.
OF_TOPIC = frozenset({ReasonKind.MISSING_TOPIC, ReasonKind.FORBIDDEN})


def too_many_headers(most: int) -> Refusal:
    """More headers than the settings allow: a retried dead letter, or a limit that was lowered."""
    return Refusal(bad_headers(f"it has more than {most} headers (limits.header_entries)"), lasting=True)


def no_leader(topic: str, partition: int) -> Refusal:
    """The leader of the partition is away and no other took over yet: nothing was tried."""
    text = "partition {partition} of topic '{topic}' has no leader at the moment"
    reason = Reason(ReasonKind.NO_LEADER, text, {"partition": partition, "topic": topic})
    return Refusal(reason, again_ms=_SOON_MS)


def unreachable(cluster: Any, tp: TopicPartition) -> Refusal | None:
    """Why nothing can be sent to a partition now; None if it can. Sending would wait for a topic or a leader, for
    ever."""
    if has_leader(cluster, tp):
        return None
    return missing_topic(tp.topic) if cluster.partitions_for_topic(tp.topic) is None else no_leader(*tp)


def few_replicas(topic: str, partition: int) -> Refusal:
    """Too few replicas are in sync: nothing was written."""
    text = "partition {partition} of topic '{topic}' has fewer replicas in sync than the topic's min.insync.replicas"
    values = {"partition": partition, "topic": topic}
    return Refusal(Reason(ReasonKind.FEW_REPLICAS, text, values), again_ms=_SOON_MS)


def not_known(topic: str) -> Refusal:
    """The topic may have just been created, or no broker answered: nothing was tried."""
    text = "whether there is a topic '{topic}' is unknown at the moment"
    return Refusal(Reason(ReasonKind.NOT_KNOWN, text, {"topic": topic}), again_ms=_SOON_MS)


def missing_topic(topic: str) -> Refusal:
    """The topic does not exist. Its owner creates it: only the owner knows how many partitions it needs."""
    text = "topic '{topic}' does not exist, or postdate may not see it (no Describe permission)"
    return Refusal(Reason(ReasonKind.MISSING_TOPIC, text, {"topic": topic}))


def forbidden(topic: str) -> Refusal:
    """The user has no right to write."""
    return Refusal(Reason(ReasonKind.FORBIDDEN, "postdate may not write to topic '{topic}'", {"topic": topic}))


def too_large(topic: str, compressed: bool) -> Refusal:
    """The record is over the topic's limit. ``compressed``: it was also tried compressed."""
    hint = "not even compressed" if compressed else "and it was sent uncompressed (kafka.compression)"
    text = f"topic '{{topic}}' accepts no record of this size (max.message.bytes), {hint}"
    return Refusal(Reason(ReasonKind.TOO_LARGE, text, {"topic": topic}), lasting=True)


def over_request(topic: str) -> Refusal:
    """The record is too large for any request, whatever the topic accepts."""
    text = "topic '{topic}': Kafka accepts no request of 100 MiB (kafka.compression, limits.max_body)"
    return Refusal(Reason(ReasonKind.TOO_LARGE, text, {"topic": topic}), lasting=True)


def of_error(error: errors.KafkaError, tp: TopicPartition, keyless: bool = False) -> Refusal | None:
    """The refusal if nothing of a batch was written; None if something was, or if that is unknown. ``keyless``: its
    only record has no key."""
    topic = tp.topic
    if isinstance(error, errors.NotEnoughReplicasError):
        return few_replicas(topic, tp.partition)
    if isinstance(error, (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)):
        return too_large(topic, compressed=True)
    if isinstance(error, errors.TopicAuthorizationFailedError):
        return forbidden(topic)
    if isinstance(error, (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError)):
        return missing_topic(topic)
    if isinstance(error, errors.InvalidTimestampError):
        reason = Reason(ReasonKind.BAD_TIMESTAMP, "topic '{topic}' refuses its timestamp", {"topic": topic})
        return Refusal(reason, lasting=True)
    if isinstance(error, (errors.CorruptRecordException, InvalidRecordError, errors.PolicyViolationError)):
        rule = (
            "It has no key, and a compacted topic needs one. Produce it with a key, or set the topic's cleanup.policy "
            "to delete"
            if keyless
            else "It breaks a rule of the topic or the cluster. Change the rule or the producer"
        )
        text = f"topic '{{topic}}' does not accept this record: {{error}} ({{code}}). {rule}"
        return Refusal(Reason(ReasonKind.REJECTED, text, {"topic": topic, "error": error.message, "code": error.errno}))
    return None
