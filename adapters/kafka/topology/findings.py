"""How the topics of the routes compare with the settings and with each other, and the sentence for each finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from adapters.kafka.topology.topics import Topic
from bridge.core.message import Refusal
from bridge.delay.duration import write_duration
from bridge.desk.topology import Standing

INSYNC = "min.insync.replicas"
SIZE = "max.message.bytes"
POLICY = "cleanup.policy"
RETENTION = "retention.ms"
CLOCK = "message.timestamp.type"


class Difference(Enum):
    """One way in which a topic falls short, and its sentence with the values of a ``Shortfall``."""

    REPLICAS = "replicas: {has}, there: {wanted}"
    INSYNC = f"{INSYNC}: {{has}}, there: {{wanted}}"
    RECORDS_SMALLER = f"{SIZE}: {{has}}, there: {{wanted}}, so producers cannot send larger records"
    RECORDS_LARGER = f"{SIZE}: {{has}}, there: {{wanted}}, so larger records become dead letters"
    NO_ROOM = f"{SIZE}: {{has}}, needed: {{wanted}}, so larger records do not fit and may stop their route"
    SHORT_RETENTION = f"{RETENTION}: {{has}}, shorter than kafka.intake_retention ({{wanted}})"
    COMPACTED = f"{POLICY} is compact, so Kafka may remove records before postdate reads them: set it to delete"
    BOUNDED = "Kafka deletes records beyond retention.bytes ({has}), read or not: set it to {wanted}"
    FORGETS = (
        f"Kafka deletes records after {RETENTION} ({{has}}), read or not: set it to {{wanted}} (the level and "
        "levels.retention)"
    )
    FORGETS_DEAD = (
        f"Kafka deletes records after {RETENTION} ({{has}}), read or not: set it to {{wanted}} (dead letters are kept)"
    )
    PARTITIONS = "partitions: {has}, and redis.shards is {wanted}. Raise them: `kafka-topics.sh --alter`"
    COMPACTED_MARKERS = f"{POLICY} is compact, so Kafka removes markers: set it to delete"
    PRODUCERS_CLOCK = f"{CLOCK} is not LogAppendTime, so the clocks of instances date the markers: set it"
    #: The user may not read the settings to compare with.
    UNCHECKED = f"{SIZE} and {INSYNC} are unknown"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A difference, with the value that the topic has and the value that it needs."""

    kind: Difference
    has: int = 0
    wanted: int = 0

    def __str__(self) -> str:
        return self.kind.value.format(has=self.has, wanted=self.wanted)


@dataclass(frozen=True, slots=True)
class TopicFinding:
    """The state of one topic. ``other`` is the topic that it was compared with; ``refusal`` says why it has no
    target. ``markers``: it is the marker topic of transactional routes."""

    topic: Topic
    state: Standing
    other: Topic | None = None
    shortfalls: tuple[Shortfall, ...] = ()
    refusal: Refusal | None = None
    refresh_ms: int = 0
    markers: bool = False

    @property
    def text(self) -> str:
        """The sentence for an operator, without its stop: first the fact, then what to do. Empty for SAME."""
        match self:
            case TopicFinding(refusal=Refusal() as refusal):
                return refusal.reason.sentence
            case TopicFinding(topic, Standing.MISSING):
                return _missing(topic)
            case TopicFinding(topic, Standing.UNSEEN, markers=True):
                return (
                    f"postdate may not see the marker topic '{topic.name}' of its transactional routes, so it cannot "
                    "tell whether the topic exists. Grant its user Read, Write and Describe"
                )
            case TopicFinding(topic, Standing.UNSEEN):
                return _unseen(topic)
            case TopicFinding(topic, Standing.WAITS, Topic() as target):
                return _waits(topic, target)
            case TopicFinding(topic, Standing.FEW, Topic() as target):
                return _few(topic, target)
            case TopicFinding(topic, Standing.UNLIKE, Topic() as target, (Shortfall(Difference.UNCHECKED),)):
                return _unchecked(topic, target)
            case TopicFinding(topic, Standing.UNLIKE, Topic() as target, shortfalls):
                return _unlike(topic, target, shortfalls)
            case TopicFinding(topic, Standing.DIFFERENT, Topic() as intake):
                return _same_partitioner(topic, intake)
            case TopicFinding(topic, Standing.DIFFERENT, shortfalls=shortfalls, markers=True):
                return f"marker topic '{topic.name}' cannot prevent every copy: {'; '.join(map(str, shortfalls))}"
            case TopicFinding(topic, Standing.DIFFERENT, shortfalls=shortfalls):
                return f"topic '{topic.name}' of route {topic.route} loses records: {'; '.join(map(str, shortfalls))}"
            case TopicFinding(topic, Standing.NONE, refresh_ms=refresh_ms):
                fact = f"no topic matches '{topic.name}' of route {topic.route} yet"
                return f"{fact}. postdate reads a new one within {write_duration(refresh_ms)}"
        return ""


def absent(topic: Topic) -> TopicFinding:
    """The finding for a topic that does not exist or may not be seen."""
    return TopicFinding(topic, Standing.UNSEEN if topic.unseen else Standing.MISSING)


def _missing(topic: Topic) -> str:
    if topic.ours:
        return f"topic '{topic.name}' of route {topic.route} does not exist. Run `postdate setup`"
    return (
        f"topic '{topic.name}', to which route {topic.route} delivers, does not exist, so due records are refused. "
        f"Create it as its consumers need it, or correct routes.{topic.route}"
    )


def _unseen(topic: Topic) -> str:
    if topic.ours:
        return (
            f"postdate may not see topic '{topic.name}' of route {topic.route} (no Describe permission), so it cannot "
            "tell whether the topic exists. Grant its user Read and Describe"
        )
    return (
        f"postdate may not see topic '{topic.name}', to which route {topic.route} delivers (no Describe permission), "
        f"so due records are refused. Grant its user Write and Describe, or correct routes.{topic.route}"
    )


def _waits(intake: Topic, target: Topic) -> str:
    if target.unseen:
        return f"{_unseen(target)}. Until then '{intake.name}' is not created"
    return (
        f"topic '{target.name}', to which route {target.route} delivers, does not exist, so '{intake.name}' is not "
        f"created. Create '{target.name}' as its consumers need it, or correct routes.{target.route}. `postdate run` "
        f"or `postdate setup` then creates '{intake.name}' with as many partitions"
    )


def _few(intake: Topic, target: Topic) -> str:
    return (
        f"topic '{intake.name}' of route {intake.route} has partitions: {intake.partitions}, and its target "
        f"'{target.name}' has {target.partitions}. So fewer records are read in parallel, and a partition number set "
        f"by a producer may not exist. Raise it to {target.partitions} (`kafka-topics.sh --alter`) while no records "
        "are in flight, because that moves keys to other partitions"
    )


def _unlike(topic: Topic, like: Topic, shortfalls: Iterable[Shortfall]) -> str:
    other = f"intake '{like.name}'" if like.ours else f"its target '{like.name}'"
    return (
        f"topic '{topic.name}' of route {topic.route} differs from {other}: "
        f"{'; '.join(map(str, shortfalls))}. "
        "Change it with `kafka-configs.sh --alter` (replicas: `kafka-reassign-partitions.sh`)"
    )


def _unchecked(intake: Topic, target: Topic) -> str:
    return (
        f"postdate may not read the settings of '{target.name}' (no DescribeConfigs permission), so topic "
        f"'{intake.name}' of route {intake.route} has the broker's own limits. Compare {SIZE} and {INSYNC} by hand"
    )


def _same_partitioner(target: Topic, intake: Topic) -> str:
    return (
        f"topic '{target.name}' has partitions: {target.partitions}, and intake '{intake.name}' has "
        f'{intake.partitions}, so partitioner = "same" cannot work. Give it as many, or use another partitioner'
    )
