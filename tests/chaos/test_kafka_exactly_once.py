"""With ``release = "transactional"`` a read_committed consumer sees each record once, through kills at every step.

The ledger's consumer reads committed records only, as librdkafka does by default.
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.bridge_line import LEASE_S, SHARDS, merged
from tests.bridge_process import Bridge, Tables
from tests.chaos import victim
from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.kafka_ledger import KafkaLedger
from tests.chaos.kafka_line import LedgerLine
from tests.chaos.recovery import settled
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

ONCE: Tables = {"kafka": {"release": "transactional", "window": 1000}}
RECORDS, RATE = 60_000, 800.0
#: Each shard begins with a transaction of its own; a death later than these is in the middle of the work.
OPENING = SHARDS
#: The most transactions that a victim ends before it dies.
LATEST = 60
DEADLINE_S = 240.0


def open_once(open_kafka_line: OpenKafkaLine, settings: Tables | None = None) -> LedgerLine:
    """A line with the marker topic: the victim creates none."""
    line = open_kafka_line(merged(ONCE, settings or {}))
    configs = {"message.timestamp.type": "LogAppendTime"}
    kafka_admin.create_topic(line.url, SHARDS, configs, name=f"{line.name}.released")
    return line


def start_victim(line: LedgerLine, step: str, nth: int) -> Bridge:
    return line.bridge(None, ("tests.chaos.victim", step, str(nth))).start()


def test_a_death_after_the_commit_copies_nothing_and_loses_nothing(open_kafka_line: OpenKafkaLine) -> None:
    line = open_once(open_kafka_line, {"redis": {"shards": 2}})
    ledger = line.ledger()
    dying = start_victim(line, victim.AFTER_COMMIT, 4)
    ledger.produce(RATE, (0, 500), count=400)
    assert dying.wait_end() == -signal.SIGKILL
    line.bridge().start()
    ledger.produced()
    settled(line, ledger).assert_kept(copies_max=0)


def feed(open_kafka_line: OpenKafkaLine) -> tuple[LedgerLine, KafkaLedger]:
    line = open_once(open_kafka_line)
    ledger = line.ledger()
    ledger.produce(RATE, (0, 2000), count=RECORDS)
    return line, ledger


def end(line: LedgerLine, ledger: KafkaLedger) -> None:
    ledger.produced(DEADLINE_S)
    verdict = settled(line, ledger, DEADLINE_S)
    verdict.assert_kept(copies_max=0)
    assert verdict.owed == RECORDS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_sixty_thousand_records_and_a_kill_at_each_step_come_once(open_kafka_line: OpenKafkaLine) -> None:
    line, ledger = feed(open_kafka_line)
    seeded, deaths = random.Random(11), 0
    while ledger.confirmed() < RECORDS - RATE:
        step = victim.TRANSACTION_STEPS[deaths % len(victim.TRANSACTION_STEPS)]
        dying = start_victim(line, step, OPENING + seeded.randrange(1, LATEST))
        assert dying.wait_end(60) == -signal.SIGKILL
        deaths += 1
    print(f"deaths: {deaths}")
    assert deaths >= 2 * len(victim.TRANSACTION_STEPS)
    line.bridge().start()
    end(line, ledger)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_with_two_instances_kills_and_a_freeze_beyond_the_lease_bring_no_copy(open_kafka_line: OpenKafkaLine) -> None:
    line, ledger = feed(open_kafka_line)
    steady, seeded, faults = line.bridge().start().wait_ready(), random.Random(12), 0
    while ledger.confirmed() < RECORDS - RATE:
        step = victim.TRANSACTION_STEPS[faults % len(victim.TRANSACTION_STEPS)]
        dying = start_victim(line, step, seeded.randrange(1, LATEST))
        if faults % 3 == 2:
            ledger.wait_arrivals(500, 60)
            steady.pause()
            time.sleep(2 * LEASE_S)
            steady.resume()
        assert dying.wait_end(60) == -signal.SIGKILL
        faults += 1
    print(f"faults: {faults}")
    end(line, ledger)
    assert steady.running()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_kafka_that_is_killed_and_one_that_stands_still_bring_no_copy(
    open_kafka_line: OpenKafkaLine, own_kafka: Kafka
) -> None:
    line, ledger = feed(open_kafka_line)
    bridges = [line.bridge().start().wait_ready() for _ in range(2)]
    for fault in range(3):
        ledger.wait_arrivals(8000, 120)
        if fault == 1:
            own_kafka.pause()
            time.sleep(15)
            own_kafka.resume()
        else:
            own_kafka.kill()
            own_kafka.start()
    end(line, ledger)
    assert all(bridge.running() for bridge in bridges)
