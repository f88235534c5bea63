"""Finds a consumer that lives and takes nothing, or nothing of one partition.

After a broker's restart or a rebalance aiokafka can hang without an error, and gives no sign of it. So it is compared,
every now and then, what the brokers have with how far the consumer is.
"""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.errors import KafkaError

from bridge.core.errors import BrokerUnavailable

#: After so long without a record, two looks that find the same are enough; while others come, a partition may wait.
_QUIET_S = 15.0
_PATIENCE_S = 60.0
_ANSWER_S = 10.0
_REBALANCE_S = 60.0
_NOT_BEGUN = -1
_NO_ANSWER = "the brokers do not say how far their partitions go"


class Stuck:
    """Looks at one consumer now and then. Raises ``BrokerUnavailable`` when it is stuck."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._behind: dict[TopicPartition, tuple[int, float]] = {}
        self._assigned_at = self._answered_at = time.monotonic()

    def forget(self) -> None:
        """The consumer waits for us: what it has not taken meanwhile proves nothing."""
        self._behind = {}
        self._answered_at = time.monotonic()

    async def look(self, took_at: float) -> None:
        """``took_at`` is the monotonic second of the last record."""
        now = time.monotonic()
        if self._consumer._subscription.reassignment_in_progress:
            self.forget()
            if now - self._assigned_at > _REBALANCE_S:
                raise BrokerUnavailable("the consumer group has shared out no partitions for a minute")
            return
        self._assigned_at = now
        quiet = now - took_at >= _QUIET_S
        try:
            async with asyncio.timeout(_ANSWER_S):
                behind = await self._ask()
        except TimeoutError:
            if not quiet:
                return
            raise BrokerUnavailable(_NO_ANSWER) from None
        except KafkaError as error:
            self._on_error(error, now)
            return
        self._answered_at = now
        self._compare(behind, now, 0.0 if quiet else _PATIENCE_S)

    def _on_error(self, error: KafkaError, now: float) -> None:
        """A partition is gone, or led by another: the consumer is told of it soon, and is asked for what is left."""
        if not error.retriable or now - self._answered_at > _PATIENCE_S:
            raise BrokerUnavailable(_NO_ANSWER) from error
        self._consumer._client.force_metadata_update()
        self._behind = {}

    def _compare(self, behind: dict[TopicPartition, int], now: float, patience_s: float) -> None:
        before, self._behind = self._behind, {}
        for place, position in behind.items():
            known, since = before.get(place, (None, now))
            if known != position:
                since = now
            elif now - since >= patience_s:
                raise BrokerUnavailable("records are waiting and the consumer takes none; it is made anew")
            self._behind[place] = position, since

    async def _ask(self) -> dict[TopicPartition, int]:
        """The partitions that have more than was taken, and how far the consumer is in each, -1 where it has not begun;
        one without a leader has nobody to ask. Raises ``KafkaError`` at once, where the documented way would ask again
        and again for a partition that is gone, and wait for a position in one that was just lost."""
        consumer, positions = self._consumer, dict[TopicPartition, int]()
        for place in consumer.assignment() - consumer.paused():
            state = consumer._subscription.subscription.assignment.state_value(place)
            if consumer._client.cluster.leader_for_partition(place) not in (None, -1):
                positions[place] = state.position if state.has_valid_position else _NOT_BEGUN
        if not positions:
            return {}
        asked = dict.fromkeys(positions, OffsetResetStrategy.LATEST)
        ends = await consumer._fetcher._proc_offset_requests(asked)
        return {place: position for place, position in positions.items() if position < ends[place][0]}
