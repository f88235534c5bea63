"""A delayed path on Kafka for one test: its topics, a producer and readers, with a store or without one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from adapters.kafka.levels.level_topics import LevelTopics, level_topics
from tests.bridge_line import NO_STORE, BridgeLine, merged
from tests.bridge_process import Bridge, Tables
from tests.devstack import kafka_admin
from tests.devstack.service import wait_for

ROUTE = "payments"
DEADLINE_S = 40.0
#: Quick levels; a refused record becomes a dead letter within half a second.
LEVELS = ("500ms", "1s", "3s")
SETTINGS: Tables = {
    "headers": {"levels": list(LEVELS)},
    "retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 3},
    "log": {"format": "json"},
}

Headers = list[tuple[str, bytes | None]]


class Came(NamedTuple):
    """A record at the consumer, and its arrival (Unix seconds)."""

    at: float
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The last header of this name."""
        return next(content for header, content in reversed(self.headers) if header == name)

    def due(self) -> float:
        """When it was due (Unix seconds)."""
        return int(self.header("x-delay-due") or 0) / 1000

    def plain(self) -> Headers:
        """The headers, without what postdate adds."""
        return [header for header in self.headers if header[0] not in ("x-delay-id", "x-delay-due")]


class KafkaLine(BridgeLine):
    """One route from the topic ``<topic>.delay`` to a new ``topic``."""

    def __init__(
        self,
        url: str,
        folder: Path,
        settings: Tables,
        store_url: str = NO_STORE,
        partitions: int = 3,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        self.url, self.partitions = url, partitions
        self.topic = topic = kafka_admin.create_topic(url, partitions, configs)
        self.intake = f"{topic}.delay"
        route = {"broker": "kafka", "intercept": self.intake, "deliver_to": topic}
        mine = {"kafka": {"bootstrap_servers": url, "group": topic}, "routes": {ROUTE: route}}
        super().__init__(topic, f"{topic}.kafka", folder, store_url, merged(mine, settings))
        self._producer = Producer({"bootstrap.servers": url, "linger.ms": 1, "log_level": 0})
        self._readers: dict[str, Consumer] = {}

    def close(self) -> None:
        """End its bridges and delete its topics."""
        self._open.close()
        for reader in self._readers.values():
            reader.close()
        self.delete()

    def delete(self) -> None:
        """Delete its topics; the brokers must run."""
        ours = [name for name in kafka_admin.topics(self.url) if name.startswith(self.topic)]
        kafka_admin.delete_topics(self.url, ours)

    def run(self, settings: Tables | None = None, name: str = "") -> Bridge:
        """A bridge that has started."""
        bridge = self.bridge(settings, name=name).start()
        wait_for(lambda: '"started"' in bridge.log() or not bridge.running(), "it started, or did not", DEADLINE_S)
        assert bridge.running(), bridge.log_tail()
        return bridge

    def produce(
        self,
        value: bytes | None,
        headers: Headers,
        key: bytes | None = b"k",
        partition: int = -1,
        topic: str = "",
        timestamp_ms: int = 0,
    ) -> None:
        """Write to the intake, or to another topic. ``timestamp_ms`` 0 is now."""
        carried: Any = headers  # its types know no list of bytes alone
        self._producer.produce(
            topic or self.intake, value=value, key=key, headers=carried, partition=partition, timestamp=timestamp_ms
        )
        self._producer.poll(0)

    def produced(self) -> float:
        """Wait until Kafka has everything; returns that moment (Unix seconds)."""
        assert self._producer.flush(DEADLINE_S) == 0
        return time.time()

    def consume(
        self, done: int | Callable[[Sequence[Came]], bool], topic: str = "", deadline_s: float = DEADLINE_S
    ) -> list[Came]:
        """Records of the consumers' topic or ``topic``, until there are ``done`` or ``done(records)`` is true."""
        found: list[Came] = []
        give_up = time.monotonic() + deadline_s
        while len(found) < done if isinstance(done, int) else not done(found):
            assert time.monotonic() < give_up, f"records that arrived: {len(found)}; {self.log_tails()}"
            found += self._poll(topic or self.topic, 0.02)
        return found

    def nothing_more(self, for_s: float = 1.0) -> None:
        """Assert that nothing arrives for a while."""
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            assert self._poll(self.topic, 0.1) == []

    def _poll(self, topic: str, timeout_s: float) -> list[Came]:
        reader = self._readers.get(topic) or self._new_reader(topic)
        came = []
        for message in reader.consume(500, timeout_s):
            assert message.error() is None, message.error()
            came.append(_came(message))
        return came

    def _new_reader(self, topic: str) -> Consumer:
        given = {"group.id": "tests", "enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 50}
        reader = self._readers[topic] = Consumer({"bootstrap.servers": self.url, **given})
        numbers = range(self.partitions)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        return reader


class KafkaLevelLine(KafkaLine):
    """A line in mode levels, without a store."""

    def __init__(self, url: str, folder: Path, settings: Tables | None = None, partitions: int = 3) -> None:
        levels = merged(SETTINGS, {"routes": {ROUTE: {"mode": "levels"}}})
        super().__init__(url, folder, merged(levels, settings or {}), partitions=partitions)

    def topics(self, settings: Tables | None = None) -> LevelTopics:
        """Where its records wait."""
        return level_topics(self.loaded(settings), ROUTE)

    def dead_letters(self, count: int = 1) -> list[Came]:
        """The next ``count`` dead letters."""
        return self.consume(count, self.topics().dead)


def _came(message: Message) -> Came:
    headers: Any = message.headers() or []
    partition = message.partition()
    assert partition is not None
    return Came(time.time(), partition, message.key(), message.value(), headers)
