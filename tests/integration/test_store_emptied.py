"""A store that somebody empties, or fills, under a running postdate: it is noticed, and said where people look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bridge_line import merged
from tests.bridge_process import shortened
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.integration.test_levels_commands import Shell
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

GONE = "Redis was emptied, or replaced by an older copy of its data, noticed at 2"


def parked(line: Line, count: int) -> None:
    for number in range(count):
        line.publish(Props([delay(60_000)], {"delivery_mode": b"\2"}), b"message %d" % number)
    wait_for(lambda: line.waiting() == count, f"{count} are parked")


def agreement(redis: Redis, line: Line) -> dict[bytes, bytes]:
    with redis.client() as client:
        return dict(client.hgetall(f"{{{line.name}}}:store"))


def test_an_emptied_store_is_told_of_by_log_health_check_and_stats(
    rabbitmq: RabbitMQ, start_redis: StartRedis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    redis = start_redis()
    with Line(rabbitmq.url, redis.url, tmp_path, {}) as line, line.start() as bridge:
        parked(line, 27)
        before = agreement(redis, line)
        redis.command("FLUSHALL")
        bridge.wait_health(GONE, 15)
        bridge.wait_log(GONE)
        shell = Shell(line, capsys)
        (found,) = (row for row in shell.rows("check") if GONE in row["text"] and row["subject"] == "store")
        assert found["level"] == "WARN"
        assert GONE in json.loads(shell("stats", "-o", "json"))["warnings"][0]
        made = agreement(redis, line)
        assert {name: made[name] for name in before} == before
        with line.bridge(merged(line.settings, {"redis": {"shards": 4}})).start() as other:
            assert other.wait_end() == 1
            assert "the store was made with 8 shards and redis.shards is 4" in other.log()
        assert bridge.terminate() == 0


def test_an_instance_stops_when_the_store_becomes_one_of_other_shards(
    rabbitmq: RabbitMQ, start_redis: StartRedis, tmp_path: Path
) -> None:
    redis = start_redis()
    with Line(rabbitmq.url, redis.url, tmp_path, {}) as line, line.start() as bridge:
        with redis.client() as client, client.pipeline(transaction=True) as both:
            both.flushall()
            both.hset(f"{{{line.name}}}:store", mapping={"format": 1, "shards": 4})
            both.execute()
        assert bridge.wait_end() == 1
        assert "the store was made with 4 shards and redis.shards is 8" in bridge.log()


def test_a_store_that_is_nearly_full_is_told_of_before_it_is_full(
    rabbitmq: RabbitMQ, start_redis: StartRedis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    redis = start_redis()
    with Line(rabbitmq.url, redis.url, tmp_path, {}) as line:
        line.command = shortened("adapters.redis.guard._MEMORY_EVERY=1")
        bridge = line.start()
        with redis.client() as client:
            client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.08))  # it may shrink a little
        bridge.wait_health("% of its maxmemory. At 100% nothing new is parked", 20)
        shell = Shell(line, capsys)
        levels = {row["level"] for row in shell.rows("check") if "% of its maxmemory" in row["text"]}
        assert levels == {"WARN"}  # of the store, and of the instance that says so
        assert "% of its maxmemory" in shell("stats")
        redis.command("CONFIG", "SET", "maxmemory", 0)
        bridge.wait_health("All well.", 20)
        assert bridge.terminate() == 0
