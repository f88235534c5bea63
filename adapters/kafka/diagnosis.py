"""What a Kafka cluster tells of itself that concerns postdate, for `postdate doctor`. Blocking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiokafka.admin import AIOKafkaAdminClient

from adapters.kafka.topology.setup import plan
from adapters.kafka.topology.topics import known_topics, with_admin
from bridge.admin.diagnosis import CheckResult, ok, warn
from bridge.core.errors import BrokerUnavailable
from bridge.settings import Settings

#: A cluster of this many brokers can keep three replicas.
_CLUSTER = 3


def diagnose(settings: Settings) -> list[CheckResult]:
    """Return the number of brokers, and topics of routes that a single broker's loss makes unavailable."""

    async def look(admin: AIOKafkaAdminClient) -> list[CheckResult]:
        cluster = await admin.describe_cluster()
        known = await known_topics(admin)
        topics = [(one.route, one.name) for one in plan(settings)]
        return list(judged(len(cluster["brokers"]), topics, known))

    try:
        return with_admin(settings, look)
    except BrokerUnavailable:
        return []  # the topology check has said so


def judged(brokers: int, planned: list[tuple[str, str]], known: Mapping[str, tuple[int, int]]) -> Iterator[CheckResult]:
    """Judge the topics (route, name) of the routes, of which ``known`` tells partitions and replicas. Pure."""
    yield ok("Kafka", f"brokers: {brokers}")
    for route, name in planned:
        replicas = known.get(name, (0, 0))[1]
        if replicas == 1 and brokers >= _CLUSTER:
            text = f"topic '{name}' has one replica. While its broker is down, the topic cannot be used"
            yield warn(f"route {route}", text, "Give it three replicas: kafka-reassign-partitions")
