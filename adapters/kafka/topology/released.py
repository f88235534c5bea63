"""The marker topic of transactional routes: what it needs, and how it compares. Pure.

It has a partition for each shard. Kafka compresses the markers and dates them by its own clock. They are kept for as
long as postdate may be away, as the records of an intake are.
"""

from __future__ import annotations

from dataclasses import replace

from adapters.kafka.delivered import marker_topic
from adapters.kafka.topology.findings import (
    CLOCK,
    INSYNC,
    POLICY,
    RETENTION,
    Difference,
    Shortfall,
    TopicFinding,
    absent,
)
from adapters.kafka.topology.topics import Topic, TopicConfig
from bridge.desk.topology import Standing
from bridge.settings import Settings

MARKER_ASKED = (INSYNC, POLICY, RETENTION, CLOCK)


def transactional_routes(settings: Settings) -> list[str]:
    """Return the Kafka routes whose records leave in transactions."""
    return [
        name
        for name in settings.routes_of("kafka")
        if settings.routes[name].stored and settings.release_of(name) == "transactional"
    ]


def planned_markers(settings: Settings) -> list[Topic]:
    """Return the marker topic, under the name of the first route that needs it; empty if none does."""
    return [Topic(name, marker_topic(settings.kafka.group), 0, 0, True) for name in transactional_routes(settings)[:1]]


def judged_markers(settings: Settings, topic: Topic, has: TopicConfig) -> TopicFinding:
    """Compare the marker topic with what it needs. Settings that may not be read are not judged."""
    if not topic.partitions:
        return replace(absent(topic), markers=True)
    found = []
    if topic.partitions < settings.redis.shards:
        found.append(Shortfall(Difference.PARTITIONS, topic.partitions, settings.redis.shards))
    if "compact" in has.values.get(POLICY, ""):
        found.append(Shortfall(Difference.COMPACTED_MARKERS))
    kept_ms, wanted_ms = int(has.values.get(RETENTION, -1)), settings.kafka.intake_retention
    if 0 <= kept_ms < wanted_ms:
        found.append(Shortfall(Difference.SHORT_RETENTION, kept_ms, wanted_ms))
    if has.values.get(CLOCK, "LogAppendTime") != "LogAppendTime":
        found.append(Shortfall(Difference.PRODUCERS_CLOCK))
    return TopicFinding(topic, Standing.DIFFERENT if found else Standing.SAME, shortfalls=tuple(found), markers=True)


def marker_config(settings: Settings) -> dict[str, str]:
    """Return the settings of a new marker topic."""
    return {
        POLICY: "delete",
        RETENTION: str(settings.kafka.intake_retention),
        CLOCK: "LogAppendTime",
        "compression.type": "gzip",
    }
