"""The demo's producer and consumer (``bridge.lab.ports``): plain aiokafka, as in any program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from adapters.kafka.access import broker_errors
from adapters.kafka.client import connection
from bridge.lab.ports import Received
from bridge.settings import Settings

#: The key of all records, so that Kafka keeps their order.
_KEY = b"customer 7"
_JOIN_S = 5
_TURN_MS = 100


class KafkaProducer:
    """Produces, acknowledged by all replicas. Raises ``BrokerUnavailable``."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings.kafka
        self._topic = topic
        self._runner = asyncio.Runner()
        with broker_errors(self._settings):
            self._runner.run(self._open())

    def publish(self, body: bytes, headers: Mapping[str, str | int]) -> None:
        written = [(name, str(value).encode()) for name, value in headers.items()]
        with broker_errors(self._settings):
            self._runner.run(self._producer.send_and_wait(self._topic, body, _KEY, headers=written))

    def close(self) -> None:
        with suppress(KafkaError, OSError), self._runner:
            self._runner.run(self._producer.stop())

    async def _open(self) -> None:
        self._producer = AIOKafkaProducer(**connection(self._settings, "postdate demo, producer"), acks="all")
        await self._producer.start()


class KafkaConsumer:
    """Reads a topic from its beginning in a thread, from the moment it is created."""

    def __init__(self, settings: Settings, topic: str, received: Received) -> None:
        self._settings = settings.kafka
        self._topic = topic
        self._received = received
        self._reads, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._thread.start()
        self._reads.wait(_JOIN_S)

    def close(self) -> None:
        self._over.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        with suppress(KafkaError, OSError):
            asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = AIOKafkaConsumer(
            self._topic, **connection(self._settings, "postdate demo, consumer"), auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            self._reads.set()
            while not self._over.is_set():
                for records in (await consumer.getmany(timeout_ms=_TURN_MS)).values():
                    for record in records:
                        self._received(record.value, dict(record.headers))
        finally:
            await consumer.stop()
