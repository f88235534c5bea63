"""The verdict of a comparison: which modes are on time, rounded, late or blocked, their faults and their cost."""

from __future__ import annotations

import pytest

from bridge.lab.compare_modes import BY_NAME, ComparePlan, as_set, quick
from bridge.lab.compare_result import CompareStep, ModeComparison, ModeResult
from bridge.lab.compare_verdict import headline, is_close, verdict
from bridge.lab.figures import Figures

PLAN = ComparePlan(rates=(100, 400))


def measured(mode: str, p99_ms: float | None, how: str = "up", **other: float) -> ModeResult:
    figures: Figures = {"messages": 1000, "rate_per_s": 400, "p99_ms": p99_ms, **other}
    return ModeResult(as_set(BY_NAME[mode], how), [CompareStep("rate", "rate 400", figures)])


def said(*results: ModeResult, plan: ComparePlan = PLAN, **left_out: str) -> dict[str, str]:
    return {judgement.label: judgement.text for judgement in verdict(ModeComparison(plan, (), left_out, list(results)))}


def test_an_exact_mode_is_on_time_and_a_rounded_one_is_named_with_its_rounding() -> None:
    found = said(measured("redis", 4), measured("ladder", 9, rounding_max_ms=999))
    assert found["Any delay on time"] == "redis (99 % at most 4 ms late)."
    assert found["Rounded"].startswith("ladder (up to the whole second, here by at most 999 ms;")


def test_a_mode_whose_short_delays_wait_behind_long_ones_is_blocked_and_not_on_time() -> None:
    found = said(measured("ttl", 50, short_behind_long_ms=3000.4))
    assert found["Short delays blocked"] == "one TTL queue (the shortest delays came 3,000 ms later than the longest)."
    assert "Any delay on time" not in found
    assert "Any delay on time" in said(measured("ttl", 50, short_behind_long_ms=3))


def test_a_late_mode_is_late_whatever_its_rounding_and_growth_is_said() -> None:
    found = said(measured("redis", 300, growing=True), measured("levels", 400, rounding_max_ms=1))
    assert set(found) & {"Any delay on time", "Rounded"} == set()
    assert "redis (99 % at most 300 ms late, and lateness still grew)" in found["Late"]
    assert "levels" in found["Late"]


def test_close_figures_are_not_ranked() -> None:
    assert (
        "Too close to rank: redis ≈ plugin." in said(measured("redis", 10), measured("plugin", 11))["Any delay on time"]
    )
    assert "Too close" not in said(measured("redis", 10), measured("plugin", 20))["Any delay on time"]
    assert "Too close" in said(measured("redis", 0.5), measured("plugin", 1.2))["Any delay on time"]


@pytest.mark.parametrize(("low", "high", "close"), [(100, 119, True), (100, 126, False), (1, 1.9, True), (0, 0, True)])
def test_figures_are_equal_within_a_fifth_or_a_millisecond(low: float, high: float, close: bool) -> None:
    assert is_close(low, high, 1.0) is close


def test_faults_are_counted_for_each_mode_and_none_is_said_with_the_number_of_messages() -> None:
    assert said(measured("redis", 4))["Faults"].startswith("none in 1,000 messages")
    found = said(measured("redis", 4, lost=2, duplicates=1), measured("levels", 4, "nearest", early=3))
    assert found["Faults"] == "redis (lost 2, duplicated 1); levels (early 3 by its rounding)."


def test_processor_time_counts_every_process_that_takes_part_and_the_cheapest_comes_first() -> None:
    redis = measured("redis", 4, bridge_cpu_us=100, broker_cpu_us=200, store_cpu_us=50)
    found = said(redis, measured("alone", 4, broker_cpu_us=90), measured("plain", 1, broker_cpu_us=30))
    assert found["Processor, µs a message"] == "levels, alone 90; redis 350. No delay: 30."
    assert "not known" in said(measured("redis", 4, bridge_cpu_us=100, store_cpu_us=50))["Processor"]


def test_modes_without_figures_are_not_judged_and_have_a_reason() -> None:
    broken = ModeResult(BY_NAME["ladder"], [CompareStep("flood", "flood", {"messages": 1})], "the broker went away")
    found = said(measured("redis", None), broken, plugin="this broker does not have the plugin")
    assert found["Not judged"] == (
        "redis (nothing arrived); ladder (failed); plugin (this broker does not have the plugin)."
    )
    assert "Any delay on time" not in found


def test_a_busy_machine_and_a_quick_run_are_cautions() -> None:
    assert "the machine or the broker was busy" in said(measured("plain", 50))["Caution"]
    assert "Caution" not in said(measured("plain", 2))
    look = quick(PLAN)
    assert "A quick look" in said(measured("redis", 4), plan=look)["Caution"]


def test_the_headline_names_the_best_class_and_the_faults() -> None:
    text = headline(ModeComparison(PLAN, results=[measured("ladder", 9, rounding_max_ms=999), measured("redis", 4)]))
    assert text.startswith("Any delay on time, at 400 messages a second with delays of 1 to 5 s: redis (")
    assert text.endswith("Faults: none in 2,000 messages (lost, duplicated, early, refused, out of order).")
    alone = headline(ModeComparison(PLAN, results=[measured("ladder", 9, rounding_max_ms=999)]))
    assert alone.startswith("Rounded, at 400 messages a second with delays of 1 to 5 s: ladder (")
    assert headline(ModeComparison(PLAN, results=[measured("redis", None)])) == ""
