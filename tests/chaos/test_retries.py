"""Consumers that fail at random, while postdate, RabbitMQ and Redis are killed: every message ends, none is early."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bridge_line import QUICK
from tests.bridge_process import Bridge
from tests.chaos.retry_ledger import RetryLedger
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import RabbitMQ
from tests.retry_line import RetryLine

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(400)]

RATE = 500.0
WAITS_S = (0.5, 1.0, 2.0)
SCHEDULE = ["500ms", "1s", "2s"]
SAFE = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}

Open = Callable[[str], tuple[RetryLine, RetryLedger]]


@pytest.fixture
def open_both(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as opened:

        def open_one(store_url: str) -> tuple[RetryLine, RetryLedger]:
            line = RetryLine(rabbitmq.url, store_url, tmp_path, QUICK)
            failing = line.add("work", SAFE, schedule=SCHEDULE)
            opened.enter_context(line)
            line.start()
            return line, opened.enter_context(RetryLedger(line, failing, WAITS_S, RATE))

        yield open_one


def test_when_nothing_is_down_attempts_and_waits_are_exact(open_both: Open, start_redis: StartRedis) -> None:
    seconds = float(os.environ.get("POSTDATE_RETRY_LEDGER_S", "30"))
    _, ledger = open_both(start_redis().url)
    time.sleep(seconds)
    verdict = ledger.settle(30)
    print(verdict)
    verdict.assert_kept()
    assert verdict.copies == verdict.redelivered == 0
    assert verdict.dead > 0
    # The wait counts from arrival at postdate, so this includes RabbitMQ's dead-lettering, and this process's own load.
    assert verdict.late(0.9) < 50, str(verdict)


def test_an_alarm_on_memory_ends_no_retry(open_both: Open, start_redis: StartRedis, own_rabbitmq: RabbitMQ) -> None:
    _, ledger = open_both(start_redis().url)
    ledger.go_on()
    own_rabbitmq.alarm(True)
    time.sleep(6)
    own_rabbitmq.alarm(False)
    ledger.go_on()
    verdict = ledger.settle(60)
    print(verdict)
    verdict.assert_kept()
    assert verdict.copies == 0


def test_every_message_ends_through_kills_of_postdate_rabbitmq_and_redis(
    open_both: Open, start_redis: StartRedis, own_rabbitmq: RabbitMQ
) -> None:
    redis = start_redis({"appendonly": "yes", "appendfsync": "always"})
    line, ledger = open_both(redis.url)
    own_rabbitmq.remember()

    def kill_postdate() -> None:
        bridge: Bridge = line.bridges[-1]
        bridge.kill()
        line.start()

    for _ in range(2):
        ledger.go_on()
        kill_postdate()
        ledger.go_on()
        own_rabbitmq.kill()
        own_rabbitmq.start()
        ledger.go_on()
        redis.kill()
        redis.start()
    ledger.go_on()
    verdict = ledger.settle(90)
    print(verdict)
    verdict.assert_kept()
    assert verdict.dead > 0
