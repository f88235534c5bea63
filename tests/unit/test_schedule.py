"""Retry schedules and jitter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.message import Delivery, Failure
from bridge.delay.schedule import NO_JITTER, Jitter, RetrySchedule, growing_waits_ms, read_jitter
from bridge.pipeline.decide import Parking, Rejection, decide
from bridge.pipeline.derive import route_rules
from bridge.settings import Route, Settings

SCHEDULE = RetrySchedule((10_000, 60_000), consumers="the consumers of queue 'work'")


def test_each_failure_waits_its_own_time_and_the_last_has_none() -> None:
    assert [SCHEDULE.wait_ms(attempt, 0.0) for attempt in (1, 2, 3, 4)] == [10_000, 60_000, None, None]


def test_a_growing_schedule_stops_growing_at_its_maximum() -> None:
    assert growing_waits_ms(1000, 3.0, 20_000, 5) == (1000, 3000, 9000, 20_000, 20_000)
    assert growing_waits_ms(1000, 100.0, 2**40, 1000)[-1] == 2**40


@pytest.mark.parametrize(
    ("text", "jitter"),
    [("", NO_JITTER), ("20%", Jitter(0.2, 0)), ("30s", Jitter(0.0, 30_000)), ("0.5 %", Jitter(0.005, 0))],
)
def test_jitter_is_a_share_or_a_duration(text: str, jitter: Jitter) -> None:
    assert read_jitter(text) == jitter


@pytest.mark.parametrize("text", ["20", "101%", "-5s%", "soon", "%"])
def test_other_text_is_no_jitter(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_jitter(text)


@given(st.integers(0, 10**9), st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**6))
def test_jitter_only_postpones_and_never_beyond_its_share(delay: int, spread: float, share: float, most: int) -> None:
    extra = Jitter(share, most).extra_ms(delay, spread)
    assert 0 <= extra <= delay * share + most


def _rules(**changed: object) -> Settings:
    route = Route.model_validate({"kind": "retry", "queue": "work", "schedule": ["10s", "1m"], **changed})
    return Settings(routes={"again": route})


def _delivery(attempt: int) -> Delivery:
    return Delivery(0, "again", b"body", b"key", {}, 1_000_000, failure=Failure(attempt, "rejected", 900_000))


def test_a_failed_message_is_parked_for_the_wait_of_its_attempt() -> None:
    rules = route_rules(_rules(), "again")
    found = [decide(_delivery(attempt), rules) for attempt in (1, 2)]
    assert [decision.due_ms for decision in found if isinstance(decision, Parking)] == [1_010_000, 1_060_000]


def test_after_the_last_attempt_it_is_a_dead_letter_with_its_history() -> None:
    found = decide(_delivery(3), route_rules(_rules(), "again"))
    assert isinstance(found, Rejection)
    first = "first at 1970-01-01T00:15:00.000Z; the last reason: rejected"
    assert str(found.reason) == f"exhausted: the consumers of queue 'work' failed 3 times, {first}"


def test_with_another_ending_it_leaves_at_once_after_the_last_attempt() -> None:
    found = decide(_delivery(3), route_rules(_rules(then="exchange:given.up"), "again"))
    assert found == Parking(1_000_000, b"", False)


def test_jitter_of_a_retry_is_the_same_whenever_the_delivery_comes_again() -> None:
    rules = route_rules(_rules(jitter="50%"), "again")
    first, again = decide(_delivery(1), rules), decide(_delivery(1), rules)
    assert first == again
    assert isinstance(first, Parking)
    assert 1_010_000 <= first.due_ms <= 1_015_000
