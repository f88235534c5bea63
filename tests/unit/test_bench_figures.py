"""The figures of a bench: percentiles, growth, medians, faults."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bridge.lab.bench import KINDS, BenchPlan, BenchRow, complaints, quick
from bridge.lab.figures import Figures, is_growing, middle, of_load, percentile
from bridge.lab.load import Got, Load, Sent, Tally

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


def tallied(load: Load, came: Sequence[tuple[int, float]]) -> Got:
    """What a meter makes of these messages: number and lateness in milliseconds."""
    tally = Tally(load)
    for number, late_ms in came:
        tally.note(load.run << 32 | number, 100.0, 100.0 + late_ms / 1000)
    return tally.got()


def test_a_meter_counts_each_message_once_and_knows_copies_early_ones_and_strangers() -> None:
    tally = Tally(LOAD)
    for number, now in ((1 << 32 | 0, 100.002), (1 << 32 | 0, 100.003), (1 << 32 | 3, 99.99), (2 << 32 | 1, 100.0)):
        tally.note(number, 100.0, now)
    got = tally.got()
    assert (got.messages, got.duplicates, got.early) == (2, 1, 1)
    assert [round(late, 3) for late in got.late_ms] == [2.0, -10.0]
    assert (got.first, got.last) == (100.002, 99.99)


def test_order_is_counted_for_each_key_and_only_where_all_are_due_at_one_moment() -> None:
    burst = Load("front", "key", "queue", 6, run=1, due_at=100.0, keys=2)
    in_order = [(1, 0.0), (0, 0.0), (2, 0.0), (3, 0.0), (5, 0.0), (4, 0.0)]
    broken = [(0, 0.0), (4, 0.0), (2, 0.0), (1, 0.0), (3, 0.0), (5, 0.0)]
    assert tallied(burst, in_order).disordered == 0
    assert tallied(burst, broken).disordered == 1
    assert of_load(burst, Sent(6, 1.0, 2.0, 0), tallied(burst, broken))["disordered"] == 1
    assert tallied(replace(burst, due_at=0), broken).disordered == 0
    assert "disordered" not in figures(tallied(LOAD, [(0, 0.0)]))


def test_several_runs_are_told_by_the_median_but_faults_are_added_up() -> None:
    runs: list[Figures] = [
        {"p50_ms": 1.0, "lost": 0, "growing": False},
        {"p50_ms": 9.0, "lost": 2, "growing": True},
        {"p50_ms": 2.0, "lost": 1, "growing": False},
    ]
    assert middle(runs) == {"p50_ms": 2.0, "lost": 3, "growing": True}
    assert middle([{"idle": None}]) == {"idle": None}
    assert complaints([BenchRow("good", [{"lost": 0}]), BenchRow("bad", runs)]) == ["bad: lost 3"]


def test_a_plan_names_its_steps_in_order_and_shares_need_the_plain_rate() -> None:
    assert list(BenchPlan(only=("share", "rate"), shares=(0.5,), rates=(500,)).titles()) == [
        "plain",
        "share 0.5",
        "rate 500",
    ]
    assert quick(BenchPlan()).only == KINDS


def test_a_backlog_has_a_rate_beside_it_unless_it_is_a_quick_look() -> None:
    assert list(BenchPlan(only=("backlog",)).titles()) == ["backlog", "rate 2000 + backlog"]
    assert list(quick(BenchPlan(only=("backlog",))).titles()) == ["backlog"]


def test_each_size_of_a_burst_is_a_row() -> None:
    assert list(BenchPlan(only=("burst",), bursts=(20_000, 100_000)).titles()) == ["burst 20000", "burst 100000"]
