"""What postdate says of a commit that failed: it is true, and ends with what it is about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError, UnknownTopicOrPartitionError

from adapters.kafka import source
from adapters.kafka.intake import CommitProgress
from adapters.kafka.source import OffsetCommits
from bridge.settings import Kafka
from bridge.telemetry.health import Health


class _Part:
    """A partition with progress."""

    committed, note = None, ""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.progress = CommitProgress()
        self.progress.reached(7)


class Group:
    """A consumer whose commits end with ``error``, and two partitions with progress."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.health = Health()
        self.commits = OffsetCommits(Kafka(), self.health)
        self.error: Exception | None = None
        self.topics = {"a.delay", "b.delay"}
        self.left = {"a.delay"}
        self.client = SimpleNamespace(
            cluster=SimpleNamespace(topics=lambda: self.topics), force_metadata_update=self._force
        )
        self._consumer: Any = SimpleNamespace(_client=self.client, _coordinator=SimpleNamespace(coordinator_id=2))
        monkeypatch.setattr(source, "commit_once", self._commit_once)

    async def _force(self) -> None:
        self.topics = self.left

    async def _commit_once(self, *_: object) -> bool:
        if self.error is not None:
            raise self.error
        return True

    async def commit(self) -> list[str]:
        """Commit progress of two topics. Return what is wrong then."""
        parts: list[Any] = [_Part(TopicPartition(topic, 0)) for topic in ("a.delay", "b.delay")]
        await self.commits.commit(self._consumer, parts)
        return list(self.health.troubles().values())


async def test_a_commit_without_its_topic_names_that_topic_alone_from_the_first_sentence_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    group.error = UnknownTopicOrPartitionError()
    assert await group.commit() == ["cannot commit offsets to Kafka: topics that it does not know: b.delay"]
    group.left = {"a.delay", "b.delay"}
    assert await group.commit() == ["cannot commit offsets to Kafka: it does not know a topic"], "a broker that lags"
    group.error = None
    assert await group.commit() == []


async def test_a_commit_that_works_while_another_one_asks_what_is_missing_ends_the_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)

    async def commit_meanwhile() -> None:
        group.error = None
        await group.commit()

    group.client.force_metadata_update = commit_meanwhile
    group.error = UnknownTopicOrPartitionError()
    assert await group.commit() == []


async def test_a_commit_without_an_answer_names_the_coordinator_which_may_wait_for_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    group.error = TimeoutError()
    (text,) = await group.commit()
    assert text == (
        "cannot commit offsets to Kafka: broker 2, the group's coordinator, has not confirmed them in time. "
        "It, or a broker with a replica, does not answer"
    )


async def test_a_commit_of_the_last_consumer_is_no_trouble_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch)
    group.error = GroupCoordinatorNotAvailableError()
    (text,) = await group.commit()
    assert "no coordinator of the consumer group" in text
    group.commits.begin()
    assert group.health.troubles() == {}
    assert len(await group.commit()) == 1, "its own failure counts"
