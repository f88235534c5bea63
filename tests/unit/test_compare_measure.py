"""A comparison's steps against a simulated broker, on which each message arrives as its mode's rule says."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import islice
from typing import cast

import pytest

from bridge.lab.compare import Measurement
from bridge.lab.compare_modes import BY_NAME, ComparePlan, promise
from bridge.lab.compare_result import CompareStep
from bridge.lab.load import Got, Load, Sent
from bridge.lab.load_runner import ProgressBar
from bridge.lab.machine import Usage
from bridge.lab.ports import RunNames
from bridge.lab.trial import Trial

LEVELS = (1000, 5000, 7_200_000)
PLAN = ComparePlan(rates=(100,), duration_s=1, count=64)
WAY_MS = 2.0


class Simulated:
    """A mode in which every message takes two milliseconds longer than its rule says.

    It uses ten microseconds of processor time and a hundred bytes per message.
    """

    names = RunNames("front", "target", "queue", "intake", "prefix")
    #: Publishing starts this long before the common due moment, and takes half a second.
    ahead_s = 1.0

    def __init__(self, mode: str, lose: int = 0) -> None:
        self._mode = BY_NAME[mode]
        self._lose = lose
        self._messages = 0
        self.loads: list[Load] = []
        self.restarts = 0

    def check(self) -> None:
        """It never ends."""

    def waiting(self, published: int) -> int:
        return published

    def usage(self) -> dict[str, Usage]:
        return {"bridge": Usage(self._messages * 1e-5, self._messages * 100), "store": Usage(None, None)}

    def restart(self) -> None:
        self.restarts += 1

    def carry(self, load: Load, progress: Callable[[int, int], None]) -> tuple[Sent, Got | None]:
        self.loads.append(load)
        self._messages += load.count
        began = load.due_at - self.ahead_s
        for received in (0, load.count // 2, load.count):
            progress(load.count, received)
        delays = list(islice(load.delays(), load.count))
        promised = promise(self._mode, LEVELS)
        comes = [promised(delay) + WAY_MS for delay in delays]
        order = sorted(range(load.count), key=comes.__getitem__)[self._lose :]
        late = array("d", (comes[number] - delays[number] for number in order))
        at = [began + comes[number] / 1000 for number in order]
        sent = Sent(load.count, began, began + 0.5, 0)
        return sent, Got(len(order), 0, 0, late, at[0], at[-1], order, at) if load.queue else None


def measured(mode: str, way: Simulated, plan: ComparePlan = PLAN) -> dict[str, CompareStep]:
    measuring = Measurement(plan, BY_NAME[mode], cast(Trial, way), ProgressBar(9), LEVELS, first_number=1)
    measuring.run()
    return {step.kind: step for step in measuring.result.steps}


@pytest.mark.parametrize("mode", ["redis", "levels", "alone", "ladder"])
def test_lateness_counts_from_the_rounded_delay_and_rounding_has_its_own_figures(mode: str) -> None:
    steps = measured(mode, Simulated(mode))
    figures = steps["rate"].figures
    assert figures["p50_ms"] == figures["max_ms"] == WAY_MS
    assert figures["short_behind_long_ms"] == 0
    longest = figures["rounding_max_ms"]
    assert longest is not None
    assert (longest > 0) == (mode != "redis")
    assert steps["flood"].figures["out_of_order"] == 0
    assert steps["rate"].curve[-1] == (1.0, WAY_MS)
    # What is drawn by delay is what the user waits, rounding and all.
    assert max(late for _, late in steps["rate"].by_delay) == pytest.approx(longest + WAY_MS, abs=1)


def test_every_step_of_a_mode_is_measured_once_and_the_bridge_restarts_once() -> None:
    way = Simulated("redis")
    steps = measured("redis", way)
    assert list(steps) == ["rate", "flood", "burst", "backlog", "restart"]
    assert way.restarts == 1
    assert len({load.run for load in way.loads}) == len(way.loads)
    assert {load.exchange for load in way.loads} == {"front"}


def test_the_mode_without_a_delay_publishes_to_the_destination_without_a_delay_header() -> None:
    way = Simulated("plain")
    assert list(measured("plain", way)) == ["rate", "flood"]
    assert {(load.exchange, load.delay_ms) for load in way.loads} == {("target", (0, 0))}


def test_without_a_bridge_the_producer_names_the_level_and_nothing_is_restarted() -> None:
    way = Simulated("alone")
    assert list(measured("alone", way)) == ["rate", "flood", "burst", "backlog"]
    assert {(load.asks, load.levels_ms) for load in way.loads} == {("x-delay-level", LEVELS)}


def test_the_order_of_a_burst_is_a_figure_only_in_modes_that_do_not_round() -> None:
    assert "disordered" in measured("redis", Simulated("redis"))["burst"].figures
    assert "disordered" not in measured("ladder", Simulated("ladder"))["burst"].figures


def test_a_burst_published_too_late_has_no_figures_of_its_delivery() -> None:
    assert measured("redis", Simulated("redis"))["burst"].figures["all_out_ms"] is not None
    hurried = Simulated("redis")
    hurried.ahead_s = 0.2
    burst = measured("redis", hurried)["burst"]
    assert burst.figures["all_out_ms"] is None
    assert not burst.timeline


@pytest.mark.parametrize(("mode", "moved"), [("redis", 0), ("ladder", 499), ("levels", 499), ("ttl", 0)])
def test_a_burst_reports_how_far_rounding_moved_its_due_moment(mode: str, moved: int) -> None:
    # Published from 1 s to half a second before: what asks for 501 ms waits for a second.
    assert measured(mode, Simulated(mode))["burst"].figures["moved_max_ms"] == pytest.approx(moved, abs=2)


def test_a_lost_message_is_a_fault_of_its_step() -> None:
    assert measured("redis", Simulated("redis", lose=3))["rate"].figures["lost"] == 3


def test_processor_time_and_memory_per_message_are_reported_if_known() -> None:
    steps = measured("redis", Simulated("redis"))
    assert steps["rate"].figures["bridge_cpu_us"] == 10
    assert "store_cpu_us" not in steps["rate"].figures
    assert "store_grew_bytes" not in steps["backlog"].figures
    assert steps["backlog"].figures["messages"] == PLAN.backlog


def test_two_modes_get_the_same_delays() -> None:
    first, second = Simulated("redis"), Simulated("ttl")
    measured("redis", first)
    measured("ttl", second)
    rates = [next(load for load in way.loads if load.rate) for way in (first, second)]
    assert list(islice(rates[0].delays(), 100)) == list(islice(rates[1].delays(), 100))
    assert [load.asks for load in rates] == ["x-delay", "expiration"]
