"""Consumers that fail at random, while postdate, Kafka and Redis are killed: every record ends, none is early."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bridge_process import Bridge, Tables
from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.flow import freeze
from tests.chaos.kafka_line import LedgerLine
from tests.chaos.kafka_retry_ledger import KafkaRetryLedger
from tests.devstack import kafka_admin
from tests.devstack.fixtures import StartRedis
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.devstack.service import Service
from tests.kafka_line import ROUTE

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(400)]

RATE = 500.0
WAITS_S = (0.5, 1.0, 2.0)
WINDOW = 500
#: How often each server is killed.
TIMES = 2

Open = Callable[..., tuple[LedgerLine, KafkaRetryLedger]]


@pytest.fixture
def redis(start_redis: StartRedis) -> Redis:
    return start_redis({"appendonly": "yes", "appendfsync": "always"})


@pytest.fixture
def open_both(open_kafka_line: OpenKafkaLine, redis: Redis, tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as opened:

        def open_one(hold: bool = False, keys: int = 1000) -> tuple[LedgerLine, KafkaRetryLedger]:
            settings: Tables = {"kafka": {"window": WINDOW, "confirm_timeout": "5s"}}
            line = open_kafka_line(settings, store_url=redis.url)
            back = kafka_admin.create_topic(line.url, line.partitions, name=f"{line.topic}.billing")
            retries = {"kind": "retry", "deliver_to": back, "schedule": ["500ms", "1s", "2s"], "hold": hold}
            line.settings["routes"][ROUTE] |= retries
            line.start()
            return line, opened.enter_context(KafkaRetryLedger(line, back, WAITS_S, RATE, keys))

        yield open_one


def test_while_nothing_is_down_attempts_and_waits_are_exact(open_both: Open) -> None:
    _, ledger = open_both()
    time.sleep(float(os.environ.get("POSTDATE_RETRY_LEDGER_S", "30")))
    verdict = ledger.settle(60)
    verdict.assert_kept(copies_max=0)
    own_ms = sorted(late_ms - before_ms for late_ms, before_ms in verdict.late_ms)  # without the error handler's part
    assert own_ms[int(0.99 * len(own_ms))] < 50, str(verdict)


def test_with_hold_the_records_of_a_key_return_in_the_order_of_their_failures(open_both: Open) -> None:
    _, ledger = open_both(hold=True, keys=50)
    time.sleep(15)
    verdict = ledger.settle(60)
    verdict.assert_kept(copies_max=0)
    assert verdict.misordered == 0


@pytest.mark.parametrize("fault", ["freezes", "dies"])
@pytest.mark.parametrize("kind", ["redis", "kafka", "instance"])
def test_with_hold_every_record_ends_through_faults(
    open_both: Open, redis: Redis, own_kafka: Kafka, kind: str, fault: str
) -> None:
    line, ledger = open_both(hold=True, keys=50)
    servers: dict[str, Service | Bridge] = {"redis": redis, "kafka": own_kafka, "instance": line.bridges[0]}
    server = servers[kind]
    for _ in range(TIMES):
        ledger.go_on()
        if fault == "freezes":
            freeze(server)
        else:
            server.kill()
            server.start()
    ledger.go_on()
    verdict = ledger.settle(120)
    verdict.assert_kept(copies_max=TIMES * 2 * WINDOW)
    if kind == "redis":
        assert verdict.misordered == 0


def test_every_record_ends_through_kills_of_postdate_kafka_and_redis(
    open_both: Open, redis: Redis, own_kafka: Kafka
) -> None:
    line, ledger = open_both()
    for _ in range(TIMES):
        ledger.go_on()
        line.bridges[-1].kill()
        line.start()
        ledger.go_on()
        own_kafka.kill()
        own_kafka.start()
        ledger.go_on()
        redis.kill()
        redis.start()
    ledger.go_on()
    ledger.settle(120).assert_kept(copies_max=2 * TIMES * 2 * WINDOW)
