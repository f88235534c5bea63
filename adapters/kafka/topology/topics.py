"""The cluster's topics: list them, read their settings, create and delete them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from adapters.kafka.access import broker_errors
from adapters.kafka.client import connection, start
from bridge.core.errors import Refused
from bridge.settings import Settings

T = TypeVar("T")

TIMEOUT_MS = 5000
#: How often new topics are looked for, and the pause before the next look.
_SEEN_TRIES, _SEEN_S = 20, 0.1
NOT_THERE = (0, 0)
_NO_CONFIG: Mapping[str, str] = MappingProxyType({})
#: Kafka's config source for a value set on the topic itself.
_ON_TOPIC = 1


class KnownTopics(dict[str, tuple[int, int]]):
    """Partitions and replicas by topic. ``unseen`` are topics that this user may not see, so they may or may not
    exist."""

    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a route. ``partitions`` and ``replicas`` are 0 if it is missing or ``unseen``. ``ours``: postdate
    creates it."""

    route: str
    name: str
    partitions: int
    replicas: int
    ours: bool
    unseen: bool = False


class TopicConfig(NamedTuple):
    """A topic's effective settings in ``values``; in ``own`` those set on the topic itself rather than the cluster."""

    values: Mapping[str, str] = _NO_CONFIG
    own: Mapping[str, str] = _NO_CONFIG


def with_admin(settings: Settings, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    """Run ``work`` with an admin client. Blocking. Raises ``BrokerUnavailable``, and what ``work`` raises."""

    async def visit() -> T:
        rules = settings.kafka
        with broker_errors(rules):
            admin = AIOKafkaAdminClient(**connection(rules, "postdate setup"), request_timeout_ms=TIMEOUT_MS)
            try:
                await start(admin, rules)
                return await work(admin)
            finally:
                await admin.close()

    return asyncio.run(visit())


async def known_topics(admin: AIOKafkaAdminClient) -> KnownTopics:
    """Every topic that this user may see.

    It lists all topics, because asking for a missing one would create it on a broker that creates topics by itself.
    Raises the errors of aiokafka and of the network.
    """
    found: list[dict[str, Any]] = await admin.describe_topics()
    return KnownTopics(
        (row["topic"], (len(row["partitions"]), max(len(partition["replicas"]) for partition in row["partitions"])))
        for row in found
        if row["partitions"]
    )


async def unseen_of(admin: AIOKafkaAdminClient, names: Iterable[str]) -> frozenset[str]:
    """The topics among ``names`` that this user may not see. The request creates none. Raises the errors of aiokafka
    and of the network."""
    names = list(names)
    if not names:
        return frozenset()
    answer: Any = await admin._send_request(MetadataRequest(names, allow_auto_topic_creation=False))
    return frozenset(topic[1] for topic in answer.topics if topic[0] == TopicAuthorizationFailedError.errno)


def topic_in(known: KnownTopics, route: str, name: str, ours: bool) -> Topic:
    """A topic of a route, with what is known of it."""
    return Topic(route, name, *known.get(name, NOT_THERE), ours=ours, unseen=name in known.unseen)


async def settings_of(admin: AIOKafkaAdminClient, names: Iterable[str], asked: Iterable[str]) -> dict[str, TopicConfig]:
    """The ``asked`` settings by topic. Topics whose settings this user may not read (DescribeConfigs) are left out.
    Raises the errors of aiokafka and of the network."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(asked, "")) for name in names]
    if not wanted:
        return {}
    found = {}
    for answer in await admin.describe_configs(wanted):
        for code, _, _, name, entries in answer.resources:
            if not code:
                # An entry is (name, value, read-only, source, ...).
                there = [entry for entry in entries if entry[1] is not None]
                own = {entry[0]: entry[1] for entry in there if entry[3] == _ON_TOPIC}
                found[name] = TopicConfig({entry[0]: entry[1] for entry in there}, own)
    return found


async def create(admin: AIOKafkaAdminClient, wanted: Topic, config: Mapping[str, str] = _NO_CONFIG) -> None:
    """Create a topic unless it exists. Without partitions and replicas it gets the broker's defaults; aiokafka then
    needs an empty replica assignment.

    Raises ``Refused``, and the errors of aiokafka and of the network.
    """
    partitions, replicas = wanted.partitions or -1, wanted.replicas or -1
    by_default: dict[int, list[int]] | None = {} if -1 in (partitions, replicas) else None
    new = NewTopic(wanted.name, partitions, replicas, by_default, dict(config))
    answer = await admin.create_topics([new], timeout_ms=TIMEOUT_MS)
    for _, code, *rest in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            why = next((text for text in rest if isinstance(text, str)), "") or error.__name__
            raise Refused(f"Kafka refuses to create topic '{wanted.name}' of route {wanted.route}: {why}")


async def until_shown(admin: AIOKafkaAdminClient, names: set[str]) -> None:
    """Wait at most 2 s until Kafka shows new topics: it answers before its brokers do, and a check would call them
    missing. Raises the errors of aiokafka and of the network."""
    for _ in range(_SEEN_TRIES if names else 0):
        if names <= (await known_topics(admin)).keys():
            break
        await asyncio.sleep(_SEEN_S)


async def delete(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Delete topics and their records. Raises ``Refused``, and the errors of aiokafka and of the network."""
    answer = await admin.delete_topics(list(names), timeout_ms=TIMEOUT_MS)
    for name, code, *_ in answer.topic_error_codes:
        if code:
            raise Refused(f"Kafka refuses to delete topic '{name}': {for_code(code).__name__}")
