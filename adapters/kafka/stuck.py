"""Finds a consumer that lives and takes nothing.

After a broker's restart or a rebalance aiokafka can hang without an error, and gives no sign of it. So it is compared,
when nothing has come for a while, what the brokers have with how far the consumer is.
"""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from bridge.errors import BrokerUnavailable

#: After so long without a record it is asked whether there is one.
_QUIET_S = 15.0
_ANSWER_S = 10.0
_REBALANCE_S = 60.0


class Stuck:
    """Looks at one consumer now and then. Raises ``BrokerUnavailable`` when it is stuck."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._behind: dict[TopicPartition, int] = {}
        self._assigned_at = time.monotonic()

    async def look(self, took_at: float) -> None:
        """``took_at`` is the monotonic second of the last record."""
        now = time.monotonic()
        if not self._consumer._subscription.reassignment_in_progress:
            self._assigned_at = now
        elif now - self._assigned_at > _REBALANCE_S:
            raise BrokerUnavailable("the consumer group has shared out no partitions for a minute")
        else:
            return
        if now - took_at < _QUIET_S:
            self._behind = {}
            return
        try:
            async with asyncio.timeout(_ANSWER_S):
                behind = await self._ask()
        except TimeoutError:
            raise BrokerUnavailable("the brokers do not say how far their partitions go") from None
        if any(self._behind.get(place) == position for place, position in behind.items()):
            raise BrokerUnavailable("records are waiting and the consumer takes none; it is made anew")
        self._behind = behind

    async def _ask(self) -> dict[TopicPartition, int]:
        """The partitions that have more than was taken, and how far the consumer is in each."""
        places = [place for place in self._consumer.assignment() if place not in self._consumer.paused()]
        if not places:
            return {}
        ends = await self._consumer.end_offsets(places)
        positions = {place: await self._consumer.position(place) for place in places}
        return {place: position for place, position in positions.items() if position < ends[place]}
