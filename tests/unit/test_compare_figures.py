"""The statistics of a comparison: quantiles, order, a short delay behind a long one, rounding, gaps, bins."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.lab.figures import (
    curve,
    in_bins,
    out_of_order,
    quantiles,
    rounding,
    short_behind_long_ms,
    standstill_ms,
    thinned,
)


def test_quantiles_are_values_that_so_large_a_share_lies_below() -> None:
    found = quantiles([float(value) for value in reversed(range(10_000))])
    assert found == {"p50_ms": 5000, "p90_ms": 9000, "p99_ms": 9900, "p999_ms": 9990, "max_ms": 9999}


def test_where_nothing_came_there_are_no_quantiles() -> None:
    assert set(quantiles([]).values()) == {None}
    assert curve([]) == []


@given(st.lists(st.floats(-10, 10_000), min_size=1, max_size=3000))
def test_a_curve_rises_and_ends_at_the_maximum_with_no_share_finer_than_a_message(late_ms: list[float]) -> None:
    found = curve(late_ms)
    assert found == sorted(found)
    assert found[-1] == (1.0, round(max(late_ms), 3))
    assert all((1 - share) * len(late_ms) >= 1 - 1e-3 for share, _ in found[:-1])


@pytest.mark.parametrize(
    ("numbers", "late"),
    [([], 0), ([0, 1, 2], 0), ([0, 2, 1, 3], 1), ([2, 0, 1], 2), ([3, 2, 1, 0], 3), ([0, 5, 6], 0)],
)
def test_out_of_order_are_those_that_come_after_one_published_later(numbers: list[int], late: int) -> None:
    assert out_of_order(numbers) == late


def test_in_one_queue_a_short_delay_is_as_late_as_the_long_one_before_it_is_long() -> None:
    asked = [1000, 5000] * 50
    in_one_queue = [5000 - delay + 2.0 for delay in asked]
    assert short_behind_long_ms(asked, in_one_queue) == 4000


def test_where_each_comes_at_its_moment_a_short_delay_is_no_later_than_a_long_one() -> None:
    assert short_behind_long_ms([1000, 5000] * 50, [3.0] * 100) == 0


def test_nothing_is_said_of_short_and_long_where_all_delays_are_alike_or_messages_are_few() -> None:
    assert short_behind_long_ms([1000] * 100, [3.0] * 100) is None
    assert short_behind_long_ms([1000, 5000], [4000.0, 2.0]) is None


def test_rounding_is_what_the_rule_adds_to_the_asked_delay() -> None:
    assert rounding([1000, 1200, 4000], [1000, 5000, 5000]) == {"rounding_p50_ms": 1000, "rounding_max_ms": 3800}
    assert rounding([], []) == {"rounding_p50_ms": None, "rounding_max_ms": None}


def test_a_standstill_is_the_longest_time_between_two_arrivals() -> None:
    assert standstill_ms([10.0, 10.1, 11.6, 11.7]) == 1500
    assert standstill_ms([10.0]) is None


def test_bins_count_from_the_moment_on_and_before_it_and_tell_the_gaps() -> None:
    found = in_bins([99.99, 100.0, 100.01, 100.09], 100.0, 0.02)
    assert found == [(-0.02, 1), (0.0, 2), (0.02, 0), (0.04, 0), (0.06, 0), (0.08, 1)]
    assert in_bins([], 100.0, 0.02) == []


@given(st.integers(0, 5000), st.integers(1, 500))
def test_thinned_are_evenly_taken_and_never_more_than_wanted(count: int, most: int) -> None:
    pairs = [(float(at), 0.0) for at in range(count)]
    found = thinned(pairs, most)
    assert len(found) <= most
    assert found[:1] == pairs[:1]
    assert len({after[0] - before[0] for before, after in pairwise(found)}) <= 1
