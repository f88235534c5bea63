"""Which records with timestamps older than their arrival mean that a producer forwards timestamps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.kafka.watchdog import OldTimestamps
from bridge.core.clock import StoreClock
from bridge.core.message import Delivery
from bridge.telemetry.health import Health

OLD_MS = 9_500


def troubles(old_at_s: Iterable[float], old_ms: int = OLD_MS, ahead_s: float = 0.0) -> list[str]:
    """What is reported after records, older by ``old_ms`` than their arrival, at these seconds. Kafka has said just
    before that all is read. This machine's clock is ahead of the store's."""
    passed = [0.0]
    store = StoreClock()
    store.observe(time.monotonic(), time.monotonic(), round((time.time() - ahead_s) * 1e6))
    health = Health(lambda: passed[0])
    watch = OldTimestamps(health, store, lambda: passed[0])
    part: Any = SimpleNamespace(route="orders", caught_up_ms=0, next=5)
    consumer: Any = SimpleNamespace(
        assignment=lambda: {0}, highwater=lambda _: 5, last_poll_timestamp=lambda _: round(time.time() * 1000)
    )
    for passed[0] in old_at_s:
        watch.note_ends(consumer, {0: part})
        arrived_ms = store.now_ms()
        watch.look(part, Delivery(None, "orders", b"", b"", {"x-delay": b"1"}, arrived_ms, arrived_ms - old_ms))
    return list(health.troubles().values())


def test_records_that_a_producer_kept_while_kafka_stood_still_are_no_forwarded_timestamps() -> None:
    assert troubles([0, 0.5, 1, 2, 5]) == []
    assert troubles([0, 1, 16, 17, 39, 40]) == [], "after three freezes"


def test_records_that_go_on_having_old_timestamps_are_reported() -> None:
    (found,) = troubles(range(0, 12, 2))
    assert found.startswith("records of route orders have timestamps older than their arrival, the last one by 9s.")


@pytest.mark.parametrize("ahead_s", [120.0, -120.0, 0.9])
def test_records_that_are_right_are_not_called_old_where_this_machines_clock_is_wrong(ahead_s: float) -> None:
    assert troubles(range(0, 40, 2), old_ms=2_500, ahead_s=ahead_s) == []


def test_while_this_machines_clock_is_wrong_nothing_is_said_of_timestamps() -> None:
    assert troubles(range(0, 40, 2), ahead_s=120.0) == []


def test_the_age_that_is_reported_is_never_below_the_one_that_is_too_old() -> None:
    assert troubles(range(0, 12, 2), old_ms=2_900) == []
    (found,) = troubles(range(0, 12, 2), old_ms=3_500)
    assert "the last one by 3s." in found
