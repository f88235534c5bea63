"""One bridge for many clients: a topic and an intake topic for each client."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.bridge_process import Bridge
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.integration.kafka.rig import DEADLINE_S

PARTITIONS = 3

Headers = list[tuple[str, bytes | None]]


class Clients:
    """A running bridge. ``topic(word)`` is what consumers read, and ``intake(word)`` what delayed records go to."""

    def __init__(self, url: str, prefix: str, bridge: Bridge, second: Bridge) -> None:
        self.url = url
        self._prefix = prefix
        self.bridge = bridge
        self._second = second
        #: A consumer group for a test that needs one; it is deleted with the topics.
        self.group = f"{prefix}.readers"
        #: The group that the bridge reads with.
        self.bridge_group = prefix

    def topic(self, word: str) -> str:
        return f"{self._prefix}.{word}"

    def intake(self, word: str) -> str:
        return f"{self._prefix}.{word}.delay"

    @contextmanager
    def second(self) -> Iterator[Bridge]:
        """One more bridge with the same settings, which is in the group and leaves it in good order."""
        with self._second.start() as second:
            wait_for(lambda: len(kafka_admin.members(self.url, self._prefix)) == 2, second.log_tail(), DEADLINE_S)
            yield second
            assert second.terminate() == 0, second.log_tail()

    def read(
        self, topic: str, done: int | Callable[[Sequence[tuple[float, Message]]], bool]
    ) -> list[tuple[float, Message]]:
        """The records from the beginning, until there are ``done`` of them or ``done(records)`` is true, each with its
        arrival (Unix seconds)."""
        settings = {"bootstrap.servers": self.url, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
        consumer = Consumer(settings)
        places = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in kafka_admin.partitions(self.url, topic)]
        consumer.assign(places)
        found: list[tuple[float, Message]] = []
        end = time.monotonic() + DEADLINE_S
        try:
            while len(found) < done if isinstance(done, int) else not done(found):
                assert time.monotonic() < end, f"only {len(found)} came to {topic}; {self.bridge.log_tail()}"
                for message in consumer.consume(500, 0.1):
                    assert message.error() is None
                    found.append((time.time(), message))
        finally:
            consumer.close()
        return found


@contextmanager
def running(
    kafka: Kafka,
    store: Redis,
    folder: Path,
    words: Sequence[str],
    single: Sequence[str] = (),
    narrow: Sequence[str] = (),
    **settings: Any,
) -> Iterator[Clients]:
    """A bridge with a route for each word, and its topics, of three partitions each.

    A single one has one partition; of a narrow one the intake topic has one. ``settings`` are further ones of
    ``[kafka]``.
    """
    prefix = f"t{secrets.token_hex(6)}"
    admin = kafka_admin.client(kafka.url)
    wanted = {f"{prefix}.{word}": 1 if word in single else PARTITIONS for word in words} | {
        f"{prefix}.{word}.delay": 1 for word in narrow
    }
    for made in admin.create_topics([NewTopic(name, count) for name, count in wanted.items()]).values():
        made.result(DEADLINE_S)
    routes = {
        word: {"broker": "kafka", "intercept": f"{prefix}.{word}.delay", "deliver_to": f"{prefix}.{word}"}
        for word in words
    }
    own = {"redis": {"url": store.url, "key_prefix": prefix, "durability": "none"}, "routes": routes}
    own["kafka"] = {"bootstrap_servers": kafka.url, "group": prefix, **settings}
    bridge = Bridge(folder, own)
    with bridge.start():
        wait_for(lambda: "started" in bridge.log() or not bridge.running(), "it started")
        assert bridge.running(), bridge.log_tail()
        yield Clients(kafka.url, prefix, bridge, Bridge(folder, own, name="second"))
        # It leaves its group, which can be deleted then.
        assert bridge.terminate() == 0, bridge.log_tail()
    kafka_admin.delete_groups(kafka.url, prefix)
    kafka_admin.delete_topics(kafka.url, [name for name in kafka_admin.topics(kafka.url) if name.startswith(prefix)])
    with store.client() as client:
        for key in client.scan_iter(match=f"*{prefix}*", count=1_000):
            client.delete(key)


def headers(message: Message) -> Headers:
    """The producer's headers: those of a delivered record without what postdate adds."""
    found: Any = message.headers() or []
    return [header for header in found if header[0] not in ("x-delay-id", "x-delay-due")]


def by_postdate(message: Message) -> bool:
    """Whether postdate delivered a record, or its producer wrote it there."""
    found: Any = message.headers() or []
    return "x-delay-id" in dict(found)
