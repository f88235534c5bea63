"""Compares the topics of the routes with the broker's, and makes the intake topics that are missing. Blocking.

Only intake topics are made: the others are the consumers', who know how many partitions they want. All topics are
listed, because a question about one that does not exist makes it where the broker creates topics by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from adapters.kafka.client import broker_errors, connection
from bridge.errors import Refused
from bridge.settings import Settings

T = TypeVar("T")

_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a route. ``partitions`` and ``replicas`` are 0 for one that does not exist; ``ours`` says that
    postdate makes it."""

    route: str
    name: str
    partitions: int
    replicas: int
    ours: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """How a topic stands; ``text`` is a sentence for a person wherever ``state`` is not "same"."""

    topic: Topic
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """An intake topic as ``declare`` left it."""

    topic: Topic
    new: bool


def plan(settings: Settings) -> list[Topic]:
    """What ``declare`` makes where it is missing."""
    return [Topic(name, settings.routes[name].intercept, 0, 0, True) for name in settings.routes_of("kafka")]


def verify(settings: Settings) -> list[Finding]:
    """How each topic of the routes stands; changes nothing. Raises ``BrokerUnavailable``."""

    async def ask(admin: AIOKafkaAdminClient) -> list[Finding]:
        known = await _known(admin)
        return [one for name in settings.routes_of("kafka") for one in _judge(settings, name, known)]

    return _with_admin(settings, ask)


def declare(settings: Settings) -> tuple[list[Made], list[str]]:
    """Make the intake topics that are missing, with as many partitions as the topic they deliver to.

    Returns what was made or was there, and a warning for each topic of the consumers' that is missing. Raises
    ``Refused`` for a lack of rights, ``BrokerUnavailable``.
    """

    async def make(admin: AIOKafkaAdminClient) -> tuple[list[Made], list[str]]:
        known = await _known(admin)
        made = []
        warnings = []
        for name in settings.routes_of("kafka"):
            intake, target = _topics(settings, name, known)
            new = not intake.partitions
            if new:
                await _make(admin, intake, target)
            made.append(Made(intake, new))
            if not target.partitions:
                warnings.append(_missing(target))
        return made, warnings

    return _with_admin(settings, make)


def _with_admin(settings: Settings, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    async def visit() -> T:
        rules = settings.kafka
        with broker_errors(rules):
            admin = AIOKafkaAdminClient(**connection(rules, "postdate setup"), request_timeout_ms=_TIMEOUT_MS)
            try:
                await admin.start()
                return await work(admin)
            finally:
                await admin.close()

    return asyncio.run(visit())


async def _known(admin: AIOKafkaAdminClient) -> dict[str, tuple[int, int]]:
    """Partitions and replicas of every topic that this user may see."""
    found: list[dict[str, Any]] = await admin.describe_topics()
    return {
        one["topic"]: (len(one["partitions"]), max(len(partition["replicas"]) for partition in one["partitions"]))
        for one in found
        if one["partitions"]
    }


def _topics(settings: Settings, name: str, known: dict[str, tuple[int, int]]) -> tuple[Topic, Topic]:
    route = settings.routes[name]
    intake = Topic(name, route.intercept, *known.get(route.intercept, (0, 0)), ours=True)
    return intake, Topic(name, route.deliver_to, *known.get(route.deliver_to, (0, 0)), ours=False)


def _judge(settings: Settings, name: str, known: dict[str, tuple[int, int]]) -> tuple[Finding, Finding]:
    intake, target = _topics(settings, name, known)
    found = Finding(intake, "same") if intake.partitions else Finding(intake, "missing", _missing(intake))
    if not target.partitions:
        return found, Finding(target, "missing", _missing(target))
    if settings.kafka.partitioner == "same" and intake.partitions > target.partitions:
        text = (
            f"topic '{target.name}' has {target.partitions} partitions and '{intake.name}' has {intake.partitions}, so "
            'kafka.partitioner = "same" cannot work: give it as many, or use another partitioner'
        )
        return found, Finding(target, "different", text)
    return found, Finding(target, "same")


def _missing(topic: Topic) -> str:
    if topic.ours:
        return f"topic '{topic.name}' of route {topic.route} does not exist: run `postdate setup`"
    return (
        f"topic '{topic.name}', which route {topic.route} delivers to, does not exist, so what is due is refused: "
        f"create it, as the consumers need it, or correct routes.{topic.route}.deliver_to"
    )


async def _make(admin: AIOKafkaAdminClient, intake: Topic, target: Topic) -> None:
    """-1 leaves it to the broker's own defaults."""
    wanted = NewTopic(intake.name, target.partitions or -1, target.replicas or -1)
    answer = await admin.create_topics([wanted], timeout_ms=_TIMEOUT_MS)
    for _, code, *rest in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            why = next((text for text in rest if isinstance(text, str)), "") or error.__name__
            raise Refused(f"Kafka refuses to make topic '{intake.name}' of route {intake.route}: {why}")
