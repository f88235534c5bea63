"""The figures of a bench: percentiles, growth, medians, faults."""

from __future__ import annotations

from array import array

import pytest

from bridge.bench.figures import Figures, is_growing, middle, of_load, percentile
from bridge.bench.load import Got, Load, Sent
from bridge.bench.measure import Row
from bridge.bench.plan import KINDS, Plan, quick
from bridge.bench.report import complaints

LOAD = Load("front", "key", "queue", 4, run=1)


def figures(got: Got) -> Figures:
    return of_load(LOAD, Sent(4, 100.0, 102.0, 0), got)


def test_percentiles_are_those_of_the_ordered_values() -> None:
    ordered = [float(value) for value in range(1000)]
    assert [percentile(ordered, share) for share in (0, 0.5, 0.99, 0.999)] == [0, 500, 990, 999]
    assert percentile([], 0.5) is None


@pytest.mark.parametrize(
    ("late_ms", "growing"),
    [([3.0] * 300, False), ([3.0] * 200 + [6.0] * 100, False), ([3.0] * 200 + [50.0] * 100, True), ([1.0], False)],
)
def test_growth_is_more_than_noise(late_ms: list[float], growing: bool) -> None:
    assert is_growing(late_ms) is growing


def test_a_load_tells_rates_lateness_and_faults() -> None:
    found = figures(Got(3, 1, 1, array("d", [2.0, -5.0, 4.0]), 103.0, 104.0))
    assert (found["publish_per_s"], found["deliver_per_s"]) == (2, 3)
    assert (found["lost"], found["duplicates"], found["early"], found["refused"]) == (1, 1, 1, 0)
    assert (found["p50_ms"], found["max_ms"]) == (2.0, 4.0)


def test_a_load_of_which_nothing_came_has_no_lateness() -> None:
    found = figures(Got(0, 0, 0, array("d"), 0.0, 0.0))
    assert found["lost"] == 4
    assert found["p50_ms"] is None
    assert found["deliver_per_s"] is None


def test_several_runs_are_told_by_the_median_but_faults_are_added_up() -> None:
    runs: list[Figures] = [
        {"p50_ms": 1.0, "lost": 0, "growing": False},
        {"p50_ms": 9.0, "lost": 2, "growing": True},
        {"p50_ms": 2.0, "lost": 1, "growing": False},
    ]
    assert middle(runs) == {"p50_ms": 2.0, "lost": 3, "growing": True}
    assert middle([{"idle": None}]) == {"idle": None}
    assert complaints([Row("good", [{"lost": 0}]), Row("bad", runs)]) == ["bad: 3 lost"]


def test_a_plan_names_its_steps_in_order_and_shares_need_the_plain_rate() -> None:
    assert list(Plan(only=("share", "rate"), shares=(0.5,), rates=(500,)).titles()) == [
        "plain",
        "share 0.5",
        "rate 500",
    ]
    assert quick(Plan()).only == KINDS
