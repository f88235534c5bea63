"""``postdate run`` on routes of many topics, and what producers may ask for in headers: each claim at the consumer."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tests.bridge_process import Bridge
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic, delete_topics, topics
from tests.devstack.service import wait_for
from tests.integration.kafka.rig import DEADLINE_S

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

Headers = list[tuple[str, bytes | None]]
Came = list[tuple[float, Message]]


class World:
    """Topics whose names begin alike, a bridge with the routes of a test, and a producer."""

    def __init__(self, kafka: Kafka, store_url: str, folder: Path) -> None:
        self.name = f"t{secrets.token_hex(6)}"
        self._url = kafka.url
        self._folder = folder
        self._store_url = store_url
        self._store: Any = redis.Redis.from_url(store_url)
        self._starts = 0
        self._producers = {codec: self._new_producer(codec) for codec in ("none",)}
        self.bridge: Bridge

    def _new_producer(self, codec: str) -> Producer:
        settings = {"bootstrap.servers": self._url, "linger.ms": 50, "compression.type": codec, "log_level": 0}
        return Producer(settings)

    def topic(self, word: str) -> str:
        """The name of a topic of this test."""
        return f"{self.name}.{word}"

    def make(self, *words: str) -> None:
        """New topics, of two partitions."""
        for word in words:
            create_topic(self._url, 2, name=self.topic(word))

    def start(self, group: str = "", **routes: dict[str, Any]) -> Bridge:
        """A bridge that reads from now on, or in another ``group`` everything once more."""
        self._starts += 1
        self.bridge = Bridge(
            self._folder,
            {
                "redis": {"url": self._store_url, "key_prefix": self.name, "durability": "none"},
                "kafka": {"bootstrap_servers": self._url, "group": f"{self.name}{group}", "refresh": "1s"},
                "dispatch": {"lease": "3s", "takeover": "2s"},
                "retry": {"first": "100ms", "attempts": 3},
                "log": {"format": "json"},
                "routes": {name: {"broker": "kafka", **route} for name, route in routes.items()},
            },
            name=f"postdate-{self._starts}",
        )
        self.bridge.start()
        wait_for(lambda: '"started"' in self.bridge.log_tail(), f"it started: {self.bridge.log_tail()}")
        return self.bridge

    def produce(
        self, word: str, key: bytes | None, value: bytes | None, headers: Headers | None = None, codec: str = "none"
    ) -> None:
        producer = self._producers.get(codec) or self._producers.setdefault(codec, self._new_producer(codec))
        carried: Any = headers or []
        producer.produce(self.topic(word), value=value, key=key, headers=carried)

    def produced(self) -> None:
        """Until Kafka has everything."""
        for producer in self._producers.values():
            assert producer.flush(DEADLINE_S) == 0

    def consume(self, words: list[str], done: Callable[[Came], bool]) -> Came:
        """Everything that comes on these topics from their beginning, and when, until ``done`` of it is true."""
        consumer = Consumer({"bootstrap.servers": self._url, "group.id": self.name, "log_level": 0})
        places = [TopicPartition(self.topic(word), number, OFFSET_BEGINNING) for word in words for number in (0, 1)]
        consumer.assign(places)
        found: Came = []
        give_up = time.monotonic() + DEADLINE_S
        try:
            while not done(found):
                assert time.monotonic() < give_up, f"{self.values(found)} came, {self.dead()}; {self.bridge.log_tail()}"
                for message in consumer.consume(500, 0.1):
                    assert message.error() is None
                    found.append((time.time(), message))
        finally:
            consumer.close()
        return found

    def values(self, found: Came) -> list[tuple[str, bytes | None]]:
        """Topic (its last words) and value of each, sorted."""
        named = [(str(message.topic()).removeprefix(f"{self.name}."), message.value()) for _, message in found]
        return sorted(named, key=str)

    def dead(self) -> list[str]:
        """The kinds of all dead letters, sorted."""
        return sorted(
            why.decode().partition(":")[0]
            for key in self._store.keys(f"{{{self.name}.kafka:*}}:dead")
            for why in self._store.hmget(key.replace(b":dead", b":why"), *self._store.zrange(key, 0, -1))
        )

    def parked(self) -> int:
        """How many are parked."""
        return sum(self._store.zcard(key) for key in self._store.keys(f"{{{self.name}.kafka:*}}:due"))

    def ever_parked(self) -> int:
        """How many were parked since the store began."""
        return sum(
            int(self._store.hget(key, "parked") or 0) for key in self._store.keys(f"{{{self.name}.kafka:*}}:counts")
        )

    def close(self) -> None:
        self.produced()
        self._store.close()
        delete_topics(self._url, [name for name in topics(self._url) if name.startswith(f"{self.name}.")])


@pytest.fixture
def world(kafka: Kafka, redis_url: str, tmp_path: Path) -> Iterator[World]:
    world = World(kafka, redis_url, tmp_path)
    yield world
    if world.bridge.running():
        world.bridge.kill()
    world.close()


def in_s(seconds: float) -> Headers:
    return [("x-delay", b"%d" % (seconds * 1000))]


def test_a_rule_maps_each_topic_finds_new_ones_and_a_missing_target_delays_no_other(world: World) -> None:
    rule = {"intercept": f"{world.name}.*.delay", "deliver_to": f"{world.name}.*"}
    world.make("a", "a.delay", "b.delay", "c.delay", "c.delay.delay", "a.v2")
    with world.start(all=rule):
        sent = time.time()
        for word in ("a.delay", "b.delay", "c.delay.delay"):
            world.produce(word, b"k", word.encode() + b" later", in_s(0.5))
            world.produce(word, b"k", word.encode() + b" now")
        world.produced()
        came = world.consume(["a"], lambda found: len(found) == 2)
        assert world.values(came) == [("a", b"a.delay later"), ("a", b"a.delay now")]
        assert all(at >= sent + 0.5 for at, message in came if message.value() == b"a.delay later")
        wait_for(lambda: world.dead() == ["loop", "loop", "missing_topic", "missing_topic"], f"{world.dead()}")

        world.make("n", "n.delay")
        world.produce("n.delay", b"k", b"of a new topic", in_s(0.2))
        world.produced()
        assert world.values(world.consume(["n"], lambda found: len(found) == 1)) == [("n", b"of a new topic")]
        assert not {world.topic(word) for word in ("b", "c")} & topics(world._url)

        world.produce("a.delay", b"k", b"parked under the old rule", in_s(4))
        world.produced()
        wait_for(lambda: world.parked() == 1, "it is parked")
        world.bridge.terminate()
    changed = {"intercept": f"{world.name}.*.delay", "deliver_to": f"{world.name}.*.v2"}
    with world.start(all=changed):
        came = world.consume(["a.v2"], lambda found: len(found) == 1)
        assert world.values(came) == [("a.v2", b"parked under the old rule")]


def test_a_route_reads_several_topics_in_any_compression_and_obeys_allowed_headers(
    world: World,
) -> None:
    world.make("a", "b", "bills", "secret", "a.later", "b.later")
    route = {
        "intercept": world.topic("a.later"),
        "deliver_to": world.topic("a"),
        "also": [f"{world.topic('b.later')} -> {world.topic('b')}"],
        "allow_to": [world.topic("bills")],
        "binary_numbers": True,
    }
    to_bills: Headers = [("x-delay-to", world.topic("bills").encode())]
    with world.start(many=route):
        sent = time.time()
        world.produce("a.later", b"k", b"a", in_s(0.5))
        world.produce("b.later", b"k", b"b", in_s(0.5))
        for number, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
            for _ in range(20):
                world.produce("a.later", b"k", b"%d" % number * 1000, in_s(0.5), codec)
        world.produce("a.later", b"k", b"allowed", [*to_bills, *in_s(0.5), ("trace", b"1")])
        world.produce("a.later", b"k", b"allowed at once", to_bills)
        world.produce("a.later", b"k", b"denied", [("x-delay-to", world.topic("secret").encode()), *in_s(0.5)])
        world.produce("a.later", b"k", b"denied at once", [("x-delay-to", world.topic("b").encode())])
        world.produce("a.later", b"k", b"in eight bytes", [("x-delay", struct.pack(">q", 700))])
        world.produce("a.later", b"k", b"at a moment", [("x-deliver-at", struct.pack(">q", int(sent * 1000) + 900))])
        world.produce("a.later", b"k", b"in seven", [("x-delay", struct.pack(">q", 700)[1:])])
        world.produced()
        came = world.consume(["a", "b", "bills", "secret"], lambda found: len(found) == 86)
        squeezed = [("a", b"%d" % number * 1000) for number in range(4) for _ in range(20)]
        others = [("a", b"a"), ("a", b"at a moment"), ("a", b"in eight bytes"), ("b", b"b")]
        bills = [("bills", b"allowed"), ("bills", b"allowed at once")]
        assert world.values(came) == sorted([*squeezed, *others, *bills], key=str)
        at_once = {b"allowed at once": 0.0, b"in eight bytes": 0.7, b"at a moment": 0.9}
        assert all(at >= sent + at_once.get(message.value() or b"", 0.5) - 0.001 for at, message in came)
        (allowed,) = [message for _, message in came if message.value() == b"allowed"]
        carried: Any = allowed.headers()
        assert [name for name, _ in carried] == ["trace", "x-delay-id", "x-delay-due"]
        wait_for(lambda: world.dead() == ["bad_header", "not_allowed", "not_allowed"], f"{world.dead()}")


def test_a_tombstone_cancels_the_record_with_its_key_once_and_can_be_delayed_itself(
    world: World,
) -> None:
    world.make("a", "a.later", "b", "b.later")
    cancelling = {"intercept": world.topic("a.later"), "deliver_to": world.topic("a"), "tombstones": "cancel"}
    passing = {"intercept": world.topic("b.later"), "deliver_to": world.topic("b")}
    with world.start(cancelling=cancelling, passing=passing):
        for word in ("a.later", "b.later"):
            world.produce(word, b"k", b"read from now on")
        world.produced()
        world.consume(["a", "b"], lambda found: len(found) == 2)
        for word in ("a.later", "b.later"):
            world.produce(word, b"k", b"first", in_s(4))
            world.produce(word, b"k", b"second", in_s(4))
            world.produce(word, b"other", b"of another key", in_s(4))
            world.produce(word, b"k", b"named", [*in_s(4), ("x-delay-key", b"order-1")])
            world.produce(word, b"k", None)
            world.produce(word, b"k", b"after it", in_s(4))
            world.produce(word, b"k", b"at once")
            world.produce(word, None, None)
            world.produce(word, b"gone", None, in_s(1))
        world.produced()
        wait_for(lambda: world.ever_parked() == 9 + 10, f"all were parked; {world.bridge.log_tail()}")
        wait_for(lambda: world.bridge.report()["delivered"] == 9, "a kill copies what is on its way, so nothing is")
        world.bridge.kill()
    with world.start("again", cancelling=cancelling, passing=passing):  # reads everything again, tombstones, too
        wait_for(lambda: "skipped" in world.bridge.log(), f"it reads again; {world.bridge.log_tail()}")
        told = next(row for row in world.bridge.events() if row["event"] == "skipped")
        assert told["topic"] in (world.topic("a.later"), world.topic("b.later"))
        assert (type(told["partition"]), type(told["offset"])) == (int, int)
        expected = [b"read from now on", b"after it", b"at once", b"named", b"of another key", None, None]
        came = world.consume(["a", "b"], lambda found: len(found) >= 7 + 10)
        values = world.values(came)
        assert [value for topic, value in values if topic == "a"] == sorted(expected, key=str)
        passed = [*expected, b"first", b"second", None]
        assert [value for topic, value in values if topic == "b"] == sorted(passed, key=str)
        assert world.dead() == []
