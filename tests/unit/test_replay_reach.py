"""What `check` and `setup` say about how far back a replay reaches."""

from __future__ import annotations

import pytest

from adapters.kafka.topology.reach import sentence

DAY_MS = 86_400_000
YEAR = (365 * DAY_MS, "limits.max_delay")
SCHEDULE = (DAY_MS // 24, "routes.failed.schedule")


@pytest.mark.parametrize(
    ("kept_ms", "most_bytes", "longest", "text"),
    [
        (7 * DAY_MS, -1, YEAR, "brings back records of the last 7d only (limits.max_delay is 365d)"),
        (365 * DAY_MS, -1, YEAR, "brings back all that waits (limits.max_delay is 365d)"),
        (float("inf"), -1, YEAR, "brings back all that waits (limits.max_delay is 365d)"),
        (7 * DAY_MS, -1, SCHEDULE, "brings back all that waits (routes.failed.schedule is 1h)"),
        (
            7 * DAY_MS,
            10**9,
            YEAR,
            "brings back records of the last 7d only (limits.max_delay is 365d), as far as retention.bytes "
            "(1000000000) keeps them",
        ),
    ],
)
def test_a_replay_reaches_as_far_back_as_kafka_keeps_the_records(
    kept_ms: float, most_bytes: int, longest: tuple[int, str], text: str
) -> None:
    assert sentence("t.delay", kept_ms, most_bytes, *longest) == f"should Redis be lost, a replay of 't.delay' {text}"
