"""Intake topics, the partitions read from them, and their records as deliveries."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import ConsumerRecord, TopicPartition

from adapters.kafka.failure import believed
from adapters.kafka.raw.record import Header, Record, pack
from adapters.kafka.topology.topic_ids import TopicId
from bridge.core.message import Delivery, HeaderValue
from bridge.delay.naming import Naming
from bridge.delay.seal import Seal
from bridge.delay.trust import DESTINATION

_OURS = "postdate"
NEVER = sys.maxsize
NO_FAULTS: Mapping[int, str] = {}


class StartOffset(NamedTuple):
    """The first offset to read; None for the oldest available. Kafka once held, and lost, other records from offset
    ``cut`` on; ``NEVER`` if it did not."""

    offset: int | None
    cut: int = NEVER


def note_of(topic_id: TopicId, cut: int) -> str:
    """Text to commit beside an offset. Empty if Kafka is too old for topic ids."""
    if not topic_id.cluster:
        return ""
    return " ".join([_OURS, *topic_id, *([] if cut == NEVER else [str(cut)])])


def start_offset_in(topic_id: TopicId, committed: int | None, note: str) -> StartOffset:
    """Where to start in a topic with this id, given the group's committed offset and its note.

    A commit names its topic, and the topic may have been deleted and recreated since. Believing the old offset would
    skip the first records of the new topic. So postdate commits the topic's id in the note beside the offset. A commit
    without a note comes from Kafka's tools and is believed. So is a note with another cluster id: a tool that
    mirrors offsets between clusters has translated them.
    """
    match note.split(" "):
        case [word, cluster, _, *_] if word != _OURS or cluster != topic_id.cluster:
            return StartOffset(committed)
        case [_, _, topic, *_] if topic != topic_id.topic:
            return StartOffset(None)
        case [_, _, _, cut] if cut.isdecimal():
            return StartOffset(committed, int(cut))
    return StartOffset(committed)


def start_offset_after(offset: int, first: int, end: int, cut: int) -> StartOffset:
    """Where to continue when Kafka has nothing at ``offset`` and holds the offsets from ``first`` up to ``end``.

    An offset beyond the end means that Kafka lost records that were read, and will reuse their offsets for new records.
    All records from now on are new, whatever their offset.
    """
    if offset < first:
        return StartOffset(first, cut)
    return StartOffset(first, end) if offset > end else StartOffset(offset, cut)


class CommitProgress:
    """How far one partition is done.

    ``committable`` is the offset to commit: after the last record that is done without a gap; None before the first
    one. With nothing open it also passes offsets that hold no record. Offsets have gaps (compaction, transactions), so
    the order of hand-over counts, not the numbers. A gap at the end is committed too. Otherwise the group would lag
    behind transaction markers for ever, and would miss them when Kafka removes them.
    """

    __slots__ = ("_early", "_reached", "_waiting", "committable")

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._early: set[int] = set()
        self._reached = 0
        self.committable: int | None = None

    def open(self) -> int:
        """Number of records that a crash would deliver again."""
        return len(self._waiting)

    def first_open(self) -> int | None:
        """Return the first offset that is handed over and not done; None if there is none."""
        return self._waiting[0] if self._waiting else None

    def handed_over(self, offset: int) -> None:
        """Record a hand-over. The offset must be higher than all before."""
        self._waiting.append(offset)

    def reached(self, offset: int) -> None:
        """Every record before this offset was handed over. The other offsets hold transaction markers, aborted records
        or removed records."""
        self._reached = offset
        if not self._waiting:
            self.committable = offset

    def done(self, offsets: Iterable[int]) -> None:
        """These records are durable. Advance the offset to commit over what is done without a gap."""
        waiting, early = self._waiting, self._early
        for offset in offsets:
            if waiting and waiting[0] == offset:
                waiting.popleft()
                self.committable = offset + 1
            else:
                early.add(offset)
        while waiting and waiting[0] in early:
            offset = waiting.popleft()
            early.discard(offset)
            self.committable = offset + 1
        if not waiting and self.committable is not None:
            self.committable = max(self.committable, self._reached)


@dataclass(frozen=True)
class KafkaIntake:
    """One intake topic, or a naming rule for many, and how its records are read.

    ``wanted`` are the header names that matter on the route. ``keyed``: a record's key is its message key, so a
    tombstone of that key cancels it. ``spread``: records go to all shards in turn. ``headers_max`` bounds the headers
    of a record. ``retries``: its records have failed at a consumer; ``seal`` tells which state of theirs is postdate's
    own. ``originals``: the topics at whose records theirs may point, beside the target.
    ``prioritized``: the header ``x-delay-priority`` counts. ``by_record``: delays count from the record's timestamp.
    """

    route: str
    naming: Naming
    wanted: frozenset[bytes]
    keyed: bool = False
    spread: bool = False
    headers_max: int = sys.maxsize
    retries: bool = False
    prioritized: bool = False
    by_record: bool = True
    seal: Seal | None = None
    originals: frozenset[str] = frozenset()


#: The header with a record's priority, on routes that have priorities.
PRIORITY = "x-delay-priority"


def _too_many(most: int) -> str:
    return f"it has more than {most} headers (limits.header_entries)"


def _priority(found: dict[str, HeaderValue]) -> tuple[int, str]:
    """Take the priority out of a record's headers. Return it, and what is wrong with it, "" if nothing is."""
    value = found.pop(PRIORITY, None)
    if value is None:
        return 0, ""
    if isinstance(value, bytes) and value.isdigit() and len(value) <= 3 and int(value) <= 255:
        return int(value), ""
    return 0, f"header {PRIORITY} is no number from 0 to 255"


class Intakes:
    """The intake topics, and the intake that each topic name belongs to."""

    def __init__(self, intakes: Iterable[KafkaIntake]) -> None:
        self._intakes: list[KafkaIntake] = []
        #: By name or rule, what was read since the start: a consumer keeps removed topics until the group's next turn.
        self._former: dict[str, KafkaIntake] = {}
        self.follow(intakes)

    def follow(self, intakes: Iterable[KafkaIntake]) -> None:
        """Know these intakes from now on."""
        self._former |= {intake.naming.intercept: intake for intake in self._intakes}
        self._intakes = list(intakes)
        self._names = frozenset(intake.naming.intercept for intake in self._intakes if not intake.naming.is_rule)
        self._known: dict[str, KafkaIntake] = {}
        self.routes = frozenset(intake.route for intake in self._intakes)

    def pattern(self) -> str:
        """A regular expression that matches the intake topics and no other.

        The consumer subscribes by pattern because it then asks the brokers for all topics. Asking for a topic by name
        may create it.
        """
        return rf"(?:{'|'.join(sorted(intake.naming.expression() for intake in self._intakes))})\Z"

    def of(self, topic: str) -> KafkaIntake:
        """The intake of a topic. The settings guarantee that there is only one."""
        known = self._known.get(topic)
        if known is None:
            every = (*self._intakes, *self._former.values())
            known = next(intake for intake in every if intake.naming.text_in(topic) is not None)
            self._known[topic] = known
        return known

    def reads(self, topic: str) -> bool:
        """Whether a topic is one of these intakes."""
        return any(intake.naming.text_in(topic) is not None for intake in self._intakes)

    def partitions_except(self, routes: Collection[str], tps: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Partitions to poll while the given ``routes`` are full; empty if none are, or if all are. Pausing the full
        ones would discard the records that are fetched already."""
        return [tp for tp in tps if self.of(tp.topic).route not in routes] if routes else []

    def missing(self, topics: set[str]) -> list[str]:
        """The topics read by name that are not in ``topics``, the cluster's."""
        return sorted(self._names - topics)

    def names(self) -> list[str]:
        """All topics read by name, sorted."""
        return sorted(self._names)


class Sighting(NamedTuple):
    """Where a partition ended (``end``), when Kafka said so: in epoch ms, and as this process's monotonic second."""

    end: int
    at_ms: int
    at_s: float


class Partition:
    """One assignment of a partition, from its start to its loss. A recreated topic gets a new ``Partition`` too.

    ``next`` is the offset after the last record handed over, or where reading starts; None for the oldest.
    ``committed`` is the last committed offset and ``note`` the text beside it. ``origin`` identifies the partition of
    this topic, even if another topic has the same name later. From offset ``cut`` on Kafka once held other records, so
    records there have the origin ``later``. ``in_hand`` counts deliveries taken and neither accepted nor dropped. While
    a partition is ``leaving``, its deliveries are no longer started. A header that names ``own_target``, where the
    records go anyway, is ignored. ``caught_up_ms``: when everything written had been read; 0 for not yet. ``sighting``
    is where it ended at the last look; ``known`` such a look after which its topic was still this one.
    """

    def __init__(self, tp: TopicPartition, intake: KafkaIntake, topic_id: TopicId, begin: StartOffset) -> None:
        self.tp = tp
        self.caught_up_ms = 0
        self.order_key = f"{tp.topic}/{tp.partition}".encode()
        self.topic_id = topic_id
        self.note = note_of(topic_id, begin.cut)
        self.cut = begin.cut
        self.follow(intake)
        self.progress = CommitProgress()
        self.next = begin.offset
        self.committed: int | None = None
        self.in_hand = 0
        self.leaving = False
        self.alive = True
        self.sighting: Sighting | None = None
        self.known: Sighting | None = None

    def confirm(self, since_s: float) -> None:
        """Kafka, asked at ``since_s`` (monotonic), said that the topic is still this one. So it was at a look before
        that."""
        if self.sighting is not None and self.sighting.at_s <= since_s:
            self.known = self.sighting

    def first_unread(self) -> int:
        """The first offset that was not read, or that was dropped again before it was parked."""
        dropped = self.progress.first_open() if self.leaving else None
        return (self.next or 0) if dropped is None else dropped

    def follow(self, intake: KafkaIntake) -> None:
        """Read for this intake from now on: at a reload a topic may become that of another route."""
        self.intake = intake
        self.route = intake.route
        self.wanted = frozenset(name.decode() for name in intake.wanted)
        target = intake.naming.target(self.tp.topic) or ""
        self.own_target = target.encode()
        self.originals = intake.originals | {target}
        # Stored marks of another order cover other records, so a spread partition has a name of its own.
        number = f"{self.tp.partition}/spread" if intake.spread else f"{self.tp.partition}"
        self.origin = f"{self.topic_id.topic}/{number}".encode()
        self.later = f"{self.topic_id.topic}@{self.cut}/{number}".encode()

    def deliveries(
        self, records: Sequence[ConsumerRecord], now_ms: int, faults: Mapping[int, str] = NO_FAULTS
    ) -> list[Delivery]:
        """Convert records to deliveries, in order, and count them as handed over. If a header repeats, the last one
        wins. ``faults`` are known by offset."""
        intake, wanted, route, handed_over = self.intake, self.wanted, self.route, self.progress.handed_over
        own_target = self.own_target
        origin, later, cut = self.origin, self.later, self.cut
        order_key, keyed, topic = self.order_key, intake.keyed, self.tp.topic.encode()
        headers_max, retries, prioritized = intake.headers_max, intake.retries, intake.prioritized
        by_record = intake.by_record
        deliveries = []
        for record in records:
            found: dict[str, HeaderValue] = {}
            headers: list[Header] = []
            for name, content in record.headers:
                headers.append((name.encode(), content))
                if name in wanted:
                    found[name] = content
            if found and found.get(DESTINATION) == own_target:
                del found[DESTINATION]
            failure = None
            if retries:
                failure, headers = believed(headers, intake.seal)
            offset, timestamp = record.offset, record.timestamp
            handed_over(offset)
            payload = pack(record.partition, timestamp, record.key, record.value, headers, topic)
            published_ms = timestamp if by_record and timestamp >= 0 else None
            priority, unreadable = _priority(found) if prioritized else (None, "")
            deliveries.append(
                Delivery(
                    (self, offset),
                    route,
                    payload,
                    order_key,
                    found,
                    now_ms,
                    published_ms,
                    record.key if keyed or retries else None,
                    fault=faults.get(offset) or (_too_many(headers_max) if len(headers) > headers_max else unreadable),
                    origin=(origin if offset < cut else later, offset),
                    record_key=record.key,
                    tombstone=keyed and record.value is None,
                    failure=failure,
                    priority=priority,
                )
            )
        if records:
            self.next = records[-1].offset + 1
        return deliveries

    def raw(self, offset: int, record: Record | None, now_ms: int) -> Delivery:
        """Convert a record that was decoded from raw bytes. A header name that is not UTF-8 makes it a fault. None: its
        bytes cannot be decoded at all."""
        found: dict[str, HeaderValue] = {}
        fault = ""
        if record is None:
            tp = self.tp
            record = Record(tp.partition, -1, None, None, [])
            fault = f"it cannot be decoded and its bytes cannot be read; it is at offset {offset} of {tp.topic}"
        try:
            found = {text: content for name, content in record.headers if (text := name.decode()) in self.wanted}
            if found.get(DESTINATION) == self.own_target:
                del found[DESTINATION]
        except UnicodeDecodeError:
            fault = "a header's name is not UTF-8"
        intake = self.intake
        if len(record.headers) > intake.headers_max:
            fault = _too_many(intake.headers_max)
        self.progress.handed_over(offset)
        self.next = offset + 1
        priority, unreadable = _priority(found) if intake.prioritized else (None, "")
        published_ms = record.timestamp if intake.by_record and record.timestamp >= 0 else None
        origin = (self.origin if offset < self.cut else self.later, offset)
        failure = None
        if intake.retries:
            failure, headers = believed(list(record.headers), intake.seal)
            record = record._replace(headers=headers)
        return Delivery(
            (self, offset),
            self.route,
            pack(*record, self.tp.topic.encode()),
            self.order_key,
            found,
            now_ms,
            published_ms,
            record.key if intake.keyed or intake.retries else None,
            fault=fault or unreadable,
            origin=origin,
            record_key=record.key,
            tombstone=intake.keyed and record.value is None,
            failure=failure,
            priority=priority,
        )
