"""The canary's way through Kafka: create its topics, write one record, wait for it. Blocking."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Set

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import TopicAuthorizationFailedError

from adapters.kafka.access import broker_errors
from adapters.kafka.client import connection
from adapters.kafka.topology import declaring
from adapters.kafka.topology.topics import Topic, create, known_topics, with_admin
from bridge.core.errors import Refused
from bridge.settings import Settings

_TURN_MS = 200
#: A broker that has just come back may not know its topics yet, so missing ones are looked for again after this time.
_AGAIN_S = 3.0
#: How long Kafka keeps the canary's records.
_RETENTION = {"retention.ms": "3600000"}


def declare_canary(settings: Settings) -> None:
    """Create the topic that the canary's records are delivered to, then the route's. Raises as ``declare``."""

    ((name, route),) = settings.routes.items()

    async def make(admin: AIOKafkaAdminClient) -> None:
        if route.target not in await known_topics(admin):
            await create(admin, Topic(name, route.target, 1, 0, True), _RETENTION)

    with_admin(settings, make)
    declaring.declare(settings)


def round_trip(settings: Settings, delay_ms: int, wait_s: float, sent: Callable[[], None]) -> float | None:
    """Write a delayed record and wait for it. Return how late (s) it came; None if it did not come in ``wait_s``.

    Raises ``BrokerUnavailable``, and ``Refused`` where the canary's topics are missing or may not be used.
    """
    with broker_errors(settings.kafka):
        try:
            return asyncio.run(_trip(settings, delay_ms, wait_s, sent))
        except TopicAuthorizationFailedError as error:
            raise Refused(f"user '{settings.kafka.user}' may not use the canary's topics") from error


async def missing(
    wanted: frozenset[str], topics: Callable[[], Awaitable[Set[str]]], again_s: float = _AGAIN_S
) -> frozenset[str]:
    """Return which topics do not exist. ``topics`` asks the brokers for all; it is called twice before one counts."""
    if gone := wanted - await topics():
        await asyncio.sleep(again_s)
        gone -= await topics()
    return gone


async def _trip(settings: Settings, delay_ms: int, wait_s: float, sent: Callable[[], None]) -> float | None:
    given = connection(settings.kafka, f"{settings.bridge.name} canary")
    token = secrets.token_hex(8).encode()
    producer, consumer = AIOKafkaProducer(**given, acks="all"), AIOKafkaConsumer(**given)
    (route,) = settings.routes.values()
    place = TopicPartition(route.target, 0)
    try:
        await consumer.start()
        # Asking for a missing topic would create it on a broker that creates topics by itself.
        if await missing(frozenset((route.intercept, route.target)), consumer.topics):
            raise Refused(f"topics '{route.intercept}' and '{route.target}' are missing. `postdate run` creates them")
        consumer.assign([place])
        await consumer.seek_to_end(place)
        await consumer.position(place)
        await producer.start()
        sent_s = time.monotonic()
        await producer.send_and_wait(route.intercept, b"canary", token, headers=[("x-delay", b"%d" % delay_ms)])
        sent()
        ends_s = time.monotonic() + delay_ms / 1000 + wait_s
        while time.monotonic() < ends_s:
            for records in (await consumer.getmany(timeout_ms=_TURN_MS)).values():
                if any(record.key == token for record in records):
                    return time.monotonic() - sent_s - delay_ms / 1000
        return None
    finally:
        await producer.stop()
        await consumer.stop()
