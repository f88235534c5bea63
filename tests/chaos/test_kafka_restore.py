"""Redis is emptied under load, and there is no database: the intake's records bring everything back."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from tests.bridge_line import LEASE_S
from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.kafka_ledger import Headers, KafkaLedger
from tests.chaos.kafka_line import LedgerLine
from tests.devstack.fixtures import StartRedis
from tests.devstack.service import wait_for
from tests.kafka_line import ROUTE
from tests.preloaded import run_postdate
from tests.proof.record import record

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

#: A look of the guard, and what a busy machine adds to it.
LOOK_S = 2.5


class CancellingLedger(KafkaLedger):
    """One of seven records is cancelled by a later one, at the latest two seconds before it is due."""

    def __init__(self, line: LedgerLine) -> None:
        super().__init__(line.url, line.intake, line.topic, line.partitions)
        self._drawn = random.Random(11)
        self._planned: list[tuple[float, int, bytes]] = []
        #: When Kafka had the cancellation of each number that must not arrive.
        self.cancelled: dict[int, float] = {}
        #: Those whose cancellation Kafka had so late that they may have been delivered.
        self.undecided: set[int] = set()

    def _more_headers(self, number: int, key: bytes | None, due_ms: int) -> Headers:
        now_ms = int(time.time() * 1000)
        if key is None or due_ms - now_ms < 3500 or self._drawn.random() > 0.15:
            return []
        at_ms = self._drawn.randint(now_ms + 200, due_ms - 2000)
        heappush(self._planned, (at_ms / 1000, number, key))
        return [("x-delay-key", b"own-%d" % number)]

    def _produce_one(self, delays_ms: tuple[int, int]) -> None:
        super()._produce_one(delays_ms)
        while self._planned and self._planned[0][0] <= time.time():
            self._cancel(*heappop(self._planned)[1:])

    def _cancel(self, number: int, key: bytes) -> None:
        def answered(error: object, message: Message) -> None:
            owed = self._owed[number]
            if error is None and owed.confirmed_at:
                owed.confirmed_at = 0.0  # it is owed no more
                if time.time() < owed.due - 1:
                    self.cancelled[number] = time.time()
                else:  # on a busy machine: it may arrive or not
                    self.undecided.add(number)

        named: Any = [("x-delay-cancel", b"own-%d" % number)]
        self._producer.produce(self._intake, None, key, on_delivery=answered, headers=named)

    def came_in_spite(self, lost_at: float, restored_at: float) -> list[tuple[float, float]]:
        """Cancelled messages that came all the same: when they were cancelled and due, in seconds from the loss.

        While a restore runs, a cancellation may not find its message yet: then it counts from the end of the restore.
        """
        came = [
            (at, self._receipts[number][0].due) for number, at in self.cancelled.items() if number in self._receipts
        ]
        return [(at - lost_at, due - lost_at) for at, due in came if at < lost_at or due > restored_at]

    def copies(self) -> list[float]:
        """The due moments of what came more than once."""
        return sorted(receipts[0].due for receipts in self._receipts.values() if len(receipts) > 1)


@pytest.fixture
def ledger_line(
    open_kafka_line: OpenKafkaLine, start_redis: StartRedis
) -> Iterator[tuple[LedgerLine, CancellingLedger, Any]]:
    redis = start_redis()
    line = open_kafka_line(store_url=redis.url)
    with CancellingLedger(line) as ledger:
        yield line, ledger, redis


def restored(line: LedgerLine, *more: str, timeout_s: float = 300) -> dict[str, Any]:
    words = ("restore", ROUTE, "--from-intake", "--config", str(line.file()), "-o", "json", *more)
    ended = run_postdate(words, Path(line.folder), timeout_s=timeout_s)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize(
    ("rate", "delays_s", "before_s", "after_s"),
    [
        (200.0, (1, 8), 5, 2),
        pytest.param(1000.0, (1, 120), 60, 20, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
    ids=["short", "long"],
)
def test_after_a_restore_from_the_intake_nothing_is_lost_and_what_was_cancelled_stays_so(
    ledger_line: tuple[LedgerLine, CancellingLedger, Any],
    rate: float,
    delays_s: tuple[int, int],
    before_s: float,
    after_s: float,
) -> None:
    line, ledger, redis = ledger_line
    bridges = [line.bridge().start() for _ in range(2)]
    for bridge in bridges:
        bridge.wait_ready()
    ledger.produce(rate, (delays_s[0] * 1000, delays_s[1] * 1000))
    time.sleep(before_s)
    waited = line.stored()
    lost_at = time.time()
    redis.command("FLUSHALL")
    bridges[0].wait_health("Redis was emptied", 20)
    planned = restored(line, "--dry-run")
    began = time.monotonic()
    found = restored(line, "--yes")
    took_s, restored_at = time.monotonic() - began, time.time()
    assert "Redis was emptied" in bridges[0].health()
    again = restored(line, "--yes", "--complete")
    wait_for(lambda: "Redis was emptied" not in bridges[0].health(), "the alarm is over", 20)
    time.sleep(after_s)
    ledger.stop_producing()
    ledger.wait_owed(delays_s[1] + 60)
    wait_for(lambda: line.stored() == 0, "the store is empty", delays_s[1] + 20)
    verdict = ledger.settle(1, linger_s=1)
    copies = ledger.copies()
    around = [f"{due - lost_at:+.1f}" for due in (copies[:1] + copies[-1:])]
    print(f"waited {waited}, restored {found} in {took_s:.1f} s, planned {planned['parked']}, then {again}")
    print(f"{verdict}; copies of what was due {around} s around the loss")
    print(f"cancelled {len(ledger.cancelled)}, and too late to tell {len(ledger.undecided)}")
    record(messages=verdict.owed, lost=len(verdict.lost), early=len(verdict.early), copies=verdict.copies)
    assert found["parked"] > waited / 2
    assert (again["parked"], again["dead"]) == (0, 0)
    assert (verdict.lost, verdict.early, verdict.mangled, verdict.strangers) == ([], [], [], 0)
    assert len(ledger.cancelled) > 50
    assert ledger.came_in_spite(lost_at, restored_at) == []
    assert all(lost_at - LEASE_S - LOOK_S <= due <= lost_at + 1 for due in copies)
    assert all(bridge.running() for bridge in bridges)
