"""What a Kafka cluster tells of itself that concerns postdate, for `postdate doctor`. Blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from adapters.kafka.access import sentence
from adapters.kafka.client import give_up_producer, new_transactional_producer, start
from adapters.kafka.delivered import marker_topic
from adapters.kafka.topology.declaring import plan
from adapters.kafka.topology.released import transactional_routes
from adapters.kafka.topology.topics import known_topics, with_admin
from adapters.kafka.transaction import TIMEOUT_MS
from bridge.core.errors import BrokerUnavailable
from bridge.desk.severity import CheckResult, fail, ok, warn
from bridge.settings import Settings

#: A cluster of this many brokers can keep three replicas.
_CLUSTER = 3
_ANSWER_S = 5.0


def diagnose(settings: Settings) -> list[CheckResult]:
    """Return the number of brokers, topics of routes that a single broker's loss makes unavailable, and whether
    transactional routes can begin a transaction."""

    async def look(admin: AIOKafkaAdminClient) -> list[CheckResult]:
        cluster = await admin.describe_cluster()
        known = await known_topics(admin)
        topics = [(topic.route, topic.name) for topic in plan(settings)]
        found = list(judged(len(cluster["brokers"]), topics, known))
        if transactional_routes(settings):
            found.append(await _try_transactions(settings))
        return found

    try:
        return with_admin(settings, look)
    except BrokerUnavailable:
        return []  # the topology check has said so


async def _try_transactions(settings: Settings) -> CheckResult:
    """Begin a session under an id that no shard has, which fences none, and end it."""
    topic, rules = marker_topic(settings.kafka.group), settings.kafka
    producer = new_transactional_producer(rules, f"{topic}.doctor", TIMEOUT_MS)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await start(producer, rules)
    except (KafkaError, OSError) as error:
        return fail("transactions", f"no transaction can begin: {sentence(error, rules)}")
    finally:
        await give_up_producer(producer)
    return ok("transactions", f"postdate may use the transactional ids '{topic}.*'")


def judged(brokers: int, planned: list[tuple[str, str]], known: Mapping[str, tuple[int, int]]) -> Iterator[CheckResult]:
    """Judge the topics (route, name) of the routes, of which ``known`` tells partitions and replicas. Pure."""
    yield ok("Kafka", f"brokers: {brokers}")
    for route, name in planned:
        replicas = known.get(name, (0, 0))[1]
        if replicas == 1 and brokers >= _CLUSTER:
            text = f"topic '{name}' has one replica. While its broker is down, the topic cannot be used"
            yield warn(f"route {route}", text, "Give it three replicas: kafka-reassign-partitions")
