"""On a bridge of Kafka, Redis stands still, dies and is full: the intake waits and keeps its place in the group."""

from __future__ import annotations

import time

import pytest

from tests.bridge_process import Tables
from tests.chaos.conftest import OpenKafkaLine, freeze_again_and_again
from tests.chaos.recovery import go_on, settled
from tests.devstack import kafka_admin
from tests.devstack.fixtures import StartRedis
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

RATE, SLOW_RATE = 2000.0, 1000.0
WINDOW = 500
SMALL: Tables = {"kafka": {"window": WINDOW}}
#: Kafka's own name for it; the bridge that runs here has it set low.
MAX_POLL_INTERVAL_S = 3.0
IMPATIENT = ("tests.chaos.impatient", str(int(MAX_POLL_INTERVAL_S * 1000)))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["stands still", "is gone"])
def test_a_redis_away_for_longer_than_max_poll_interval_leaves_the_group_as_it_is(
    open_kafka_line: OpenKafkaLine, start_redis: StartRedis, fault: str
) -> None:
    redis = start_redis({"appendfsync": "always"})
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
    go_on(line, ledger, bridges, 2 * 2 * WINDOW, more=8000)
    assert kafka_admin.members(line.url, line.name) == members


@pytest.mark.long
def test_a_redis_killed_over_and_over_that_comes_back_with_its_append_only_file_loses_nothing(
    open_kafka_line: OpenKafkaLine, start_redis: StartRedis
) -> None:
    redis, times = start_redis({"appendfsync": "always"}), 5
    line = open_kafka_line(SMALL, store_url=redis.url)
    ledger, bridges = line.flowing(SLOW_RATE, instances=2)
    for _ in range(times):
        redis.kill()
        time.sleep(1)
        redis.start()
        ledger.wait_arrivals(1000)
    go_on(line, ledger, bridges, times * 2 * 2 * WINDOW)


@pytest.mark.long
def test_a_full_redis_delivers_what_it_has_takes_nothing_more_and_goes_on_when_it_has_room(
    open_kafka_line: OpenKafkaLine, start_redis: StartRedis
) -> None:
    redis = start_redis()
    line = open_kafka_line(SMALL, store_url=redis.url)
    ledger, (bridge,) = line.flowing(SLOW_RATE)
    members = kafka_admin.members(line.url, line.name)
    redis.command("CONFIG", "SET", "maxmemory", "1")
    bridge.wait_health("Redis is at its maxmemory")
    wait_for(lambda: line.stored() == 0, "what was parked is delivered")
    delivered = kafka_admin.count(line.url, line.topic)
    time.sleep(3)
    assert kafka_admin.count(line.url, line.topic) == delivered, "something was taken"
    redis.command("CONFIG", "SET", "maxmemory", "0")
    go_on(line, ledger, [bridge], 0, more=3000)
    assert kafka_admin.members(line.url, line.name) == members


@pytest.mark.long
@pytest.mark.parametrize("release", ["plain", "transactional"])
def test_a_redis_that_stands_still_again_and_again_breaks_no_order_of_a_key(
    open_kafka_line: OpenKafkaLine, start_redis: StartRedis, release: str
) -> None:
    redis = start_redis()
    line = open_kafka_line({"kafka": {"window": WINDOW, "release": release}}, store_url=redis.url)
    ledger = line.ledger(keys=5)
    for _ in range(2):
        line.bridge().start().wait_ready()
    ledger.produce(80.0, (0, 4000))
    ledger.wait_arrivals(200)
    freeze_again_and_again(redis)
    ledger.wait_arrivals(200)
    ledger.stop_producing()
    verdict = settled(line, ledger, 60)
    verdict.assert_kept(copies_max=0 if release == "transactional" else None)
    assert verdict.misordered == 0, str(verdict)
