"""Compares the topics of routes without a store with the broker's, and makes those that are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from adapters.kafka.levels import made_with, unfit
from adapters.kafka.topics import NOT_THERE, Finding, Known, Made, Topic, create, missing, topic_in
from bridge.errors import TopologyMismatch
from bridge.settings import Settings


def level_plan(settings: Settings) -> list[Topic]:
    """What ``make_levels`` makes where it is missing."""
    return [Topic(route, name, 0, 0, True) for route, name, _ in _wanted(settings)]


async def judge_levels(settings: Settings, known: Known, admin: AIOKafkaAdminClient) -> list[Finding]:
    """How each of them stands. Raises the errors of aiokafka and of the network."""
    has = await _configs(admin, [name for _, name, _ in _wanted(settings) if name in known])
    found = []
    for route, name, config in _wanted(settings):
        topic = topic_in(known, route, name, ours=True)
        if not topic.partitions:
            found.append(Finding(topic, "missing", missing(topic)))
        elif why := unfit(has.get(name, {}), config):
            found.append(Finding(topic, "different", f"topic '{name}' of route {route} {why}"))
        else:
            found.append(Finding(topic, "same"))
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
    waiting: Collection[str],
    admin: AIOKafkaAdminClient,
) -> list[Made]:
    """Make what was ``found`` missing, each topic with as many partitions as the largest of its route's ``intakes``. Of
    the routes that are ``waiting`` for the topic where an intake leads nothing is made before there is an intake.

    Raises ``Refused``, and the errors of aiokafka and of the network.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for intake in intakes:
        partitions, replicas = sizes.get(intake.route, NOT_THERE)
        sizes[intake.route] = max(partitions, intake.partitions), max(replicas, intake.replicas)
    configs = {name: config for _, name, config in _wanted(settings)}
    made = []
    for one in found:
        topic, new = one.topic, one.state == "missing"
        if new and topic.route in waiting and topic.route not in sizes:
            made.append(Made(topic, new=False, waits=True))
            continue
        if new:
            partitions, replicas = sizes.get(topic.route, NOT_THERE)
            await create(admin, replace(topic, partitions=partitions, replicas=replicas), configs[topic.name])
        made.append(Made(topic, new))
    return made


def _wanted(settings: Settings) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    for route in settings.routes_of("kafka"):
        if settings.routes[route].mode == "levels":
            for name, config in made_with(settings, route).items():
                yield route, name, config


async def _configs(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of topics; without those of a topic that this user may not ask about."""
    wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    if not wanted:
        return {}
    found = {}
    for answer in await admin.describe_configs(wanted):
        for code, _, _, name, entries in answer.resources:
            if not code:
                found[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return found
