"""The plan of a comparison: steps per mode, rounding rules, levels to create, and the announcement of its load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import SettingsError
from bridge.lab.compare_modes import (
    BY_NAME,
    MODES,
    ComparePlan,
    Mode,
    as_set,
    chosen_modes,
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
        ("native", 1234, 1234),
        ("unaided", 1234, 1234),
    ],
)
def test_a_mode_promises_its_own_rounding(mode: str, asked_ms: int, promised: int) -> None:
    assert promise(BY_NAME[mode], LEVELS)(asked_ms) == promised


@given(st.sampled_from(MODES), st.integers(1, 10_000))
def test_no_mode_promises_less_than_what_was_asked(mode: Mode, asked_ms: int) -> None:
    assert promise(as_set(mode, "up"), LEVELS)(asked_ms) >= asked_ms


def test_levels_round_as_configured_except_for_a_producer_that_names_its_level() -> None:
    assert promise(as_set(BY_NAME["levels"], "nearest"), LEVELS)(2000) == 1000
    assert promise(as_set(BY_NAME["alone"], "nearest"), LEVELS)(2000) == 5000


@given(st.lists(st.integers(1, 100), min_size=1, unique=True), st.integers(1, 100), st.integers(0, 50))
def test_the_created_levels_are_all_that_a_delay_can_be_rounded_to(levels: list[int], low: int, more: int) -> None:
    high = min(low + more, max(levels))
    low = min(low, high)
    found = levels_for(levels, [(low, high)])
    for how in ("up", "nearest"):
        to_level, to_found = (promise(as_set(BY_NAME["levels"], how), some) for some in (levels, found))
        assert all(to_level(delay) == to_found(delay) for delay in range(low, high + 1))


def test_levels_that_no_delay_reaches_are_not_created() -> None:
    many = (1000, 5000, 10_000, 30_000, 60_000, 3_600_000, 7_200_000)
    assert levels_for(many, quick(ComparePlan()).delays_ms()) == (1000, 5000)
    assert levels_for(many, ComparePlan().delays_ms()) == (1000, 5000, 60_000, 3_600_000, 7_200_000)


def test_a_mode_that_cannot_be_measured_here_is_left_out_with_its_reason() -> None:
    wanted = [mode.name for mode in MODES]
    lacking = {"plugin": "no such exchange", "native": "RabbitMQ 4.3"}
    assert left_out(wanted, lacking, LEVELS, 10_000) == lacking
    assert left_out(wanted, {}, LEVELS, 10_000) == {}
    assert left_out(["ttl"], lacking, LEVELS, 10_000) == {}
    too_short = "headers.levels ends at 10s, and delays of up to 11s are measured"
    assert left_out(wanted, {}, LEVELS, 11_000) == {"levels": too_short, "alone": too_short}
    assert left_out(wanted, {}, LEVELS, 10_000, "refuse") == {
        "levels": "levels.rounding = refuse makes a dead letter of every delay that is no level"
    }


def test_an_untidy_mode_has_no_backlog_and_only_our_own_bridge_is_restarted() -> None:
    plan = ComparePlan()
    assert "backlog" not in plan.kinds_of(BY_NAME["plugin"])
    assert [mode.name for mode in MODES if "restart" in plan.kinds_of(mode)] == ["redis", "levels", "ladder", "native"]
    assert list(plan.kinds_of(BY_NAME["plain"])) == ["rate", "flood"]


def test_the_steps_have_a_title_for_each_rate() -> None:
    titles = ComparePlan(rates=(5, 10)).titles([BY_NAME["plain"]])
    assert titles == ["plain, rate 5", "plain, rate 10", "plain, flood"]


def test_the_load_is_announced_in_numbers_before_a_run() -> None:
    text = load_sentence(ComparePlan(), list(MODES))
    for part in ("Ways: 9", "500 and 2,000 messages per second", "20,000", "100,000 that wait", "70 MB", "deleted"):
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


def test_modes_keep_the_order_of_the_table_and_an_unknown_one_is_refused() -> None:
    assert chosen_modes(None) == [mode.name for mode in MODES]
    assert chosen_modes("ttl, redis") == ["redis", "ttl"]
    with pytest.raises(SettingsError, match="--modes: 'rediss' is none of plain, redis"):
        chosen_modes("redis,rediss")
    with pytest.raises(SettingsError, match="--modes: '' is none of plain, redis"):
        chosen_modes("")
