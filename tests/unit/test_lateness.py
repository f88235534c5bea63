"""Lateness: a percentile is exact to a quarter of itself, and never beyond the worst that was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.telemetry.lateness import BOUNDS_MS, Lateness


def late_by(*milliseconds: float) -> Lateness:
    lateness = Lateness()
    for late_ms in milliseconds:
        lateness.add(1_000_000 + late_ms, [1_000_000])
    return lateness


def test_nothing_delivered_is_not_late() -> None:
    assert Lateness().percentile_ms(0.99) == 0
    assert Lateness().max_ms == 0


@given(st.lists(st.floats(0.3, 1e5), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_right_to_a_quarter_of_itself(lates: list[float], share: float) -> None:
    lateness = late_by(*lates)
    ranked = sorted(lates)
    exact = ranked[min(len(ranked) - 1, max(0, -(-int(share * len(ranked) * 1000) // 1000) - 1))]
    found = lateness.percentile_ms(share)
    assert found <= max(lates) + 0.01
    assert found >= exact - 0.01 or found >= exact / 1.25


def test_the_worst_is_kept_as_it_was() -> None:
    assert late_by(1, 2, 123.456, 3).max_ms == pytest.approx(123.456)
    assert late_by(1, 2, 123.456, 3).percentile_ms(1) == pytest.approx(123.456)


def test_one_late_message_among_a_thousand_shows_in_the_tail_and_not_in_the_middle() -> None:
    lateness = late_by(*[1.0] * 999, 5000.0)
    assert lateness.percentile_ms(0.5) <= 1.25
    assert lateness.percentile_ms(0.99) <= 1.25
    assert lateness.percentile_ms(0.9999) == pytest.approx(5000)


def test_lateness_beyond_every_class_is_counted() -> None:
    lateness = late_by(10 * BOUNDS_MS[-1])
    assert sum(lateness.counts) == lateness.total == 1
    assert lateness.percentile_ms(0.5) == pytest.approx(10 * BOUNDS_MS[-1])


def test_a_batch_is_counted_message_by_message() -> None:
    lateness = Lateness()
    lateness.add(2000, [1000, 1500, 2000])
    assert lateness.total == 3
    assert lateness.max_ms == 1000
