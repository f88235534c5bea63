"""``postdate run`` on Kafka from outside: delayed records, undelayed records, and the effects of kills."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tests.bridge_process import Bridge
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic, delete_topics
from tests.devstack.service import wait_for
from tests.integration.kafka.rig import DEADLINE_S

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

PARTITIONS = 3
WINDOW = 100
#: A window without its answers, and one that is being settled: what a death may copy.
HELD = 2 * WINDOW
#: The consumers' topic takes no larger record.
TAKEN_BYTES = 50_000
_BODY = struct.Struct(">Id")

Headers = list[tuple[str, bytes | None]]


class Line:
    """An intake topic and the consumers' topic on a bridge of their own."""

    def __init__(self, kafka: Kafka, store_url: str, topic: str, folder: Path) -> None:
        self.topic = topic
        self.intake = f"{topic}.delay"
        self.store: Any = redis.Redis.from_url(store_url)
        self.bridge = Bridge(
            folder,
            {
                "redis": {"url": store_url, "key_prefix": topic, "durability": "none"},
                "kafka": {"bootstrap_servers": kafka.url, "group": topic, "window": WINDOW},
                "dispatch": {"lease": "3s", "takeover": "2s"},
                "log": {"format": "json"},
                "routes": {"payments": {"broker": "kafka", "intercept": self.intake, "deliver_to": topic}},
            },
        )
        self.producing: Any = {"bootstrap.servers": kafka.url, "linger.ms": 1, "log_level": 0}
        self._producer = Producer(self.producing)
        group = {"group.id": topic, "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": kafka.url, **group})
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])

    def produce(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        carried: Any = headers  # its types know no list of bytes alone
        self._producer.produce(self.intake, value=value, key=key, headers=carried)
        self._producer.poll(0)

    def produced(self) -> None:
        """Until Kafka has everything."""
        assert self._producer.flush(DEADLINE_S) == 0

    def consume(self, done: Any) -> list[tuple[float, Message]]:
        """Everything that comes, and when, until ``done`` of it is true."""
        found: list[tuple[float, Message]] = []
        give_up = time.monotonic() + DEADLINE_S
        while not done(found):
            assert time.monotonic() < give_up, f"only {len(found)} came; {self.bridge.log_tail()}"
            for message in self._consumer.consume(500, 0.2):
                assert message.error() is None
                found.append((time.time(), message))
        return found

    def dead(self) -> list[str]:
        """The reasons of all dead letters."""
        keys = self.store.keys(f"{{{self.topic}.kafka:*}}:dead")
        return [
            self.store.hget(key.replace(b":dead", b":why"), one).decode()
            for key in keys
            for one in self.store.zrange(key, 0, -1)
        ]

    def close(self) -> None:
        self._consumer.close()
        self.store.close()


@pytest.fixture
def line(kafka: Kafka, kafka_topics: Any, redis_url: str, tmp_path: Path) -> Iterator[Line]:
    line = Line(kafka, redis_url, kafka_topics(PARTITIONS, max_message_bytes=str(TAKEN_BYTES)), tmp_path)
    create_topic(kafka.url, PARTITIONS, name=line.intake)  # one that postdate makes takes no more than its target
    with line.bridge.start():
        wait_for(lambda: '"started"' in line.bridge.log_tail(), f"it started: {line.bridge.log_tail()}")
        yield line
    line.close()
    delete_topics(kafka.url, [line.intake])


def plain(message: Message) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers, without what postdate adds."""
    headers: Any = message.headers() or []
    return message.key(), message.value(), [h for h in headers if h[0] not in ("x-delay-id", "x-delay-due")]


def test_delayed_records_arrive_unchanged_when_due_and_the_others_at_once(line: Line) -> None:
    sent = time.time()
    odd: Headers = [("trace", b"\xff"), ("trace", b"2"), ("null", None), ("", b"")]
    line.produce(b"k", b"later", [("x-delay", b"1500"), *odd])
    line.produce(None, b"in words", [("x-delay", b"1s")])
    line.produce(b"gone", None, [("x-delay", b"500")])
    for number in range(5):
        line.produce(b"k", b"now %d" % number, [("trace", b"1")])
    line.produced()
    found = line.consume(lambda found: len(found) == 8)
    came = {plain(message)[1]: (at - sent, plain(message)) for at, message in found}
    assert came[b"later"][1] == (b"k", b"later", odd)
    assert came[b"in words"][1] == (None, b"in words", [])
    assert came[None][1] == (b"gone", None, [])
    for value, earliest_s in ((b"later", 1.5), (b"in words", 1.0), (None, 0.5)):
        assert came[value][0] >= earliest_s
    values = [plain(message)[1] for _, message in found]
    assert [value for value in values if value and value.startswith(b"now")] == [b"now %d" % n for n in range(5)]


def test_a_record_with_a_bad_delay_becomes_a_dead_letter_and_blocks_no_other(line: Line) -> None:
    line.produce(b"k", b"bad", [("x-delay", b"soon")])
    line.produce(b"k", b"good", [("x-delay", b"100")])
    line.produced()
    found = line.consume(lambda found: len(found) == 1)
    assert [plain(message)[1] for _, message in found] == [b"good"]
    wait_for(lambda: [reason.partition(":")[0] for reason in line.dead()] == ["bad_header"], "there is a dead letter")


def test_a_record_too_large_for_the_consumers_topic_becomes_a_dead_letter_alone(line: Line) -> None:
    moment = b"%d" % int((time.time() + 1) * 1000)
    for number in range(20):
        value = os.urandom(TAKEN_BYTES) if number == 7 else b"%d" % number
        line.produce(b"k", value, [("x-deliver-at", moment)])
    line.produced()
    found = line.consume(lambda found: len(found) == 19)
    assert [plain(message)[1] for _, message in found] == [b"%d" % number for number in range(20) if number != 7]
    wait_for(lambda: [reason.partition(":")[0] for reason in line.dead()] == ["too_large"], "there is a dead letter")
    assert line.dead()[0].endswith("accepts no record of this size (max.message.bytes), not even compressed with gzip")


@pytest.mark.long
def test_a_record_larger_than_any_request_becomes_a_dead_letter_and_delays_no_other(line: Line) -> None:
    compressing = Producer({**line.producing, "compression.type": "gzip", "message.max.bytes": 500_000_000})
    compressing.produce(line.intake, value=bytes(110 << 20), key=b"k", headers=[("x-delay", b"1000")])
    assert compressing.flush(DEADLINE_S) == 0
    sent = 0
    while [reason.partition(":")[0] for reason in line.dead()] != ["too_large"]:
        for _ in range(20):
            line.produce(b"k%d" % (sent % 7), b"%d" % sent, [("x-delay", b"100")])
            sent += 1
        line.produced()
        line.consume(lambda found: len(found) == 20)
    line.produce(b"k", b"behind it", [])
    line.produced()
    assert [plain(message)[1] for _, message in line.consume(lambda found: len(found) == 1)] == [b"behind it"]


def test_a_record_cancelled_by_its_key_is_not_delivered(line: Line) -> None:
    line.produce(b"k", b"cancelled", [("x-delay", b"1500"), ("x-delay-key", b"order-1")])
    line.produce(b"k", b"kept", [("x-delay", b"2000"), ("x-delay-key", b"order-2")])
    line.produce(b"k", None, [("x-delay-cancel", b"order-1")])
    line.produced()
    found = line.consume(lambda found: any(plain(message)[1] == b"kept" for _, message in found))
    assert [plain(message)[1] for _, message in found] == [b"kept"]


def test_kills_lose_nothing_deliver_nothing_early_and_copy_only_what_was_in_flight(line: Line) -> None:
    count, kills = 1500, 3
    for number in range(count):
        delay_ms = number * 7 % 1500
        body = _BODY.pack(number, time.time() + delay_ms / 1000)
        line.produce(b"k%d" % (number % 50), body, [("x-delay", b"%d" % delay_ms)])
        if number % (count // kills) == count // kills - 1:
            line.produced()
            wait_for(lambda: line.store.keys(f"{{{line.topic}.kafka:*}}:due"), "something is parked")
            line.bridge.kill()
            line.bridge.start()
    line.produced()
    found = line.consume(lambda found: len({message.value() for _, message in found}) == count)
    ids: dict[bytes | None, set[Any]] = {}
    for at, message in found:
        _, due = _BODY.unpack(message.value() or b"")
        assert at >= due - 0.001
        ids.setdefault(message.value(), set()).add(dict(message.headers() or [])["x-delay-id"])
    assert all(len(one) == 1 for one in ids.values()), "a copy has another id"
    assert len(found) - count <= kills * HELD
