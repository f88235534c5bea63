"""What the source knows of an intake topic and of the partitions that it holds, and a record as a delivery."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from aiokafka import ConsumerRecord, TopicPartition

from adapters.kafka.progress import Progress
from adapters.kafka.raw.record import Header, Record, pack
from adapters.kafka.start_offset import Begin, note_of
from adapters.kafka.topology.topic_ids import TopicId
from bridge.core.message import Delivery, HeaderValue
from bridge.delay.destination import HEADER as DESTINATION
from bridge.delay.naming import Naming


@dataclass(frozen=True)
class Intake:
    """One intake topic, or a rule for many: its route, the header names that matter on that route, and whether a
    record's key is what it can be cancelled by, as a tombstone of that key does. ``spread``: its records go to all
    shards in turn. ``headers_max`` bounds the headers of a record; None for no bound."""

    route: str
    naming: Naming
    wanted: frozenset[bytes]
    keyed: bool = False
    spread: bool = False
    headers_max: int | None = None


def _too_many(most: int) -> str:
    return f"it has more than {most} headers (limits.header_entries)"


class Intakes:
    """Which topics are taken from, and what each belongs to."""

    def __init__(self, intakes: Iterable[Intake]) -> None:
        self._intakes = list(intakes)
        self._names = frozenset(one.naming.intercept for one in self._intakes if not one.naming.is_rule)
        self._known: dict[str, Intake] = {}
        self.routes = frozenset(one.route for one in self._intakes)

    def pattern(self) -> str:
        """A regular expression that matches these topics and no other.

        The consumer subscribes to it, and not to names, because it then asks the brokers for all topics: one that is
        asked for by name may be made by that.
        """
        return rf"(?:{'|'.join(sorted(one.naming.expression() for one in self._intakes))})\Z"

    def of(self, topic: str) -> Intake:
        """The intake that a topic belongs to; the settings see to it that there is no other."""
        known = self._known.get(topic)
        if known is None:
            known = next(one for one in self._intakes if one.naming.text_in(topic) is not None)
            self._known[topic] = known
        return known

    def but_those_of(self, routes: Collection[str], places: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions to poll while some ``routes`` have no room; none where all have. What was fetched of the
        others stays fetched: to pause them would throw it away."""
        return [place for place in places if self.of(place.topic).route not in routes] if routes else []

    def missing(self, topics: set[str]) -> list[str]:
        """The topics that are taken from by name and are not among the cluster's."""
        return sorted(self._names - topics)

    def names(self) -> list[str]:
        """All topics that are taken from by name, sorted."""
        return sorted(self._names)


class Part:
    """A partition from where it is begun to its loss: another assignment makes another ``Part``, and so does a topic
    that was made anew.

    ``next`` is the offset after the last record handed over, before the first one where it is begun, None for the
    beginning; ``committed`` the last offset that was committed, and ``note`` what is committed beside it; ``origin``
    names the partition of this topic, and of no other that bears its name later. From offset ``cut`` on there were
    other records once, so those of now have the origin ``later``. ``in_hand`` is how many somebody has taken and
    neither accepted nor dropped; of a partition that is ``leaving`` nobody begins with another. A header that names
    ``own_target``, where its records go anyway, counts as none.
    """

    __slots__ = (
        "alive",
        "committed",
        "cut",
        "headers_max",
        "in_hand",
        "keyed",
        "later",
        "leaving",
        "next",
        "note",
        "order_key",
        "origin",
        "own_target",
        "place",
        "progress",
        "route",
        "topic_id",
        "wanted",
    )

    def __init__(self, place: TopicPartition, intake: Intake, topic_id: TopicId, begin: Begin) -> None:
        self.place = place
        self.route = intake.route
        self.wanted = frozenset(name.decode() for name in intake.wanted)
        self.keyed = intake.keyed
        self.own_target = (intake.naming.target(place.topic) or "").encode()
        self.headers_max = sys.maxsize if intake.headers_max is None else intake.headers_max
        self.order_key = f"{place.topic}/{place.partition}".encode()
        self.topic_id = topic_id
        self.note = note_of(topic_id, begin.cut)
        # Marks made under another order cover other records of the log, so the log has another name here.
        number = f"{place.partition}/spread" if intake.spread else f"{place.partition}"
        self.origin = f"{topic_id.topic}/{number}".encode()
        self.later = f"{topic_id.topic}@{begin.cut}/{number}".encode()
        self.cut = begin.cut
        self.progress = Progress()
        self.next = begin.offset
        self.committed: int | None = None
        self.in_hand = 0
        self.leaving = False
        self.alive = True

    def deliveries(self, records: Sequence[ConsumerRecord], now_ms: int) -> list[Delivery]:
        """Records as deliveries, in order; they count as handed over. Of headers with one name the last one holds."""
        wanted, route, handed_over = self.wanted, self.route, self.progress.handed_over
        own_target = self.own_target
        origin, later, cut = self.origin, self.later, self.cut
        order_key, keyed, topic = self.order_key, self.keyed, self.place.topic.encode()
        headers_max = self.headers_max
        made = []
        for record in records:
            found: dict[str, HeaderValue] = {}
            headers: list[Header] = []
            for name, content in record.headers:
                headers.append((name.encode(), content))
                if name in wanted:
                    found[name] = content
            if found and found.get(DESTINATION) == own_target:
                del found[DESTINATION]
            offset, timestamp = record.offset, record.timestamp
            handed_over(offset)
            payload = pack(record.partition, timestamp, record.key, record.value, headers, topic)
            published_ms = timestamp if timestamp >= 0 else None
            made.append(
                Delivery(
                    (self, offset),
                    route,
                    payload,
                    order_key,
                    found,
                    now_ms,
                    published_ms,
                    record.key if keyed else None,
                    fault=_too_many(headers_max) if len(headers) > headers_max else "",
                    origin=(origin if offset < cut else later, offset),
                    tombstone=keyed and record.value is None,
                )
            )
        if records:
            self.next = records[-1].offset + 1
        return made

    def raw(self, offset: int, record: Record, now_ms: int) -> Delivery:
        """A record that was read from its bytes: a fault where a header's name is not UTF-8."""
        found: dict[str, HeaderValue] = {}
        fault = ""
        try:
            found = {text: content for name, content in record.headers if (text := name.decode()) in self.wanted}
            if found.get(DESTINATION) == self.own_target:
                del found[DESTINATION]
        except UnicodeDecodeError:
            fault = "a header's name is not UTF-8"
        if len(record.headers) > self.headers_max:
            fault = _too_many(self.headers_max)
        return self._delivery(offset, record, found, now_ms, fault)

    def lost(self, offset: int, now_ms: int) -> Delivery:
        """A record of which not even the bytes can be read."""
        place = self.place
        fault = f"it cannot be decoded and its bytes cannot be read; it is at offset {offset} of {place.topic}"
        return self._delivery(offset, Record(place.partition, -1, None, None, []), {}, now_ms, fault)

    def _delivery(
        self, offset: int, record: Record, found: dict[str, HeaderValue], now_ms: int, fault: str
    ) -> Delivery:
        self.progress.handed_over(offset)
        self.next = offset + 1
        published_ms = record.timestamp if record.timestamp >= 0 else None
        origin = (self.origin if offset < self.cut else self.later, offset)
        return Delivery(
            (self, offset),
            self.route,
            pack(*record, self.place.topic.encode()),
            self.order_key,
            found,
            now_ms,
            published_ms,
            record.key if self.keyed else None,
            fault=fault,
            origin=origin,
            tombstone=self.keyed and record.value is None,
        )
