"""Compares the topics of the routes with the broker's, and makes the intake topics that are missing. Blocking.

Only intake topics are made, and only those that the settings name: what a rule matches is made by whoever wants it, and
the topics that are delivered to are the consumers', who know how many partitions they want. All topics are listed,
because a question about one that does not exist makes it where the broker creates topics by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from adapters.kafka.access import broker_errors
from adapters.kafka.aim import Aim
from adapters.kafka.client import connection, start
from bridge.duration import write_duration
from bridge.errors import Refused
from bridge.message import Refusal
from bridge.naming import Naming
from bridge.settings import Settings

T = TypeVar("T")

_TIMEOUT_MS = 5000
_NOT_THERE = (0, 0)
#: Partitions and replicas by topic.
_Known = Mapping[str, tuple[int, int]]


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
    """How a topic stands: same, missing, different, or "none" for a rule that no topic matches yet; ``text`` is a
    sentence for a person wherever it is not "same"."""

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
    return [
        Topic(name, naming.intercept, 0, 0, True)
        for name in settings.routes_of("kafka")
        for naming in settings.routes[name].namings()
        if not naming.is_rule
    ]


def verify(settings: Settings) -> list[Finding]:
    """How each topic of the routes stands; changes nothing. Raises ``BrokerUnavailable``."""

    async def ask(admin: AIOKafkaAdminClient) -> list[Finding]:
        return list(_judge(settings, await _known(admin)))

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
        for intake, target in _pairs(settings, known):
            new = not intake.partitions
            if new:
                await _make(admin, intake, target if isinstance(target, Topic) else None)
            made.append(Made(intake, new))
            if isinstance(target, Refusal):
                warnings.append(target.text)
            elif not target.partitions:
                warnings.append(_missing(target))
        return made, warnings + [one.text for one in _unmatched(settings, known)]

    return _with_admin(settings, make)


def _with_admin(settings: Settings, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    async def visit() -> T:
        rules = settings.kafka
        with broker_errors(rules):
            admin = AIOKafkaAdminClient(**connection(rules, "postdate setup"), request_timeout_ms=_TIMEOUT_MS)
            try:
                await start(admin, rules)
                return await work(admin)
            finally:
                await admin.close()

    return asyncio.run(visit())


async def _known(admin: AIOKafkaAdminClient) -> _Known:
    """Partitions and replicas of every topic that this user may see."""
    found: list[dict[str, Any]] = await admin.describe_topics()
    return {
        one["topic"]: (len(one["partitions"]), max(len(partition["replicas"]) for partition in one["partitions"]))
        for one in found
        if one["partitions"]
    }


def _pairs(settings: Settings, known: _Known) -> Iterator[tuple[Topic, Topic | Refusal]]:
    """Each intake topic, there or named by the settings, and where it leads."""
    namings = [(name, naming) for name in settings.routes_of("kafka") for naming in settings.routes[name].namings()]
    for name, naming in namings:
        aim = Aim(name, (naming,), taken=namings)
        for topic in _matching(naming, known) if naming.is_rule else [naming.intercept]:
            target = aim.target(topic.encode(), ())
            led = target if isinstance(target, Refusal) else _topic(name, target, known, ours=False)
            yield _topic(name, topic, known, ours=True), led


def _topic(route: str, name: str, known: _Known, ours: bool) -> Topic:
    return Topic(route, name, *known.get(name, _NOT_THERE), ours=ours)


def _matching(naming: Naming, known: _Known) -> list[str]:
    return [topic for topic in sorted(known) if naming.text_in(topic) is not None]


def _unmatched(settings: Settings, known: _Known) -> Iterator[Finding]:
    """The rules that have no topic yet."""
    refresh = write_duration(settings.kafka.refresh)
    for name in settings.routes_of("kafka"):
        for naming in settings.routes[name].namings():
            if naming.is_rule and not _matching(naming, known):
                text = f"no topic matches '{naming.intercept}' of route {name} yet; a new one is read within {refresh}"
                yield Finding(Topic(name, naming.intercept, 0, 0, True), "none", text)


def _judge(settings: Settings, known: _Known) -> Iterator[Finding]:
    for intake, target in _pairs(settings, known):
        yield Finding(intake, "same") if intake.partitions else Finding(intake, "missing", _missing(intake))
        if isinstance(target, Refusal):
            yield Finding(intake, "different", target.text)
        elif not target.partitions:
            yield Finding(target, "missing", _missing(target))
        elif settings.kafka.partitioner == "same" and intake.partitions > target.partitions:
            text = (
                f"topic '{target.name}' has {target.partitions} partitions and '{intake.name}' has {intake.partitions},"
                ' so kafka.partitioner = "same" cannot work: give it as many, or use another partitioner'
            )
            yield Finding(target, "different", text)
        else:
            yield Finding(target, "same")
    for name in settings.routes_of("kafka"):
        for one in settings.routes[name].allow_to:
            allowed = _topic(name, one, known, ours=False)
            yield Finding(allowed, "same") if allowed.partitions else Finding(allowed, "missing", _missing(allowed))
    yield from _unmatched(settings, known)


def _missing(topic: Topic) -> str:
    if topic.ours:
        return f"topic '{topic.name}' of route {topic.route} does not exist: run `postdate setup`"
    return (
        f"topic '{topic.name}', which route {topic.route} delivers to, does not exist, so what is due is refused: "
        f"create it, as the consumers need it, or correct routes.{topic.route}"
    )


async def _make(admin: AIOKafkaAdminClient, intake: Topic, target: Topic | None) -> None:
    """-1 leaves it to the broker's own defaults; aiokafka then wants to be told that nobody assigns the replicas."""
    partitions, replicas = (target.partitions, target.replicas) if target else _NOT_THERE
    wanted = NewTopic(intake.name, partitions or -1, replicas or -1, None if partitions and replicas else {})
    answer = await admin.create_topics([wanted], timeout_ms=_TIMEOUT_MS)
    for _, code, *rest in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            why = next((text for text in rest if isinstance(text, str)), "") or error.__name__
            raise Refused(f"Kafka refuses to make topic '{intake.name}' of route {intake.route}: {why}")
