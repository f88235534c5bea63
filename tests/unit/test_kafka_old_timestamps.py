"""Which records with timestamps older than their arrival mean that a producer forwards timestamps."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from adapters.kafka.watchdog import OldTimestamps
from bridge.core.message import Delivery
from bridge.telemetry.health import Health

OLD_MS, NOW_MS = 9_000, 1_800_000_000_000
PARTITION: Any = SimpleNamespace(route="orders", caught_up_ms=NOW_MS)


def troubles(old_at_s: Iterable[float]) -> list[str]:
    """What is reported after records, 9 s older than their arrival, at these seconds."""
    clock = [0.0]
    health = Health(lambda: clock[0])
    watch = OldTimestamps(health, lambda: clock[0])
    for clock[0] in old_at_s:
        watch.look(PARTITION, Delivery(None, "orders", b"", b"", {"x-delay": b"1"}, NOW_MS, NOW_MS - OLD_MS))
    return list(health.troubles().values())


def test_records_that_a_producer_kept_while_kafka_stood_still_are_no_forwarded_timestamps() -> None:
    assert troubles([0, 0.5, 1, 2, 5]) == []
    assert troubles([0, 1, 16, 17, 39, 40]) == [], "after three freezes"


def test_records_that_go_on_having_old_timestamps_are_reported() -> None:
    (found,) = troubles(range(0, 12, 2))
    assert found.startswith("records of route orders have timestamps older than their arrival, the last one by 9s.")
