"""Compares the topics of the routes with the broker's, and makes those of ours that are missing. Blocking.

Only intake topics are made that the settings name (what a rule matches is made by whoever wants it), and what routes
without a store need; the topics that are delivered to are the consumers', who know how many partitions they want.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import structlog
from aiokafka.admin import AIOKafkaAdminClient

from adapters.kafka.levels.setup import judge_levels, level_plan, make_levels, sound_levels
from adapters.kafka.routing import Aim
from adapters.kafka.topology.likeness import ASKED, INSYNC, SIZE, intake_config, intake_falls_short
from adapters.kafka.topology.topics import (
    Config,
    Finding,
    Known,
    Made,
    Topic,
    create,
    known_topics,
    missing,
    settings_of,
    topic_in,
    unseen_of,
    waiting,
    with_admin,
)
from bridge.core.message import Refusal
from bridge.delay.duration import write_duration
from bridge.delay.naming import Naming
from bridge.settings import Settings

log = structlog.get_logger("postdate")

#: An intake topic, and where it leads.
Pair = tuple[Topic, Topic | Refusal]


def plan(settings: Settings) -> list[Topic]:
    """What ``declare`` makes where it is missing."""
    intakes = [
        Topic(name, naming.intercept, 0, 0, True)
        for name in settings.routes_of("kafka")
        for naming in settings.routes[name].namings()
        if not naming.is_rule
    ]
    return intakes + level_plan(settings)


def verify(settings: Settings) -> list[Finding]:
    """How each topic of the routes stands; changes nothing. Raises ``BrokerUnavailable``."""

    async def ask(admin: AIOKafkaAdminClient) -> list[Finding]:
        known, pairs = await _look(settings, admin)
        has = await _settings_of(admin, pairs)
        levels = await judge_levels(settings, known, admin, _targets(pairs, has))
        return [*_judge(settings, known, pairs), *_unlike(settings, pairs, has), *levels]

    return with_admin(settings, ask)


def declare(settings: Settings) -> tuple[list[Made], list[str]]:
    """Make what is missing: intake topics like the topic they deliver to, if that is there, and what routes without a
    store need.

    Returns what was made, was there or waits, and a warning for each topic of the consumers' that is missing. Raises
    ``TopologyMismatch`` before anything is made where a topic would lose records, ``Refused`` for a lack of rights,
    ``BrokerUnavailable``.
    """

    async def make(admin: AIOKafkaAdminClient) -> tuple[list[Made], list[str]]:
        known, pairs = await _look(settings, admin)
        levels = await sound_levels(settings, known, admin)
        made: list[Made] = []
        sizes: list[Topic] = []
        has = await _settings_of(admin, pairs)
        warnings = [one.text for one in _unlike(settings, pairs, has)]
        for intake, target in pairs:
            sized = _sized(intake, target)
            new = bool(sized and not intake.partitions)
            if sized:
                sizes.append(sized)
                if new:
                    config = intake_config(_of(target, has), settings.kafka.intake_retention)
                    await create(admin, sized, config)
            made.append(Made(intake, new, waits=sized is None))
            warnings += _warnings(intake, sized, target)
            if new and isinstance(target, Topic) and target.name not in has:
                warnings.append(_not_asked(intake, target))
        waiting_routes = {one.topic.route for one in made if one.waits}
        made += await make_levels(settings, levels, sizes, _targets(pairs, has), waiting_routes, admin)
        return made, warnings + [one.text for one in _unmatched(settings, known)]

    return with_admin(settings, make)


def make_again(settings: Settings) -> None:
    """``declare`` while postdate runs, for topics that somebody deleted. Logs each topic that it makes. Raises as
    ``declare`` does."""
    made, _ = declare(settings)
    for one in made:
        if one.new:
            log.info("declared", kind="topic", name=one.topic.name, route=one.topic.route)


def _sized(intake: Topic, target: Topic | Refusal) -> Topic | None:
    """An intake topic as it is, or as it is to be made; None where nobody can say how many partitions it needs."""
    if intake.partitions:
        return intake
    return None if isinstance(target, Refusal) or not target.partitions else replace(target, name=intake.name)


def _warnings(intake: Topic, sized: Topic | None, target: Topic | Refusal) -> list[str]:
    if isinstance(target, Refusal):
        return [target.text]
    if sized is None:
        return [waiting(intake, target)]
    if not target.partitions:
        return [missing(target)]
    few = _few(sized, target)
    return [few] if few else []


async def _look(settings: Settings, admin: AIOKafkaAdminClient) -> tuple[Known, list[Pair]]:
    """The topics that there are, and which of those that the settings speak of may not be seen."""
    known = await known_topics(admin)
    ours = {topic.name for topic in plan(settings)}
    targets = {topic.name for _, topic in _pairs(settings, known) if isinstance(topic, Topic)}
    allowed = {name for route in settings.routes_of("kafka") for name in settings.routes[route].allow_to}
    known.unseen = await unseen_of(admin, (ours | targets | allowed) - known.keys())
    return known, list(_pairs(settings, known))


async def _settings_of(admin: AIOKafkaAdminClient, pairs: Sequence[Pair]) -> dict[str, Config]:
    """Of the topics that there are."""
    topics = [topic for pair in pairs for topic in pair if isinstance(topic, Topic) and topic.partitions]
    return await settings_of(admin, dict.fromkeys(topic.name for topic in topics), ASKED)


def _of(topic: Topic | Refusal, has: Mapping[str, Config]) -> Config:
    return has.get(topic.name, Config()) if isinstance(topic, Topic) else Config()


def _targets(pairs: Sequence[Pair], has: Mapping[str, Config]) -> dict[str, list[tuple[Topic, Config]]]:
    """By route, the topics that it delivers to and that are there."""
    found: dict[str, list[tuple[Topic, Config]]] = {}
    for intake, target in pairs:
        if isinstance(target, Topic) and target.partitions:
            found.setdefault(intake.route, []).append((target, _of(target, has)))
    return found


def _unlike(settings: Settings, pairs: Sequence[Pair], has: Mapping[str, Config]) -> Iterator[Finding]:
    """The intake topics that are less safe than the topics where they lead, or take records of another size."""
    retention_ms = settings.kafka.intake_retention
    for intake, target in pairs:
        if intake.partitions and isinstance(target, Topic) and target.partitions:
            its = _of(target, has)
            if text := intake_falls_short(intake, _of(intake, has), target, its, retention_ms):
                yield Finding(intake, "unlike", text)


def _not_asked(intake: Topic, target: Topic) -> str:
    return (
        f"topic '{intake.name}' of route {intake.route} has the broker's own limits, because postdate may not read the "
        f"settings of '{target.name}' (permission DescribeConfigs). Compare {SIZE} and {INSYNC} by hand"
    )


def _pairs(settings: Settings, known: Known) -> Iterator[Pair]:
    """Each intake topic, there or named by the settings, and where it leads."""
    namings = [(name, naming) for name in settings.routes_of("kafka") for naming in settings.routes[name].namings()]
    for name, naming in namings:
        aim = Aim(name, (naming,), taken=namings)
        for topic in _matching(naming, known) if naming.is_rule else [naming.intercept]:
            target = aim.target(topic.encode(), ())
            led = target if isinstance(target, Refusal) else topic_in(known, name, target, ours=False)
            yield topic_in(known, name, topic, ours=True), led


def _few(intake: Topic, target: Topic) -> str:
    """What a person is told of an intake topic that is there, and narrower than where it leads; "" where it is not."""
    if not 0 < intake.partitions < target.partitions:
        return ""
    return (
        f"topic '{intake.name}' of route {intake.route} has {_partitions(intake)} and '{target.name}', where it leads, "
        f"has {target.partitions}: so less is taken and delivered side by side, and a number that a producer gives may "
        f"not exist; give it {target.partitions} (kafka-topics.sh --alter), at best while nothing is on its way, "
        "because that moves keys to other partitions"
    )


def _partitions(topic: Topic) -> str:
    return f"{topic.partitions} partition{'s' if topic.partitions > 1 else ''}"


def _matching(naming: Naming, known: Known) -> list[str]:
    return [topic for topic in sorted(known) if naming.text_in(topic) is not None]


def _unmatched(settings: Settings, known: Known) -> Iterator[Finding]:
    """The rules that have no topic yet."""
    refresh = write_duration(settings.kafka.refresh)
    for name in settings.routes_of("kafka"):
        for naming in settings.routes[name].namings():
            if naming.is_rule and not _matching(naming, known):
                text = f"no topic matches '{naming.intercept}' of route {name} yet; a new one is read within {refresh}"
                yield Finding(Topic(name, naming.intercept, 0, 0, True), "none", text)


def _absent(topic: Topic) -> Finding:
    return Finding(topic, "unseen" if topic.unseen else "missing", missing(topic))


def _judge(settings: Settings, known: Known, pairs: Sequence[Pair]) -> Iterator[Finding]:
    for intake, target in pairs:
        if intake.partitions:
            yield Finding(intake, "same")
        elif isinstance(target, Topic):
            absent = _absent(intake)
            yield absent if target.partitions else Finding(intake, "waits", waiting(intake, target))
        if not isinstance(target, Refusal) and (few := _few(intake, target)):
            yield Finding(intake, "few", few)
        if isinstance(target, Refusal):
            yield Finding(intake, "different", target.text)
        elif not target.partitions:
            yield _absent(target)
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
            allowed = topic_in(known, name, one, ours=False)
            yield Finding(allowed, "same") if allowed.partitions else _absent(allowed)
    yield from _unmatched(settings, known)
