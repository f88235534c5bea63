"""On a bridge of Kafka, Redis stands still and dies: the intake waits and keeps its place in the group."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.kafka_line import HEALED_S
from tests.devstack import kafka_admin
from tests.devstack.fixtures import StartRedis

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

RATE = 2000.0
WINDOW = 500
SMALL = {"kafka": {"window": WINDOW}}
#: Kafka's own name for it; the bridge that runs here has it set low.
MAX_POLL_INTERVAL_S = 3.0
IMPATIENT = ("-m", "tests.chaos.impatient", str(int(MAX_POLL_INTERVAL_S * 1000)))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["stands still", "is gone"])
def test_a_redis_away_for_longer_than_max_poll_interval_leaves_the_group_as_it_is(
    open_kafka_line: OpenKafkaLine, start_redis: StartRedis, fault: str
) -> None:
    redis = start_redis()
    line = open_kafka_line(SMALL, store_url=redis.url)
    ledger = line.ledger()
    bridges = [line.bridge(command=IMPATIENT).start() for _ in range(2)]
    for bridge in bridges:
        bridge.wait_ready()
    ledger.produce(RATE, (0, 2000))
    ledger.wait_arrivals(2000)
    members = kafka_admin.members(line.url, line.name)
    assert len(members) == 2
    if fault == "stands still":
        redis.pause()
    else:
        redis.kill()
    away = time.monotonic()
    while time.monotonic() - away < 3 * MAX_POLL_INTERVAL_S:
        time.sleep(0.5)
        assert kafka_admin.members(line.url, line.name) == members, "the group was shared out anew"
    redis.resume()
    redis.start()
    healed = time.time()
    ledger.wait_arrivals(8000)
    for bridge in bridges:
        bridge.wait_health("All well.")
    ledger.stop_producing()
    line.settled(ledger).assert_kept(2 * 2 * WINDOW)
    assert ledger.late_after(healed) < HEALED_S
    assert kafka_admin.members(line.url, line.name) == members
