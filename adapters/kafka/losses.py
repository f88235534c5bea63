"""Says what became of the topics behind the back of their reader: records that are gone, a topic that was made anew,
an offset that somebody has set.

Each time is a line in the log, with the offsets. In the health of the process a loss keeps its sentence for a day, so
that whoever looks the next morning sees it; an offset that a person has set keeps it for ten minutes.
"""

from __future__ import annotations

import time
from collections import Counter

import structlog
from aiokafka import TopicPartition

from bridge.delay.duration import write_moment
from bridge.telemetry.health import Health

log = structlog.get_logger("postdate")

_LOST_S = 24 * 3600.0
_RESET_S = 600.0


class Gone:
    """Counts and says it."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._offsets: Counter[str] = Counter()

    def removed(self, place: TopicPartition, start: int, end: int) -> None:
        """Kafka has removed the offsets from ``start`` to before ``end``, which nobody has read."""
        topic, partition = place
        self._offsets[topic] += end - start
        log.warning("records are gone", topic=topic, partition=partition, first_offset=start, next_offset=end)
        text = (
            f"Kafka removed {self._offsets[topic]} offsets of topic {topic} before postdate could read them, the last "
            f"time {start} to {end - 1} of partition {partition} ({_now()}): the topic keeps its records for too short "
            "a time (retention), or somebody deleted them"
        )
        self._health.say(f"kafka removed {topic}", text, _LOST_S)

    def made_anew(self, place: TopicPartition) -> None:
        """The topic was deleted, and another one made under its name."""
        log.warning("a topic was made anew", topic=place.topic, partition=place.partition)

    def set_by_others(self, place: TopicPartition, offset: int) -> None:
        """The group's offset bears no note of this cluster's: nobody can tell which topic of this name it is about."""
        topic, partition = place
        log.warning("an offset was set by others", topic=topic, partition=partition, offset=offset)
        text = (
            f"the group's offset {offset} of partition {partition} of topic {topic} was set by another tool than this "
            f"postdate ({_now()}), and is believed: nothing before it is taken, and what was taken once is not parked "
            "again"
        )
        self._health.say(f"kafka offset {topic}", text, _RESET_S)

    def lost(self, place: TopicPartition, end: int, read: int) -> None:
        """Kafka's partition ends at ``end``, and had offsets up to before ``read`` once."""
        topic, partition = place
        log.warning("a partition ends before what was read", topic=topic, partition=partition, end=end, read=read)
        text = (
            f"Kafka lost the offsets {end} to {read - 1} of partition {partition} of topic {topic}, which had been "
            f"read ({_now()}): it crashed, or chose a leader that did not have them; the partition is read once more"
        )
        self._health.say(f"kafka lost {topic}", text, _LOST_S)


def _now() -> str:
    return write_moment(int(time.time() * 1000))
