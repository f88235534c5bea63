"""The target topics: how many partitions each has, whether it is there at all, and which of them rest.

Our clients never name a topic when they ask for metadata in general, because a broker may make a topic that is asked
for by name, and a typing mistake would become a topic of one partition. They ask for all; a topic that is not among
them is asked for once by name, with the word not to make it, so that the reason can be told.
"""

from __future__ import annotations

import time
from dataclasses import replace

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from adapters.kafka import refusals
from bridge.core.message import Refusal

#: How long a topic that Kafka refused is left alone before a record may try again.
_REST_S = 1.0
_AGAIN_MS = 100


class Targets:
    """What one client knows of the topics. Its answers are forgotten when the cluster says something new."""

    def __init__(self, client: AIOKafkaClient) -> None:
        self._client = client
        self._partitions: dict[str, int] = {}
        self._resting: dict[str, tuple[float, Refusal]] = {}
        client.cluster.add_listener(lambda _: self._partitions.clear())

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 where it is not known to exist."""
        known = self._partitions.get(topic)
        if known is None:
            known = len(self._client.cluster.partitions_for_topic(topic) or ())
            self._partitions[topic] = known
        return known

    def rest(self, topic: str, refusal: Refusal) -> None:
        """Nothing is sent to this topic for a while."""
        self._resting[topic] = (time.monotonic() + _REST_S, refusal)

    def resting(self, topic: str) -> Refusal | None:
        """Why nothing may be sent there now: not tried, so not held against the record."""
        if topic not in self._resting:
            return None
        until, refusal = self._resting[topic]
        waits_s = until - time.monotonic()
        if waits_s > 0:
            return replace(refusal, again_ms=max(_AGAIN_MS, int(waits_s * 1000)), lasting=False)
        del self._resting[topic]
        return None

    async def ask(self, topic: str) -> Refusal | None:
        """Why a topic that is not known cannot be sent to; None when it is there after all."""
        await self._client.force_metadata_update()
        if self.partitions(topic):
            return None
        node = self._client.get_random_node()
        try:
            answer = await self._client.send(node, MetadataRequest([topic], allow_auto_topic_creation=False))
        except (KafkaError, OSError):
            return refusals.not_known(topic)
        error = for_code(answer.topics[0][0])
        if error is TopicAuthorizationFailedError:
            return refusals.forbidden(topic)
        if error in (UnknownTopicOrPartitionError, InvalidTopicError):
            return refusals.missing_topic(topic)
        return refusals.not_known(topic)
