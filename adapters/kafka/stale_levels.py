"""Counts the records of level topics and intakes, and deletes stale level topics. Blocking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError, KafkaError, for_code

from adapters.kafka.client import connection, start
from adapters.kafka.levels.level_topics import level_topics, route_in
from adapters.kafka.topology.topics import KnownTopics, delete, known_topics, with_admin
from bridge.desk.leftovers import Intake, Place, Use
from bridge.settings import Settings

_Offsets = Mapping[TopicPartition, int]
#: Kafka creates its offsets topic at the first request of any group.
_COORDINATOR_S = 10.0
#: Most offsets to read for a count of the records, and the longest time for it.
_COUNTED_MAX = 1000
_COUNTED_S = 3.0


def count(settings: Settings) -> list[Place]:
    """Every topic of routes without a store, and the stale ones: of these routes, of routes that have a store now,
    and of removed routes.

    Raises ``BrokerUnavailable``.
    """
    return with_admin(settings, partial(_count, settings))


def remove(settings: Settings, everything: bool, force: bool, dry_run: bool) -> list[Place]:
    """Delete stale, empty topics, or all topics that ``setup`` created for these routes. Return every candidate with
    the reason it was kept.

    Topics of other routes stay: they may belong to another installation with the same group. ``force`` also deletes
    topics with records. Raises ``BrokerUnavailable``, ``Refused``.
    """

    async def work(admin: AIOKafkaAdminClient) -> list[Place]:
        found = await _count(settings, admin)
        uses = (Use.OLD, Use.IN_USE) if everything else (Use.OLD,)
        about = [level for level in found if level.use in uses]
        judged = about if force else [replace(level, kept=why_kept(level, about)) for level in about]
        doomed = [level.name for level in judged if not level.kept]
        if doomed and not dry_run:
            await delete(admin, doomed)
        return judged

    return with_admin(settings, work)


def why_kept(level: Place, about: Sequence[Place]) -> str:
    """Why a candidate must stay; empty if it may go. Pure."""
    if level.messages:
        return f"it holds records: {level.messages}. Run this again when it is empty, or delete them with --force"
    if level.is_dead and any(other.route == level.route and other.messages for other in about):
        return "it goes last: records of the others may still become dead letters"
    return ""


def routes_with_levels_left(settings: Settings) -> list[str]:
    """Routes that have a store now, and level topics from before. Raises ``BrokerUnavailable``."""
    stored = [route for route in settings.routes_of("kafka") if settings.routes[route].stored]
    topics = {route: level_topics(settings, route) for route in stored}
    known = with_admin(settings, known_topics) if stored else {}
    return [route for route in stored if any(topics[route].every.text_in(name) is not None for name in known)]


def count_intakes(settings: Settings) -> list[Intake]:
    """The intake topics of each route; those of one naming rule are one.

    An instance that reads the levels of a route also reads its intake, and each route has its own group for its
    levels. So the members of that group are the intake's readers. Raises ``BrokerUnavailable``.
    """

    async def work(admin: AIOKafkaAdminClient) -> list[Intake]:
        known = await known_topics(admin)
        topics = {
            (route, naming.intercept): [name for name in known if naming.text_in(name) is not None]
            for route in settings.routes
            for naming in settings.routes[route].namings()
        }
        there = {tp: names for tp, names in topics.items() if names}
        if not there:
            return []
        read = await _read(admin, settings.kafka.group, True)
        readers = {route: await _members(admin, level_topics(settings, route).group) for route, _ in there}
        async with _consumer(settings) as consumer:
            waiting = {name: await _records(consumer, name, known, read) for names in there.values() for name in names}
        return [
            Intake(route, "topic", intercept, sum(waiting[name] for name in names), readers[route])
            for (route, intercept), names in there.items()
        ]

    return with_admin(settings, work)


async def _members(admin: AIOKafkaAdminClient, group: str) -> int:
    """The number of members of a group."""
    (answer,) = await admin.describe_consumer_groups([group])
    ((code, *described),) = answer.groups
    if code:
        raise for_code(code)
    return len(described[4])


@asynccontextmanager
async def _consumer(settings: Settings) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer to ask for offsets."""
    consumer = AIOKafkaConsumer(**connection(settings.kafka, "postdate levels"), isolation_level="read_committed")
    await start(consumer, settings.kafka)
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _count(settings: Settings, admin: AIOKafkaAdminClient) -> list[Place]:
    known = await known_topics(admin)
    gone = {route_in(settings, name) for name in known}.difference(settings.routes, [""])
    names = {route: _names(settings, route, known) for route in (*settings.routes, *sorted(gone))}
    if not any(names.values()):
        return []
    found = []
    async with _consumer(settings) as consumer:
        for route in [route for route, its in names.items() if its]:
            topics, routed = level_topics(settings, route), route in settings.routes
            read = await _read(admin, topics.group, routed)
            for name, old in names[route].items():
                is_dead = name == topics.dead
                waiting = await _waiting(consumer, name, known, {} if is_dead else read)
                use = Use.OLD if old else Use.MISSING if waiting is None else Use.IN_USE
                found.append(Place(route, "topic", name, waiting, use if routed else Use.NO_ROUTE, is_dead))
    return found


async def _read(admin: AIOKafkaAdminClient, group: str, routed: bool) -> _Offsets:
    """The group's committed offsets. Empty if postdate lost its right to read a removed route's group."""
    give_up = time.monotonic() + _COORDINATOR_S
    while True:
        try:
            return {tp: at.offset for tp, at in (await admin.list_consumer_group_offsets(group)).items()}
        except GroupCoordinatorNotAvailableError:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.2)
        except GroupAuthorizationFailedError:
            if routed:
                raise
            return {}


def _names(settings: Settings, route: str, known: KnownTopics) -> dict[str, bool]:
    """The topics of a route, and whether each is stale."""
    topics = level_topics(settings, route)
    in_use = route in settings.routes and settings.routes[route].mode == "levels"
    now = [*topics.levels.values(), topics.dead] if in_use else []
    ours = [name for name in sorted(known) if name == topics.dead or topics.every.text_in(name) is not None]
    old = [name for name in ours if name not in now]
    return {**dict.fromkeys(now, False), **dict.fromkeys(old, True)}


async def _waiting(consumer: AIOKafkaConsumer, name: str, known: KnownTopics, read: _Offsets) -> int | None:
    """The number of offsets behind ``read``. In postdate's own topics each is a record."""
    if name not in known:
        return None
    return sum(end - start for start, end in (await _unread(consumer, name, known, read)).values())


async def _unread(
    consumer: AIOKafkaConsumer, name: str, known: KnownTopics, read: _Offsets
) -> dict[TopicPartition, tuple[int, int]]:
    """The partitions of a topic with offsets behind ``read``: the first of them, and the end."""
    tps = [TopicPartition(name, number) for number in range(known[name][0])]
    first, end = await consumer.beginning_offsets(tps), await consumer.end_offsets(tps)
    starts = {tp: max(first[tp], read.get(tp, 0)) for tp in tps}
    return {tp: (start, end[tp]) for tp, start in starts.items() if start < end[tp]}


async def _records(consumer: AIOKafkaConsumer, name: str, known: KnownTopics, read: _Offsets) -> int:
    """The number of records of an intake topic behind ``read``. Transactions leave offsets without records, so a few
    are read and counted. If that fails or takes too long, the offsets are counted."""
    unread = await _unread(consumer, name, known, read)
    offsets = sum(end - start for start, end in unread.values())
    if not 0 < offsets <= _COUNTED_MAX:
        return offsets
    consumer.assign(list(unread))
    for tp, (first, _) in unread.items():
        consumer.seek(tp, first)
    records = 0
    try:
        async with asyncio.timeout(_COUNTED_S):
            while any([await consumer.position(tp) < end for tp, (_, end) in unread.items()]):
                for tp, fetched in (await consumer.getmany(timeout_ms=100)).items():
                    records += sum(record.offset < unread[tp][1] for record in fetched)
    except (TimeoutError, KafkaError, UnicodeDecodeError):
        return offsets
    return records
