"""Topics as ``setup`` sees them: what there is, how each stands, and making one."""

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
NOT_THERE = (0, 0)
_NO_CONFIG: Mapping[str, str] = MappingProxyType({})
#: Kafka's number for a setting that was made on a topic itself.
_ON_TOPIC = 1


class Known(dict[str, tuple[int, int]]):
    """Partitions and replicas by topic. ``unseen`` are topics that this user may not see, whether they exist or not."""

    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a route. ``partitions`` and ``replicas`` are 0 for one that does not exist, or that is ``unseen``;
    ``ours`` says that postdate makes it."""

    route: str
    name: str
    partitions: int
    replicas: int
    ours: bool
    unseen: bool = False


class Config(NamedTuple):
    """The settings of a topic that are in force, and of those the ones that were set on the topic itself: the others
    follow the cluster."""

    values: Mapping[str, str] = _NO_CONFIG
    own: Mapping[str, str] = _NO_CONFIG


@dataclass(frozen=True, slots=True)
class Finding:
    """How a topic stands, as ``state``. ``text`` is a sentence for a person where it is not "same".

    - same, missing, different;
    - unseen: this user may not see it;
    - waits: an intake that is not made before the topic where it leads;
    - few, unlike (beside "same"): fewer partitions, or other settings, than where it leads;
    - none: a rule that no topic matches yet.
    """

    topic: Topic
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A topic of ours as ``declare`` left it; one that ``waits`` was not made, because where it leads is not there."""

    topic: Topic
    new: bool
    waits: bool = False


def with_admin(settings: Settings, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    """Do ``work`` with a client for topics. Blocking. Raises ``BrokerUnavailable``, and what ``work`` raises."""

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


async def known_topics(admin: AIOKafkaAdminClient) -> Known:
    """Every topic that this user may see. All are listed, because a question about one that does not exist makes it
    where the broker creates topics by itself. Raises the errors of aiokafka and of the network."""
    found: list[dict[str, Any]] = await admin.describe_topics()
    return Known(
        (one["topic"], (len(one["partitions"]), max(len(partition["replicas"]) for partition in one["partitions"])))
        for one in found
        if one["partitions"]
    )


async def unseen_of(admin: AIOKafkaAdminClient, names: Iterable[str]) -> frozenset[str]:
    """Those of the topics that this user may not see. The question makes none of them. Raises the errors of aiokafka
    and of the network."""
    names = list(names)
    if not names:
        return frozenset()
    answer: Any = await admin._send_request(MetadataRequest(names, allow_auto_topic_creation=False))
    return frozenset(one[1] for one in answer.topics if one[0] == TopicAuthorizationFailedError.errno)


def topic_in(known: Known, route: str, name: str, ours: bool) -> Topic:
    """A topic as it is known."""
    return Topic(route, name, *known.get(name, NOT_THERE), ours=ours, unseen=name in known.unseen)


def missing(topic: Topic) -> str:
    """The sentence for a topic that is not there, or that cannot be seen."""
    if topic.unseen:
        return _unseen(topic)
    if topic.ours:
        return f"topic '{topic.name}' of route {topic.route} does not exist: run `postdate setup`"
    return (
        f"topic '{topic.name}', which route {topic.route} delivers to, does not exist, so what is due is refused: "
        f"create it, as the consumers need it, or correct routes.{topic.route}"
    )


def _unseen(topic: Topic) -> str:
    if topic.ours:
        return (
            f"postdate may not see topic '{topic.name}' of route {topic.route} (no Describe permission), so whether it "
            "exists is not known: give its user Read and Describe"
        )
    return (
        f"postdate may not see topic '{topic.name}', which route {topic.route} delivers to (no Describe permission), "
        f"so what is due is refused: give its user Write and Describe, or correct routes.{topic.route}"
    )


def waiting(intake: Topic, target: Topic) -> str:
    """The sentence for an intake topic that is not made yet."""
    if target.unseen:
        return f"{_unseen(target)}; until then '{intake.name}' is not made"
    return (
        f"topic '{target.name}', which route {target.route} delivers to, does not exist, so '{intake.name}' is not "
        f"made: create '{target.name}', as the consumers need it, and `postdate run` or `postdate setup` makes "
        f"'{intake.name}' with as many partitions; or correct routes.{target.route}"
    )


async def settings_of(admin: AIOKafkaAdminClient, names: Iterable[str], asked: Iterable[str]) -> dict[str, Config]:
    """Those of the settings of topics that are ``asked``; without the topics that this user may not ask about
    (DescribeConfigs). Raises the errors of aiokafka and of the network."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(asked, "")) for name in names]
    if not wanted:
        return {}
    found = {}
    for answer in await admin.describe_configs(wanted):
        for code, _, _, name, entries in answer.resources:
            if not code:
                # Of an entry the first is its name, the second its value, the fourth where that was set.
                there = [one for one in entries if one[1] is not None]
                own = {one[0]: one[1] for one in there if one[3] == _ON_TOPIC}
                found[name] = Config({one[0]: one[1] for one in there}, own)
    return found


async def create(admin: AIOKafkaAdminClient, wanted: Topic, config: Mapping[str, str] = _NO_CONFIG) -> None:
    """Make a topic, unless it is there already. Without partitions and replicas it gets as many as the broker's own
    defaults say; aiokafka then wants to be told that nobody assigns the replicas.

    Raises ``Refused``, and the errors of aiokafka and of the network."""
    partitions, replicas = wanted.partitions or -1, wanted.replicas or -1
    by_default: dict[int, list[int]] | None = {} if -1 in (partitions, replicas) else None
    new = NewTopic(wanted.name, partitions, replicas, by_default, dict(config))
    answer = await admin.create_topics([new], timeout_ms=TIMEOUT_MS)
    for _, code, *rest in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            why = next((text for text in rest if isinstance(text, str)), "") or error.__name__
            raise Refused(f"Kafka refuses to make topic '{wanted.name}' of route {wanted.route}: {why}")


async def delete(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Delete topics, with all that is in them. Raises ``Refused``, and the errors of aiokafka and of the network."""
    answer = await admin.delete_topics(list(names), timeout_ms=TIMEOUT_MS)
    for name, code, *_ in answer.topic_error_codes:
        if code:
            raise Refused(f"Kafka refuses to delete topic '{name}': {for_code(code).__name__}")
