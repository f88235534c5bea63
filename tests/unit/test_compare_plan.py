"""What a comparison measures in which mode, what a mode makes of a delay, and what is said before it begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import SettingsError
from bridge.lab import bench
from bridge.lab.compare_modes import (
    BY_NAME,
    MODES,
    ComparePlan,
    Mode,
    as_set,
    chosen,
    left_out,
    levels_for,
    load_sentence,
    promise,
    quick,
    with_options,
)
from bridge.lab.load import Load

LEVELS = (1000, 5000, 10_000)


@pytest.mark.parametrize(
    ("mode", "asked_ms", "promised"),
    [
        ("redis", 1234, 1234),
        ("ttl", 1234, 1234),
        ("levels", 1000, 1000),
        ("levels", 1001, 5000),
        ("alone", 1001, 5000),
        ("ladder", 1000, 1000),
        ("ladder", 1001, 2000),
    ],
)
def test_a_mode_promises_its_own_rounding(mode: str, asked_ms: int, promised: int) -> None:
    assert promise(BY_NAME[mode], LEVELS)(asked_ms) == promised


@given(st.sampled_from(MODES), st.integers(1, 10_000))
def test_no_mode_promises_less_than_what_was_asked(mode: Mode, asked_ms: int) -> None:
    assert promise(as_set(mode, "up"), LEVELS)(asked_ms) >= asked_ms


def test_levels_are_rounded_as_the_settings_say_but_for_a_producer_that_names_its_own() -> None:
    assert promise(as_set(BY_NAME["levels"], "nearest"), LEVELS)(2000) == 1000
    assert promise(as_set(BY_NAME["alone"], "nearest"), LEVELS)(2000) == 5000


@given(st.lists(st.integers(1, 100), min_size=1, unique=True), st.integers(1, 100), st.integers(0, 50))
def test_the_levels_that_are_set_up_are_all_that_a_delay_can_come_to(levels: list[int], low: int, more: int) -> None:
    high = min(low + more, max(levels))
    low = min(low, high)
    found = levels_for(levels, [(low, high)])
    for how in ("up", "nearest"):
        to_level, to_found = (promise(as_set(BY_NAME["levels"], how), some) for some in (levels, found))
        assert all(to_level(delay) == to_found(delay) for delay in range(low, high + 1))


def test_levels_that_nobody_comes_to_are_not_set_up() -> None:
    many = (1000, 5000, 10_000, 30_000, 60_000, 3_600_000, 7_200_000)
    assert levels_for(many, quick(ComparePlan()).delays_ms()) == (1000, 5000)
    assert levels_for(many, ComparePlan().delays_ms()) == (1000, 5000, 60_000, 3_600_000, 7_200_000)


def test_a_mode_that_cannot_be_measured_here_is_left_out_with_its_reason() -> None:
    wanted = [mode.name for mode in MODES]
    assert left_out(wanted, "no such exchange", LEVELS, 10_000) == {"plugin": "no such exchange"}
    assert left_out(wanted, "", LEVELS, 10_000) == {}
    assert left_out(["ttl"], "no such exchange", LEVELS, 10_000) == {}
    too_short = "headers.levels ends at 10s, and delays of up to 11s are measured"
    assert left_out(wanted, "", LEVELS, 11_000) == {"levels": too_short, "alone": too_short}
    assert left_out(wanted, "", LEVELS, 10_000, "refuse") == {
        "levels": "levels.rounding = refuse makes a dead letter of every delay that is no level"
    }


def test_nothing_that_cannot_be_removed_is_left_waiting_and_nobody_elses_broker_is_restarted() -> None:
    plan = ComparePlan()
    assert "backlog" not in plan.kinds_of(BY_NAME["plugin"])
    assert [mode.name for mode in MODES if "restart" in plan.kinds_of(mode)] == ["redis", "levels", "ladder"]
    assert list(plan.kinds_of(BY_NAME["plain"])) == ["rate", "flood"]


def test_the_steps_have_a_title_for_each_rate() -> None:
    titles = ComparePlan(rates=(5, 10)).titles([BY_NAME["plain"]])
    assert titles == ["plain, rate 5", "plain, rate 10", "plain, flood"]


def test_before_a_run_its_load_is_said_in_numbers() -> None:
    text = load_sentence(ComparePlan(), list(MODES))
    for part in ("Ways: 7", "500 and 2,000 messages per second", "20,000", "100,000 that wait", "70 MB", "deleted"):
        assert part in text
    assert "that wait" not in load_sentence(quick(ComparePlan()), list(MODES))


def test_every_mode_of_a_seed_gets_the_same_delays_and_another_seed_gets_others() -> None:
    def first(seed: int) -> list[int]:
        delays = Load("exchange", "key", "queue", 10, run=1, delay_ms=(1, 10**6), seed=seed).delays()
        return [next(delays) for _ in range(10)]

    assert first(1) == first(1) != first(2)


def test_options_change_single_numbers() -> None:
    plan = with_options(True, "900,300,300", "2s", 50, 3)
    assert (plan.rates, plan.duration_s, plan.count, plan.seed) == ((300, 900), 2, 50, 3)
    assert plan.flood_delay_ms == quick(ComparePlan()).flood_delay_ms


@pytest.mark.parametrize(
    ("rates", "duration", "said"),
    [
        ("1000000000", None, "--rates: '1000000000' is too large. The maximum is 10,000,000"),
        ("0", None, "--rates: '0' is not above 0"),
        ("500,-1", None, "--rates: '-1' is not above 0"),
        ("nan", None, "--rates: 'nan' is not above 0"),
        ("", None, "--rates: '' is no number. Write numbers above 0, with commas"),
        ("500;2000", None, "--rates: '500;2000' is no number. Write numbers above 0, with commas"),
        (None, "5", "--duration: '5' is less than 1s. Without a unit it means milliseconds: write 5s"),
        (None, "500ms", "--duration: '500ms' is less than 1s"),
        (None, "", "--duration: '' is not a duration: write milliseconds (90000ms), or units"),
    ],
)
def test_a_wrong_number_is_told_with_what_is_wrong_about_it(rates: str | None, duration: str | None, said: str) -> None:
    for plan in (
        lambda: with_options(True, rates, duration, None, None),
        lambda: bench.with_options(bench.BenchPlan(), None, None, rates, duration, None, None, 1),
    ):
        with pytest.raises(SettingsError) as told:
            plan()
        assert str(told.value).startswith(said)


def test_a_burst_is_a_whole_number_of_messages_and_an_empty_list_of_kinds_is_no_list() -> None:
    with pytest.raises(SettingsError, match=r"--burst: 0\.5 is not a whole number"):
        bench.with_options(bench.BenchPlan(), None, None, None, None, "0.5", None, 1)
    with pytest.raises(SettingsError, match="--only: '' is none of plain"):
        bench.with_options(bench.BenchPlan(), "", None, None, None, None, None, 1)


def test_modes_come_in_the_order_of_the_table_and_a_strange_one_is_refused() -> None:
    assert chosen(None) == [mode.name for mode in MODES]
    assert chosen("ttl, redis") == ["redis", "ttl"]
    with pytest.raises(SettingsError, match="--modes: 'rediss' is none of plain, redis"):
        chosen("redis,rediss")
    with pytest.raises(SettingsError, match=r"--modes: no mode is named\. Write some of plain, redis"):
        chosen("")
