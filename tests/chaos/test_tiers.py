"""Instances die while messages go to the journal and come back, beside cancels and replacements.

Every message has a key of its own, so that what RabbitMQ delivers again after a kill replaces its first copy, and Kafka
keeps the order of a key: lost 0, early 0, twice 0.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.bridge_line import merged
from tests.bridge_process import Bridge, Tables
from tests.chaos.conftest import OpenKafkaLine, OpenLine
from tests.delay_line import delay
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props, sized

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

MESSAGES, CHANGED = 1500, 150
DELAY_S, SPREAD_S = 115, 10
SMALL: Tables = {"redis": {"timeout": "1s"}, "journal": {"cold_after": "1m"}}


class OnRabbitMQ:
    """A producer and a consumer of RabbitMQ."""

    def __init__(self, open_line: OpenLine, settings: Tables) -> None:
        self.line = open_line(settings)

    def publish(self, key: bytes, body: bytes, delay_ms: int) -> None:
        headers = [delay(delay_ms), (b"x-delay-key", "S", sized(key))]
        self.line.publish(Props(headers, {"delivery_mode": b"\2"}), body)

    def cancel(self, key: bytes) -> None:
        self.line.publish(Props([(b"x-delay-cancel", "S", sized(key))], {"delivery_mode": b"\2"}))

    def receive(self, count: int, deadline_s: float) -> Iterable[tuple[float, bytes]]:
        received = self.line.receive_until(count, deadline_s) + self.line.receive_until(1, 3)
        return [(message.at, bytes(message.body)) for message in received]


class OnKafka:
    """A producer and a consumer of Kafka."""

    def __init__(self, open_line: OpenKafkaLine, settings: Tables) -> None:
        self.line = open_line(settings)

    def publish(self, key: bytes, body: bytes, delay_ms: int) -> None:
        self.line.produce(body, [("x-delay", b"%d" % delay_ms), ("x-delay-key", key)], key)

    def cancel(self, key: bytes) -> None:
        self.line.produce(b"", [("x-delay-cancel", key)], key)

    def receive(self, count: int, deadline_s: float) -> Iterable[tuple[float, bytes]]:
        received = self.line.consume(count, deadline_s=deadline_s)
        self.line.nothing_more(3)
        return [(record.at, record.value or b"") for record in received]


class Producer:
    """Publishes, cancels and replaces by key. Knows which body of each key is owed, and when."""

    def __init__(self, broker: OnRabbitMQ | OnKafka) -> None:
        self._broker = broker
        self._random = random.Random(7)
        self.began_s = time.time()
        self.owed: dict[bytes, bytes] = {}
        self.due_s: dict[bytes, float] = {}
        self._number = 0

    def publish(self, key: bytes) -> None:
        """Publish under a key; an older message with it is replaced."""
        body = b"%d" % self._number
        self._number += 1
        due_s = self.began_s + DELAY_S + self._random.random() * SPREAD_S
        self.due_s[body] = due_s
        self._broker.publish(key, body, round((due_s - time.time()) * 1000))
        self.owed[key] = body

    def cancel(self, key: bytes) -> None:
        self._broker.cancel(key)
        del self.owed[key]

    def change(self, count: int) -> None:
        """Cancel some of the messages, and replace as many others."""
        keys = self._random.sample(sorted(self.owed), 2 * count)
        for number, key in enumerate(keys):
            (self.cancel if number % 2 else self.publish)(key)


def killed_and_started(bridges: list[Bridge], draw: random.Random) -> None:
    """One of two instances dies and comes back."""
    bridge = draw.choice(bridges)
    bridge.kill()
    bridge.start()


@pytest.mark.parametrize("write", ["before", "behind"])
@pytest.mark.parametrize(
    ("broker", "opener"),
    [
        pytest.param(OnRabbitMQ, "open_line", marks=pytest.mark.rabbitmq, id="rabbitmq"),
        pytest.param(OnKafka, "open_kafka_line", marks=pytest.mark.kafka, id="kafka"),
    ],
)
def test_whoever_dies_between_the_tiers_nothing_is_lost_early_or_twice(
    request: pytest.FixtureRequest,
    journal_url: str,
    write: str,
    broker: type[OnRabbitMQ | OnKafka],
    opener: str,
) -> None:
    settings = merged(SMALL, {"journal": {"url": journal_url, "write": write}})
    used = broker(request.getfixturevalue(opener), settings)
    line, producer = used.line, Producer(used)
    bridges, draw = [line.start(), line.start()], random.Random(3)
    for number in range(MESSAGES):
        producer.publish(b"key-%d" % number)
        if number % 100 == 99:
            killed_and_started(bridges, draw)
    for _ in range(10):
        killed_and_started(bridges, draw)
        producer.change(CHANGED // 10)
        time.sleep(0.5)
    for bridge in bridges:
        bridge.wait_ready()
    wait_for(lambda: line.stored() < MESSAGES // 10, f"a small Redis: {line.log_tails()}", 30)
    time.sleep(max(0.0, producer.began_s + DELAY_S - 40 - time.time()))
    while time.time() < producer.began_s + DELAY_S - 18:  # what is due soon is loaded in this time
        killed_and_started(bridges, draw)
        producer.change(CHANGED // 10)
        time.sleep(0.5)
    for bridge in bridges:
        bridge.wait_ready()
    received = used.receive(len(producer.owed), SPREAD_S + 40)
    early = [body for at, body in received if at < producer.due_s[body] - 0.005]
    assert early == []
    bodies = Counter(body for _, body in received)
    assert [body for body, count in bodies.items() if count > 1] == []
    assert bodies.keys() ^ set(producer.owed.values()) == set()
    assert line.stored() == 0
