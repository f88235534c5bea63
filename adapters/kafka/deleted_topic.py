"""Whether an intake topic was deleted and recreated: its unread records are lost, and Kafka does not say so.

Kafka deletes the group's offsets together with a topic. So postdate remembers by itself what it had read of each
partition, also while another topic of that name is not there yet, or while another member of the group has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice

from aiokafka import TopicPartition

from adapters.kafka.intake import Partition
from adapters.kafka.topology.topic_ids import TopicId
from bridge.delay.duration import write_moment
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

#: How long the loss is a warning, as that of RabbitMQ's queue is.
_SHOWN_S = 3600.0
#: Partitions remembered at most. A topic that is deleted for good stays among them until newer ones push it out.
_FORMER_MAX = 10_000


def recreated(topic: str, route: str, lost: str, now_ms: int, seen_ms: int | None) -> str:
    """Return the warning for a topic that was deleted and exists again, without a full stop. ``seen_ms``: when postdate
    last asked for its ends; None if it never did. Pure."""
    now = write_moment(now_ms)
    when = f"before {now}" if seen_ms is None else f"between {write_moment(seen_ms)} and {now}"
    return f"the intake topic {topic} of route {route} was deleted and recreated {when}. {lost}"


def lost_from(parts: Iterable[Partition]) -> tuple[str, int | None]:
    """Return what is lost with these partitions of a topic, without a full stop, and since when that is not known: the
    moment up to which postdate can count. ``operate.faults`` puts those of several instances together. Pure."""
    known = [part for part in parts if part.known is not None]
    if not known:
        return "Records in it that postdate had not read are lost. postdate cannot count them", None
    seen_ms = min(part.known.at_ms for part in known if part.known is not None)
    numbers = ", ".join(map(str, sorted(part.tp.partition for part in known)))
    return (
        f"Records in it that postdate had not read are lost. Unread records: {sum(map(unread, known)):,} at "
        f"{write_moment(seen_ms)} (in partitions: {numbers}). postdate cannot count later ones"
    ), seen_ms


def unread(part: Partition) -> int:
    """Return how many offsets of a partition were not read, as far as its last sighting tells. Pure."""
    return 0 if part.known is None else max(0, part.known.end - part.first_unread())


class DeletedTopics:
    """Remembers partitions that this process has read, and reports those whose topic was deleted and recreated."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._former: dict[TopicPartition, Partition] = {}
        #: The topics that a report was about, by name: the id of the new topic.
        self._reported: dict[str, TopicId] = {}

    def remember(self, parts: Iterable[Partition]) -> None:
        """Keep what was read of partitions that this process has no more."""
        for part in parts:
            self._former.pop(part.tp, None)
            self._former[part.tp] = part
        for tp in tuple(islice(self._former, max(0, len(self._former) - _FORMER_MAX))):
            del self._former[tp]

    def former(self) -> set[TopicPartition]:
        """Return the partitions of which it is not known whether their topic still exists."""
        return set(self._former)

    def changed_among(self, found: Mapping[str, TopicId]) -> list[Partition]:
        """Return the former partitions whose topic now has another id. Forget them, and those whose topic stayed: the
        member that has them remembers the rest."""
        judged = [self._former.pop(tp) for tp in self.former() if tp.topic in found]
        return [part for part in judged if part.topic_id != found[part.tp.topic]]

    def report(self, parts: Iterable[Partition], found: Mapping[str, TopicId]) -> None:
        """Report the topics of these partitions, once for each new topic."""
        by_topic: dict[str, list[Partition]] = {}
        for part in parts:
            by_topic.setdefault(part.tp.topic, []).append(part)
        for topic, lost in by_topic.items():
            if self._reported.get(topic) != found[topic]:
                self._reported[topic] = found[topic]
                text, seen_ms = lost_from(lost)
                sentence = recreated(topic, lost[0].route, text, int(time.time() * 1000), seen_ms)
                self._health.say(Subject("kafka", "recreated", topic), sentence, _SHOWN_S)

    def in_absent(self, topic: str, parts: Iterable[Partition]) -> str:
        """Return what is lost if ``topic``, which is not there, was deleted; "" if this process never read it."""
        read = {part.tp: part for part in (*self._former.values(), *parts) if part.tp.topic == topic}
        return f". If it was deleted: {lost_from(read.values())[0]}" if read else ""
