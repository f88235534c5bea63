"""Compares the topics of routes without a store with the broker's, and makes those that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from aiokafka.admin import AIOKafkaAdminClient

from adapters.kafka.levels.plan import made_with, unfit
from adapters.kafka.topology.likeness import INSYNC, insync_of, level_falls_short
from adapters.kafka.topology.topics import (
    NOT_THERE,
    Config,
    Finding,
    Known,
    Made,
    Topic,
    create,
    missing,
    settings_of,
    topic_in,
)
from bridge.core.errors import TopologyMismatch
from bridge.settings import Settings

#: By route the topics that it delivers to, with their settings as far as they may be known.
Targets = Mapping[str, Sequence[tuple[Topic, Config]]]
_NONE: Targets = MappingProxyType({})


def level_plan(settings: Settings) -> list[Topic]:
    """What ``make_levels`` makes where it is missing."""
    return [Topic(route, name, 0, 0, True) for route, name, _ in _wanted(settings)]


async def judge_levels(
    settings: Settings, known: Known, admin: AIOKafkaAdminClient, targets: Targets = _NONE
) -> list[Finding]:
    """How each of them stands, also beside the topics where its route leads. Raises the errors of aiokafka and of the
    network."""
    wanted = [(name, config) for _, name, config in _wanted(settings)]
    asked = {setting for _, config in wanted for setting in config}
    has = await settings_of(admin, [name for name, _ in wanted if name in known], [*asked, INSYNC])
    found = []
    for route, name, config in _wanted(settings):
        topic = topic_in(known, route, name, ours=True)
        if not topic.partitions:
            found.append(Finding(topic, "unseen" if topic.unseen else "missing", missing(topic)))
        elif why := unfit(has.get(name, Config()).values, config):
            found.append(Finding(topic, "different", f"topic '{name}' of route {route} {why}"))
        else:
            found.append(Finding(topic, "same"))
            unlike = (level_falls_short(topic, has.get(name, Config()), *target) for target in targets.get(route, ()))
            found += [Finding(topic, "unlike", text) for text in unlike if text]
    return found


async def sound_levels(settings: Settings, known: Known, admin: AIOKafkaAdminClient) -> list[Finding]:
    """The same. Raises ``TopologyMismatch`` where a topic would lose records."""
    found = await judge_levels(settings, known, admin)
    if wrong := [one.text for one in found if one.state == "different"]:
        raise TopologyMismatch("\n".join(wrong))
    return found


async def make_levels(
    settings: Settings,
    found: Iterable[Finding],
    intakes: Iterable[Topic],
    targets: Targets,
    waiting: Collection[str],
    admin: AIOKafkaAdminClient,
) -> list[Made]:
    """Make what was ``found`` missing, each topic with as many partitions as the largest of its route's ``intakes`` and
    as safe as its ``targets``. Of the routes that are ``waiting`` for the topic where an intake leads nothing is made
    before there is an intake.

    Raises ``Refused``, and the errors of aiokafka and of the network.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for intake in intakes:
        partitions, replicas = sizes.get(intake.route, NOT_THERE)
        sizes[intake.route] = max(partitions, intake.partitions), max(replicas, intake.replicas)
    configs = {name: config for _, name, config in _wanted(settings)}
    made = []
    for one in found:
        topic, new = one.topic, one.state in ("missing", "unseen")
        if new and topic.route in waiting and topic.route not in sizes:
            made.append(Made(topic, new=False, waits=True))
            continue
        if new:
            partitions, replicas = sizes.get(topic.route, NOT_THERE)
            likes = targets.get(topic.route, ())
            replicas = max(replicas, *(target.replicas for target, _ in likes), 0)
            config = {**configs[topic.name], **insync_of((its for _, its in likes), replicas)}
            await create(admin, replace(topic, partitions=partitions, replicas=replicas), config)
        made.append(Made(topic, new))
    return made


def _wanted(settings: Settings) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    for route in settings.routes_of("kafka"):
        if settings.routes[route].mode == "levels":
            for name, config in made_with(settings, route).items():
                yield route, name, config
