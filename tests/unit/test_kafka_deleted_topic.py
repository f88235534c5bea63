"""A deleted and recreated intake topic is reported with the records that postdate had not read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import UnknownTopicOrPartitionError

from adapters.kafka import assignments as assignments_module
from adapters.kafka.assignments import Assignments
from adapters.kafka.deleted_topic import _FORMER_MAX, DeletedTopics
from adapters.kafka.intake import NEVER, Partition, StartOffset, note_of
from adapters.kafka.topology.topic_ids import TopicId
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from bridge.telemetry.subject import rendered

TOPIC = "orders.delay"
PLACES = [TopicPartition(TOPIC, number) for number in (0, 1)]
INTAKE = SimpleNamespace(
    route="orders",
    wanted=frozenset(),
    keyed=False,
    retries=False,
    seal=None,
    prioritized=False,
    by_record=True,
    originals=frozenset(),
    headers_max=None,
    spread=False,
    naming=SimpleNamespace(target=lambda _: "orders"),
)
OLD, NEW = TopicId("cluster", "01"), TopicId("cluster", "02")


class Cluster:
    """Kafka and its consumer: a topic with two partitions, by the ends and the id that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.id: TopicId | None = OLD
        self.committed = 10
        self.ends = dict.fromkeys(PLACES, 10)
        self.assigned = set(PLACES)
        self.paused = set(PLACES)
        self.forced = 0
        subscription = SimpleNamespace(assignment=SimpleNamespace(active=True))
        cluster = SimpleNamespace(leader_for_partition=lambda _: 1)
        self.consumer: Any = SimpleNamespace(
            assignment=lambda: set(self.assigned),
            paused=lambda: set(self.paused),
            highwater=self.ends.get,
            seek=lambda *_: None,
            _client=SimpleNamespace(cluster=cluster, force_metadata_update=self._force),
            _fetcher=SimpleNamespace(_proc_offset_requests=self._ask_ends, request_offset_reset=lambda *_: None),
            _subscription=SimpleNamespace(subscription=subscription),
            _coordinator=SimpleNamespace(fetch_committed_offsets=self._committed),
        )
        self.health = Health()
        self.held = Assignments(Kafka(), SimpleNamespace(of=lambda _: INTAKE), self.health)  # type: ignore[arg-type]

        async def ask(_: Any, tps: Any) -> dict[str, TopicId]:
            return {TOPIC: self.id} if self.id is not None and tps else {}

        monkeypatch.setattr(assignments_module, "ask_leaders", ask)
        monkeypatch.setattr(assignments_module, "_AGAIN_S", 0)

    def _force(self) -> None:
        self.forced += 1

    async def _ask_ends(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        if self.id is None:
            raise UnknownTopicOrPartitionError
        return {place: (self.ends[place], -1) for place in asked}

    async def _committed(self, tps: set[TopicPartition]) -> dict[TopicPartition, Any]:
        """Kafka deletes the offsets with the topic."""
        offset = SimpleNamespace(offset=self.committed, metadata=note_of(OLD, NEVER))
        return dict.fromkeys(tps, offset) if self.id is OLD else {}

    async def look(self) -> None:
        """What the source does every few seconds."""
        await self.held.note_ends(self.consumer)
        assert await self.held.check_all(self.consumer) or self.id is None

    def reports(self) -> list[str]:
        return [text for subject, text in rendered(self.health.troubles()).items() if "recreated" in subject]


@pytest.fixture
async def kafka(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    kafka = Cluster(monkeypatch)
    await kafka.look()  # starts the partitions
    for place, count in zip(PLACES, (40, 2), strict=True):
        kafka.ends[place] += count
    await kafka.look()
    assert kafka.reports() == []
    return kafka


def lost_42(kafka: Cluster) -> None:
    (text,) = kafka.reports()
    assert text.startswith(f"the intake topic {TOPIC} of route orders was deleted and recreated between 20")
    assert "Records in it that postdate had not read are lost. Unread records: 42 at 20" in text
    assert text.endswith("(in partitions: 0, 1). postdate cannot count later ones")
    assert rendered(kafka.health.troubles()).keys() == {f"kafka recreated {TOPIC}"}


async def test_a_topic_recreated_at_once_on_a_drained_route_lost_what_waited_in_it(kafka: Cluster) -> None:
    kafka.id, kafka.ends = NEW, dict.fromkeys(PLACES, 3)
    await kafka.look()  # the new topic's ends come before its id
    lost_42(kafka)
    await kafka.look()
    lost_42(kafka)


async def test_a_topic_that_was_absent_for_a_while_is_reported_when_it_is_back(kafka: Cluster) -> None:
    kafka.id = None
    await kafka.held.note_ends(kafka.consumer)
    assert kafka.forced == 1, "the metadata, which lack the topic, come soon"
    kafka.held.let_go(PLACES)
    kafka.assigned = set()
    await kafka.look()
    assert kafka.reports() == []
    assert "Unread records: 42 at 20" in kafka.held.lost_in_absent(TOPIC)
    assert kafka.held.lost_in_absent("other") == ""
    kafka.id, kafka.assigned = NEW, set(PLACES)
    await kafka.look()
    lost_42(kafka)
    await kafka.look()
    lost_42(kafka)


async def test_the_instance_that_read_a_topic_reports_it_though_another_gets_the_new_one(kafka: Cluster) -> None:
    kafka.held.let_go(PLACES)
    kafka.id, kafka.assigned = NEW, set()
    await kafka.look()
    lost_42(kafka)


async def test_partitions_that_moved_to_another_member_are_its_business(kafka: Cluster) -> None:
    kafka.held.let_go(PLACES)
    kafka.assigned = set()
    await kafka.look()
    kafka.id = NEW
    await kafka.look()
    assert kafka.reports() == []


async def test_what_was_read_after_the_look_and_what_was_dropped_before_it_was_parked_counts_as_it_is(
    kafka: Cluster,
) -> None:
    part, other = (kafka.held.parts[place] for place in PLACES)
    part.next = 45  # 35 of 40 are read ...
    for offset in range(43, 45):  # ... and two of these are dropped when the partition is revoked
        part.progress.handed_over(offset)
    part.leaving, other.next = True, 12
    kafka.held.let_go(PLACES)
    kafka.id = NEW
    await kafka.look()
    assert "Unread records: 7 at 20" in kafka.reports()[0]


async def test_a_topic_of_which_no_end_is_known_is_reported_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Cluster(monkeypatch)
    await kafka.held.check_all(kafka.consumer)
    kafka.id = NEW
    await kafka.held.check_all(kafka.consumer)
    (text,) = kafka.reports()
    assert "was deleted and recreated before 20" in text
    assert text.endswith("lost. postdate cannot count them")


def test_topics_that_never_come_back_are_forgotten_at_last() -> None:
    """With a pattern of topics of which each lives for a day, what is remembered must not grow forever."""
    deleted = DeletedTopics(Health())
    for day in range(_FORMER_MAX + 2):
        place = TopicPartition(f"day-{day}.delay", 0)
        deleted.remember([Partition(place, INTAKE, OLD, StartOffset(None))])  # type: ignore[arg-type]
    assert len(deleted.former()) == _FORMER_MAX
    assert deleted.in_absent(f"day-{_FORMER_MAX + 1}.delay", [])
    assert not deleted.in_absent("day-1.delay", [])
