"""The statistics of bench and compare: percentiles, growth, order, faults, medians, rounding, gaps and bins."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.lab.bench import KINDS, BenchPlan, BenchRow, complaints, quick
from bridge.lab.figures import (
    Figures,
    curve,
    in_bins,
    is_growing,
    middle,
    of_load,
    out_of_order,
    percentile,
    quantiles,
    rounding,
    short_behind_long_ms,
    standstill_ms,
    thinned,
)
from bridge.lab.load import Got, Load, Sent, Tally

LOAD = Load("front", "key", "queue", 4, run=1)


def figures(got: Got) -> Figures:
    return of_load(LOAD, Sent(4, 100.0, 102.0, 0), got)


def test_a_percentile_is_taken_from_the_ordered_values() -> None:
    ordered = [float(value) for value in range(1000)]
    assert [percentile(ordered, share) for share in (0, 0.5, 0.99, 0.999)] == [0, 500, 990, 999]
    assert percentile([], 0.5) is None


@pytest.mark.parametrize(
    ("late_ms", "growing"),
    [([3.0] * 300, False), ([3.0] * 200 + [6.0] * 100, False), ([3.0] * 200 + [50.0] * 100, True), ([1.0], False)],
)
def test_growth_is_more_than_noise(late_ms: list[float], growing: bool) -> None:
    assert is_growing(late_ms) is growing


def test_the_figures_of_a_load_are_rates_lateness_and_faults() -> None:
    found = figures(Got(3, 1, 1, array("d", [2.0, -5.0, 4.0]), 103.0, 104.0))
    assert (found["publish_per_s"], found["deliver_per_s"]) == (2, 3)
    assert (found["lost"], found["duplicates"], found["early"], found["refused"]) == (1, 1, 1, 0)
    assert (found["p50_ms"], found["max_ms"]) == (2.0, 4.0)


def test_a_load_without_arrivals_has_no_lateness() -> None:
    found = figures(Got(0, 0, 0, array("d"), 0.0, 0.0))
    assert found["lost"] == 4
    assert found["p50_ms"] is None
    assert found["deliver_per_s"] is None


def tallied(load: Load, came: Sequence[tuple[int, float]]) -> Got:
    """What a meter makes of these messages: number and lateness in milliseconds."""
    tally = Tally(load)
    for number, late_ms in came:
        tally.note(load.run << 32 | number, 100.0, 100.0 + late_ms / 1000)
    return tally.got()


def test_a_tally_counts_each_message_once_with_duplicates_and_early_ones_and_ignores_other_runs() -> None:
    tally = Tally(LOAD)
    for number, now in ((1 << 32 | 0, 100.002), (1 << 32 | 0, 100.003), (1 << 32 | 3, 99.99), (2 << 32 | 1, 100.0)):
        tally.note(number, 100.0, now)
    got = tally.got()
    assert (got.messages, got.duplicates, got.early) == (2, 1, 1)
    assert [round(late, 3) for late in got.late_ms] == [2.0, -10.0]
    assert (got.first, got.last) == (100.002, 99.99)


def test_order_is_checked_per_key_and_only_if_all_are_due_at_one_moment() -> None:
    burst = Load("front", "key", "queue", 6, run=1, due_at=100.0, keys=2)
    in_order = [(1, 0.0), (0, 0.0), (2, 0.0), (3, 0.0), (5, 0.0), (4, 0.0)]
    broken = [(0, 0.0), (4, 0.0), (2, 0.0), (1, 0.0), (3, 0.0), (5, 0.0)]
    assert tallied(burst, in_order).disordered == 0
    assert tallied(burst, broken).disordered == 1
    assert of_load(burst, Sent(6, 1.0, 2.0, 0), tallied(burst, broken))["disordered"] == 1
    assert tallied(replace(burst, due_at=0), broken).disordered == 0
    assert "disordered" not in figures(tallied(LOAD, [(0, 0.0)]))


def test_several_runs_give_the_median_and_the_sum_of_faults() -> None:
    runs: list[Figures] = [
        {"p50_ms": 1.0, "lost": 0, "growing": False},
        {"p50_ms": 9.0, "lost": 2, "growing": True},
        {"p50_ms": 2.0, "lost": 1, "growing": False},
    ]
    assert middle(runs) == {"p50_ms": 2.0, "lost": 3, "growing": True}
    assert middle([{"idle": None}]) == {"idle": None}
    assert complaints([BenchRow("good", [{"lost": 0}]), BenchRow("bad", runs)]) == ["bad: lost 3"]


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        (BenchPlan(only=("share", "rate"), shares=(0.5,), rates=(500,)), ["plain", "share 0.5", "rate 500"]),
        (BenchPlan(only=("backlog",)), ["backlog", "rate 2000 + backlog"]),
        (quick(BenchPlan(only=("backlog",))), ["backlog"]),
        (BenchPlan(only=("burst",), bursts=(20_000, 100_000)), ["burst 20000", "burst 100000"]),
    ],
)
def test_a_plan_names_its_rows_in_order_and_shares_need_the_plain_rate(plan: BenchPlan, rows: list[str]) -> None:
    assert [title for _, title, _ in plan.rows()] == rows
    assert quick(BenchPlan()).only == KINDS


# -- of a comparison ---------------------------------------------------------------------------------------------------


def test_a_quantile_is_the_value_below_which_that_share_lies() -> None:
    found = quantiles([float(value) for value in reversed(range(10_000))])
    assert found == {"p50_ms": 5000, "p90_ms": 9000, "p99_ms": 9900, "p999_ms": 9990, "max_ms": 9999}


def test_no_arrivals_give_no_quantiles() -> None:
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
def test_out_of_order_counts_arrivals_after_a_later_published_message(numbers: list[int], late: int) -> None:
    assert out_of_order(numbers) == late


def test_in_one_queue_a_short_delay_is_as_late_as_the_long_one_before_it_is_long() -> None:
    asked = [1000, 5000] * 50
    in_one_queue = [5000 - delay + 2.0 for delay in asked]
    assert short_behind_long_ms(asked, in_one_queue) == 4000


def test_a_short_delay_is_no_later_than_a_long_one_if_each_message_is_punctual() -> None:
    assert short_behind_long_ms([1000, 5000] * 50, [3.0] * 100) == 0


def test_short_and_long_delays_are_not_compared_if_all_are_equal_or_messages_are_few() -> None:
    assert short_behind_long_ms([1000] * 100, [3.0] * 100) is None
    assert short_behind_long_ms([1000, 5000], [4000.0, 2.0]) is None


def test_rounding_is_what_the_rule_adds_to_the_asked_delay() -> None:
    assert rounding([1000, 1200, 4000], [1000, 5000, 5000]) == {"rounding_p50_ms": 1000, "rounding_max_ms": 3800}
    assert rounding([], []) == {"rounding_p50_ms": None, "rounding_max_ms": None}


def test_a_standstill_is_the_longest_time_between_two_arrivals() -> None:
    assert standstill_ms([10.0, 10.1, 11.6, 11.7]) == 1500
    assert standstill_ms([10.0]) is None


def test_bins_count_before_and_after_the_moment_and_include_gaps() -> None:
    found = in_bins([99.99, 100.0, 100.01, 100.09], 100.0, 0.02)
    assert found == [(-0.02, 1), (0.0, 2), (0.02, 0), (0.04, 0), (0.06, 0), (0.08, 1)]
    assert in_bins([], 100.0, 0.02) == []


@given(st.integers(0, 5000), st.integers(1, 500))
def test_thinned_pairs_are_evenly_spaced_and_never_more_than_requested(count: int, most: int) -> None:
    pairs = [(float(at), 0.0) for at in range(count)]
    found = thinned(pairs, most)
    assert len(found) <= most
    assert found[:1] == pairs[:1]
    assert len({after[0] - before[0] for before, after in pairwise(found)}) <= 1
