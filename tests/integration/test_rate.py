"""A route with max_rate: a burst due at one moment leaves at the rate, from two instances, through the death of one."""

from __future__ import annotations

import time
from pathlib import Path
from signal import SIGHUP

import pytest

from tests.delay_line import Line
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.integration.test_delivery_order import publish_burst
from tests.integration.test_pause import in_order

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

#: It takes three seconds: a machine that stands still for one must not let the burst end, or seem slower.
PER_S, COUNT = 400, 1200


def test_a_burst_leaves_at_the_rate_and_in_its_order(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.settings["routes"]["orders"]["max_rate"] = PER_S
        bridges = [line.bridge().start(), line.bridge().start()]
        for bridge in bridges:
            bridge.wait_ready()
        at_ms = int((time.time() + 3) * 1000)
        publish_burst(line, COUNT, at_ms)
        assert time.time() * 1000 < at_ms, "the test machine is too slow"
        messages = line.receive(COUNT // 2)
        half_s = time.time() - at_ms / 1000
        assert half_s > 0.9 * COUNT / 2 / PER_S
        assert line.held() > 0
        messages += line.receive(COUNT // 2)
        took_s = time.time() - at_ms / 1000
        assert 0.9 < took_s / (COUNT / PER_S) < 1.6, took_s
        in_order(messages, COUNT)
        wait_for(lambda: line.stored() == 0, "the store is empty", 15)


def test_what_an_instance_that_dies_held_back_leaves_by_another(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.settings["routes"]["orders"]["max_rate"] = PER_S
        line.settings["dispatch"] = {"lease": "3s", "takeover": "2s"}
        first = line.start()
        at_ms = int((time.time() + 1) * 1000)
        publish_burst(line, COUNT, at_ms)
        some = line.receive(100)
        first.kill()
        line.start()
        wait_for(lambda: line.stored() == 0, "the store is empty")
        found = {message.body for message in some}
        while len(found) < COUNT:
            found |= {message.body for message in line.receive(1)}


def test_a_reload_changes_the_rate(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        line.settings["routes"]["orders"]["max_rate"] = 5
        bridge = line.start()
        publish_burst(line, COUNT, int(time.time() * 1000))
        messages = line.receive(5)
        file = tmp_path / f"{line.name}-1.toml"
        file.write_text(file.read_text().replace("max_rate = 5", f"max_rate = {PER_S}"))
        bridge.signal(SIGHUP)
        messages += line.receive(COUNT - 5)
        in_order(messages, COUNT)
