"""Instances die while messages go to the journal and come back, beside cancels and replacements.

Every message has a key of its own, so that what RabbitMQ delivers again after a kill replaces its first copy: lost 0,
early 0, twice 0.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.bridge_line import merged
from tests.bridge_process import Bridge, Tables
from tests.chaos.conftest import OpenLine
from tests.delay_line import Line, delay
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props, sized

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

MESSAGES, CHANGED = 1500, 150
DELAY_S, SPREAD_S = 115, 10
SMALL: Tables = {"redis": {"timeout": "1s"}, "journal": {"cold_after": "1m"}}


class Producer:
    """Publishes, cancels and replaces by key. Knows which body of each key is owed, and when."""

    def __init__(self, line: Line) -> None:
        self._line = line
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
        headers = [delay(round((due_s - time.time()) * 1000)), (b"x-delay-key", "S", sized(key))]
        self._line.publish(Props(headers, {"delivery_mode": b"\2"}), body)
        self.owed[key] = body

    def cancel(self, key: bytes) -> None:
        self._line.publish(Props([(b"x-delay-cancel", "S", sized(key))], {"delivery_mode": b"\2"}))
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
def test_whoever_dies_between_the_tiers_nothing_is_lost_early_or_twice(
    open_line: OpenLine, journal_url: str, write: str
) -> None:
    line = open_line(merged(SMALL, {"journal": {"url": journal_url, "write": write}}))
    bridges, draw = [line.start(), line.start()], random.Random(3)
    producer = Producer(line)
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
    received = line.receive_until(len(producer.owed), SPREAD_S + 40)
    received += line.receive_until(1, 3)
    early = [message.body for message in received if message.at < producer.due_s[bytes(message.body)] - 0.005]
    assert early == []
    bodies = Counter(bytes(message.body) for message in received)
    assert [body for body, count in bodies.items() if count > 1] == []
    assert bodies.keys() ^ set(producer.owed.values()) == set()
    assert line.stored() == 0
