"""Compares the topics of the routes with the cluster's, and creates postdate's own where they are missing. Blocking.

postdate creates the intake topics that the settings name, the marker topic of transactional routes, and the topics of
routes without a store. Producers create the topics that a naming rule matches. Consumers create the target topics,
because they know how many partitions they need.

A record must be as safe, and may be as large, in an intake topic as in its target. So an intake is created with the
target's replicas, ``min.insync.replicas`` and ``max.message.bytes``. A record that fits the intake fits the target:
postdate removes the delay headers, and leaves its own out where they do not fit (``partition_queue.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import structlog
from aiokafka.admin import AIOKafkaAdminClient

from adapters.kafka.levels.level_topics import made_with, unfit
from adapters.kafka.routing import Router
from adapters.kafka.topology.findings import (
    INSYNC,
    POLICY,
    RETENTION,
    SIZE,
    Difference,
    Shortfall,
    TopicFinding,
    absent,
)
from adapters.kafka.topology.released import (
    MARKER_ASKED,
    judged_markers,
    marker_config,
    planned_markers,
    transactional_routes,
)
from adapters.kafka.topology.topics import (
    NOT_THERE,
    KnownTopics,
    Topic,
    TopicConfig,
    create,
    known_topics,
    settings_of,
    topic_in,
    unseen_of,
    until_shown,
    with_admin,
)
from bridge.core.errors import TopologyMismatch
from bridge.core.message import Refusal
from bridge.delay.naming import Naming
from bridge.desk.topology import Standing
from bridge.settings import Route, Settings

log = structlog.get_logger("postdate")

#: An intake topic and its target.
Pair = tuple[Topic, Topic | Refusal]
#: A topic as ``declare`` left it: made, there, or waiting for its target.
Declared = tuple[Topic, Standing]
#: By route its intakes and targets that exist, with their settings as far as they may be read.
ConfigsByRoute = Mapping[str, Sequence[tuple[Topic, TopicConfig]]]
_NO_TOPICS: ConfigsByRoute = MappingProxyType({})
_ASKED = (INSYNC, SIZE, POLICY, RETENTION)
#: What a record may grow by when it waits or becomes a dead letter: an id, a due time, a reason, longer lengths.
_ADDED_BYTES = 1 << 20


# -- commands --------------------------------------------------------------------------------------------------------


def plan(settings: Settings) -> list[Topic]:
    """The topics that ``declare`` creates where they are missing."""
    intakes = [
        Topic(name, naming.intercept, 0, 0, True)
        for name in settings.routes_of("kafka")
        for naming in settings.routes[name].namings()
        if not naming.is_rule
    ]
    return (
        intakes
        + planned_markers(settings)
        + [Topic(route, name, 0, 0, True) for route, name, _ in _level_configs(settings)]
    )


def verify(settings: Settings) -> list[TopicFinding]:
    """Compare every topic of the routes; change nothing. Raises ``BrokerUnavailable``."""

    async def ask(admin: AIOKafkaAdminClient) -> list[TopicFinding]:
        known, pairs = await _look(settings, admin)
        has = await _settings_of(admin, pairs)
        levels = await _judge_levels(settings, known, admin, _by_route(pairs, has))
        markers = await _judge_markers(settings, known, admin)
        return [*_judge(settings, known, pairs), *_unlike(settings, pairs, has), *markers, *levels]

    return with_admin(settings, ask)


def declare(settings: Settings) -> tuple[list[Declared], list[str]]:
    """Create what is missing: intake topics like their targets, and the topics of routes without a store.

    Returns the topics that were created, existed or wait, and warnings about the other topics. Raises
    ``TopologyMismatch`` before anything is created if a topic would lose records, ``Refused`` for a missing right,
    ``BrokerUnavailable``.
    """

    async def make(admin: AIOKafkaAdminClient) -> tuple[list[Declared], list[str]]:
        known, pairs = await _look(settings, admin)
        levels = await _judge_levels(settings, known, admin)
        if wrong := [level.text for level in levels if level.state is Standing.DIFFERENT]:
            raise TopologyMismatch("\n".join(wrong))
        created: list[Declared] = []
        sizes: list[Topic] = []
        has = await _settings_of(admin, pairs)
        warnings = [*_unlike(settings, pairs, has)]
        for intake, target in pairs:
            if intake.name in {topic.name for topic, _ in created}:  # it has several targets
                warnings += [absent(target)] if isinstance(target, Topic) and not target.partitions else []
                continue
            sized = _sized(intake, target)
            new = bool(sized and not intake.partitions)
            if sized:
                sizes.append(sized)
                if new:
                    config = _intake_config(_config_of(target, has), settings.kafka.intake_retention)
                    await create(admin, sized, config)
            created.append((intake, Standing.WAITS if sized is None else _standing(new)))
            warnings += _warnings(intake, sized, target)
            if new and isinstance(target, Topic) and target.name not in has:
                warnings.append(TopicFinding(intake, Standing.UNLIKE, target, (Shortfall(Difference.UNCHECKED),)))
        waiting_routes = {topic.route for topic, state in created if state is Standing.WAITS}
        created += await _make_levels(settings, levels, sizes, _by_route(pairs, has), waiting_routes, admin)
        created += await _make_markers(settings, known, pairs, has, admin)
        new_topics = [topic for topic, state in created if state is Standing.MADE]
        await until_shown(admin, {topic.name for topic in new_topics if not topic.unseen})
        warnings += [entry for entry in await _judge_markers(settings, known, admin) if entry.shortfalls]
        warnings += _unmatched(settings, known)
        return created, [entry.text for entry in warnings]

    return with_admin(settings, make)


def redeclare(settings: Settings) -> None:
    """Run ``declare`` while postdate runs, to recreate deleted topics. Log each new topic. Raises as ``declare``."""
    created, _ = declare(settings)
    for topic, state in created:
        if state is Standing.MADE:
            log.info("declared", kind="topic", name=topic.name, route=topic.route)


def _standing(new: bool) -> Standing:
    return Standing.MADE if new else Standing.THERE


# -- what exists -----------------------------------------------------------------------------------------------------


async def _look(settings: Settings, admin: AIOKafkaAdminClient) -> tuple[KnownTopics, list[Pair]]:
    """The existing topics, and which topics of the settings may not be seen."""
    known = await known_topics(admin)
    ours = {topic.name for topic in plan(settings)}
    targets = {topic.name for _, topic in pairs_of(settings, known) if isinstance(topic, Topic)}
    allowed = {topic for name in settings.routes_of("kafka") for topic in _others(settings.routes[name])}
    known.unseen = await unseen_of(admin, (ours | targets | allowed) - known.keys())
    return known, list(pairs_of(settings, known))


def pairs_of(settings: Settings, known: KnownTopics) -> Iterator[Pair]:
    """Each intake topic that exists or is named by the settings, with its target."""
    namings = [(name, naming) for name in settings.routes_of("kafka") for naming in settings.routes[name].pairs()]
    for name, naming in namings:
        router = Router(name, (naming,), taken=namings)
        for topic in _matching(naming, known) if naming.is_rule else [naming.intercept]:
            target = router.target(topic.encode(), ())
            led = target if isinstance(target, Refusal) else topic_in(known, name, target, ours=False)
            yield topic_in(known, name, topic, ours=True), led


def _matching(naming: Naming, known: KnownTopics) -> list[str]:
    return [topic for topic in sorted(known) if naming.text_in(topic) is not None]


async def _settings_of(admin: AIOKafkaAdminClient, pairs: Sequence[Pair]) -> dict[str, TopicConfig]:
    topics = [topic for pair in pairs for topic in pair if isinstance(topic, Topic) and topic.partitions]
    return await settings_of(admin, dict.fromkeys(topic.name for topic in topics), _ASKED)


def _config_of(topic: Topic | Refusal, has: Mapping[str, TopicConfig]) -> TopicConfig:
    return has.get(topic.name, TopicConfig()) if isinstance(topic, Topic) else TopicConfig()


def _by_route(pairs: Sequence[Pair], has: Mapping[str, TopicConfig]) -> dict[str, list[tuple[Topic, TopicConfig]]]:
    found: dict[str, list[tuple[Topic, TopicConfig]]] = {}
    for pair in pairs:
        for topic in pair:
            if isinstance(topic, Topic) and topic.partitions:
                found.setdefault(topic.route, []).append((topic, _config_of(topic, has)))
    return found


# -- intake topics ---------------------------------------------------------------------------------------------------


def _judge(settings: Settings, known: KnownTopics, pairs: Sequence[Pair]) -> Iterator[TopicFinding]:
    judged: set[str] = set()
    for intake, target in pairs:
        if intake.name in judged:  # it has several targets
            pass
        elif intake.partitions:
            yield TopicFinding(intake, Standing.SAME)
        elif isinstance(target, Topic):
            yield absent(intake) if target.partitions else TopicFinding(intake, Standing.WAITS, target)
        judged.add(intake.name)
        if isinstance(target, Refusal):
            yield TopicFinding(intake, Standing.DIFFERENT, refusal=target)
            continue
        yield from _few(intake, target)
        if not target.partitions:
            yield absent(target)
        elif _keeps_numbers(settings, intake.route) and intake.partitions > target.partitions:
            yield TopicFinding(target, Standing.DIFFERENT, intake)
        else:
            yield TopicFinding(target, Standing.SAME)
    for name in settings.routes_of("kafka"):
        for other in _others(settings.routes[name]):
            allowed = topic_in(known, name, other, ours=False)
            yield TopicFinding(allowed, Standing.SAME) if allowed.partitions else absent(allowed)
    yield from _unmatched(settings, known)


def _keeps_numbers(settings: Settings, route: str) -> bool:
    """Whether every partition number must be kept. A retry route keeps one where it can."""
    return settings.partitioner_of(route) == "same" and not settings.routes[route].retries


def _others(route: Route) -> list[str]:
    """The topics of a route beside those in ``deliver_to``."""
    return [*route.allow_to, *filter(None, (route.last_target,))]


def _unmatched(settings: Settings, known: KnownTopics) -> Iterator[TopicFinding]:
    """Naming rules that match no topic yet."""
    for name in settings.routes_of("kafka"):
        for naming in settings.routes[name].namings():
            if naming.is_rule and not _matching(naming, known):
                rule = Topic(name, naming.intercept, 0, 0, True)
                yield TopicFinding(rule, Standing.NONE, refresh_ms=settings.kafka.refresh)


def _few(intake: Topic, target: Topic) -> Iterator[TopicFinding]:
    if 0 < intake.partitions < target.partitions:
        yield TopicFinding(intake, Standing.FEW, target)


def _unlike(settings: Settings, pairs: Sequence[Pair], has: Mapping[str, TopicConfig]) -> Iterator[TopicFinding]:
    """Existing intake topics that are less safe than their targets, or accept records of another size."""
    for intake, target in pairs:
        if intake.partitions and isinstance(target, Topic) and target.partitions:
            found = intake_shortfalls(
                intake, _config_of(intake, has), target, _config_of(target, has), settings.kafka.intake_retention
            )
            if found:
                yield TopicFinding(intake, Standing.UNLIKE, target, found)


def intake_shortfalls(
    intake: Topic, has: TopicConfig, target: Topic, its: TopicConfig, retention_ms: int
) -> tuple[Shortfall, ...]:
    """Where an existing intake falls short of its target. Settings that may not be read are not judged. Pure."""
    found = [*_less_safe(intake, has, target, its)]
    size, wanted = _number(has, SIZE), _number(its, SIZE)
    if size is not None and wanted is not None and size != wanted:
        kind = Difference.RECORDS_SMALLER if size < wanted else Difference.RECORDS_LARGER
        found.append(Shortfall(kind, size, wanted))
    if "compact" in has.values.get(POLICY, ""):
        found.append(Shortfall(Difference.COMPACTED))
    kept_ms = _number(has, RETENTION)
    if kept_ms is not None and 0 <= kept_ms < retention_ms:
        found.append(Shortfall(Difference.SHORT_RETENTION, kept_ms, retention_ms))
    return tuple(found)


def _less_safe(topic: Topic, has: TopicConfig, target: Topic, its: TopicConfig) -> Iterator[Shortfall]:
    if topic.replicas < target.replicas:
        yield Shortfall(Difference.REPLICAS, topic.replicas, target.replicas)
    insync, wanted = _number(has, INSYNC), _number(its, INSYNC)
    if insync is not None and wanted is not None and insync < min(wanted, topic.replicas):
        yield Shortfall(Difference.INSYNC, insync, wanted)


def _number(config: TopicConfig, name: str) -> int | None:
    return int(config.values[name]) if name in config.values else None


def _sized(intake: Topic, target: Topic | Refusal) -> Topic | None:
    """An intake topic as it is, or as it is to be created; None while its target, and so its size, is unknown."""
    if intake.partitions:
        return intake
    return None if isinstance(target, Refusal) or not target.partitions else replace(target, name=intake.name)


def _intake_config(target: TopicConfig, retention_ms: int) -> dict[str, str]:
    copied = {name: target.own[name] for name in (INSYNC, SIZE) if name in target.own}
    return {POLICY: "delete", RETENTION: str(retention_ms), **copied}


def _warnings(intake: Topic, sized: Topic | None, target: Topic | Refusal) -> list[TopicFinding]:
    if isinstance(target, Refusal):
        return [TopicFinding(intake, Standing.DIFFERENT, refusal=target)]
    if sized is None:
        return [TopicFinding(intake, Standing.WAITS, target)]
    return [*_few(sized, target)] if target.partitions else [absent(target)]


# -- the marker topic of transactional routes ------------------------------------------------------------------------


async def _judge_markers(settings: Settings, known: KnownTopics, admin: AIOKafkaAdminClient) -> list[TopicFinding]:
    """Compare the marker topic. Raises the errors of aiokafka and of the network."""
    topics = [topic_in(known, topic.route, topic.name, ours=True) for topic in planned_markers(settings)]
    has = await settings_of(admin, [topic.name for topic in topics if topic.partitions], MARKER_ASKED)
    return [judged_markers(settings, topic, has.get(topic.name, TopicConfig())) for topic in topics]


async def _make_markers(
    settings: Settings,
    known: KnownTopics,
    pairs: Sequence[Pair],
    has: Mapping[str, TopicConfig],
    admin: AIOKafkaAdminClient,
) -> list[Declared]:
    """Create the marker topic if it is missing. Raises ``Refused``, and the errors of aiokafka and of the network."""
    routes = transactional_routes(settings)
    targets = [target for _, target in pairs if isinstance(target, Topic) and target.route in routes]
    markers = []
    for marker in planned_markers(settings):
        topic = topic_in(known, marker.route, marker.name, ours=True)
        if not topic.partitions:  # as safe as the safest target
            replicas = max((target.replicas for target in targets), default=0)
            config = _in_sync(marker_config(settings), [_config_of(target, has) for target in targets], replicas)
            await create(admin, replace(topic, partitions=settings.redis.shards, replicas=replicas), config)
        markers.append((topic, _standing(not topic.partitions)))
    return markers


# -- topics of routes without a store --------------------------------------------------------------------------------


def _level_configs(settings: Settings) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Route, name and settings of each topic."""
    for route in settings.routes_of("kafka"):
        if settings.routes[route].mode == "levels":
            for name, config in made_with(settings, route).items():
                yield route, name, config


async def _judge_levels(
    settings: Settings, known: KnownTopics, admin: AIOKafkaAdminClient, likes: ConfigsByRoute = _NO_TOPICS
) -> list[TopicFinding]:
    """Compare them with the settings, and with the intakes and targets of their route. Raises the errors of aiokafka
    and of the network."""
    wanted = [(name, config) for _, name, config in _level_configs(settings)]
    asked = {setting for _, config in wanted for setting in config}
    has = await settings_of(admin, [name for name, _ in wanted if name in known], [*asked, INSYNC])
    found = []
    for route, name, config in _level_configs(settings):
        topic, its = topic_in(known, route, name, ours=True), has.get(name, TopicConfig())
        if not topic.partitions:
            found.append(absent(topic))
        elif wrong := unfit(its.values, config):
            found.append(TopicFinding(topic, Standing.DIFFERENT, shortfalls=(wrong,)))
        else:
            found.append(TopicFinding(topic, Standing.SAME))
            for like, like_config in likes.get(route, ()):
                if shortfalls := level_shortfalls(topic, its, like, like_config):
                    found.append(TopicFinding(topic, Standing.UNLIKE, like, shortfalls))
    return found


def level_shortfalls(level: Topic, has: TopicConfig, like: Topic, its: TopicConfig) -> tuple[Shortfall, ...]:
    """Where a topic with waiting records or dead letters is less safe than a target, or smaller than an intake.
    Pure."""
    if not like.ours:
        return tuple(_less_safe(level, has, like, its))
    size, largest = _number(has, SIZE), _number(its, SIZE)
    if size is None or largest is None or size >= largest + _ADDED_BYTES:
        return ()
    return (Shortfall(Difference.NO_ROOM, size, largest + _ADDED_BYTES),)


async def _make_levels(
    settings: Settings,
    found: Iterable[TopicFinding],
    intakes: Iterable[Topic],
    likes: ConfigsByRoute,
    waiting: Collection[str],
    admin: AIOKafkaAdminClient,
) -> list[Declared]:
    """Create the missing ones.

    Each gets the most partitions of its route's ``intakes``. Replicas and in-sync replicas follow its targets.
    Routes that are ``waiting`` for their target get none before an intake exists.

    Raises ``Refused``, and the errors of aiokafka and of the network.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for intake in intakes:
        partitions, replicas = sizes.get(intake.route, NOT_THERE)
        sizes[intake.route] = max(partitions, intake.partitions), max(replicas, intake.replicas)
    configs = {name: config for _, name, config in _level_configs(settings)}
    changed = []
    for finding in found:
        topic, new = finding.topic, finding.state in (Standing.MISSING, Standing.UNSEEN)
        if new and topic.route in waiting and topic.route not in sizes:
            changed.append((topic, Standing.WAITS))
            continue
        if new:
            partitions, replicas = sizes.get(topic.route, NOT_THERE)
            its = likes.get(topic.route, ())
            replicas = max(replicas, *(like.replicas for like, _ in its if not like.ours), 0)
            config = level_config(configs[topic.name], its, replicas)
            await create(admin, replace(topic, partitions=partitions, replicas=replicas), config)
        changed.append((topic, _standing(new)))
    return changed


def level_config(
    config: Mapping[str, str], likes: Iterable[tuple[Topic, TopicConfig]], replicas: int
) -> dict[str, str]:
    """Settings of a new topic: the strictest in-sync replicas of its targets, and room for a record of the largest
    size that an intake or target accepts. Pure."""
    likes = list(likes)
    largest = max((_number(its, SIZE) or 0 for _, its in likes), default=0)
    larger = {**config, SIZE: str(max(int(config[SIZE]), largest + _ADDED_BYTES))}
    return _in_sync(larger, [its for like, its in likes if not like.ours], replicas)


def _in_sync(config: dict[str, str], targets: Iterable[TopicConfig], replicas: int) -> dict[str, str]:
    """Return the settings of a new topic with the strictest in-sync replicas of the targets, as far as it has them."""
    insync = [int(target.own[INSYNC]) for target in targets if INSYNC in target.own]
    return {**config, INSYNC: str(max(1, min(max(insync), replicas)))} if insync else config
