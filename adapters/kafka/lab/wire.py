"""The leaders of a topic's partitions, and requests to them that wait for nobody."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.api import Request

from adapters.kafka.client import connection
from bridge.settings import Kafka


class Wire:
    """A connection to each leader of a topic. Every method raises the errors of aiokafka and of the network."""

    def __init__(self, settings: Kafka, name: str, topic: str) -> None:
        self._client = AIOKafkaClient(**connection(settings, name))
        self._topic = topic
        #: Which partitions each leader has.
        self.led: dict[int, list[int]] = {}

    async def open(self) -> None:
        """Connect."""
        await self._client.bootstrap()
        for partition in sorted(await self._client._wait_on_metadata(self._topic)):
            leader = self._client.cluster.leader_for_partition(TopicPartition(self._topic, partition))
            self.led.setdefault(leader, []).append(partition)
        for leader in self.led:
            if not await self._client.ready(leader):
                raise NodeNotReadyError(f"node {leader}, which leads partitions of {self._topic}, cannot be reached")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def ask(self, leader: int, request: Request[Any]) -> asyncio.Future[Any]:
        """Send a request now, behind those sent before it; its answer."""
        leading = self._client._conns.get((leader, 0))
        if leading is None:
            raise KafkaConnectionError(f"node {leader} has closed the connection")
        answer: asyncio.Future[Any] = asyncio.ensure_future(leading.send(request))
        return answer
