"""What a comparison measures in which mode, what a mode makes of a delay, and what is said before it begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.bench.load import Load
from bridge.cli.compare_numbers import chosen, comparison_plan
from bridge.compare.modes import BY_NAME, MODES, left_out, promised_ms
from bridge.compare.plan import Plan, load_sentence, quick
from bridge.errors import SettingsError

LEVELS = (1000, 5000, 10_000)


@pytest.mark.parametrize(
    ("mode", "asked_ms", "promised"),
    [
        ("redis", 1234, 1234),
        ("ttl", 1234, 1234),
        ("levels", 1000, 1000),
        ("levels", 1001, 5000),
        ("levels", 10_001, 10_001),
        ("ladder", 1000, 1000),
        ("ladder", 1001, 2000),
    ],
)
def test_a_mode_promises_its_own_rounding_and_nothing_above_its_last_level(
    mode: str, asked_ms: int, promised: int
) -> None:
    assert promised_ms(BY_NAME[mode], asked_ms, LEVELS) == promised


@given(st.sampled_from(MODES), st.integers(1, 20_000))
def test_no_mode_promises_less_than_what_was_asked(mode: object, asked_ms: int) -> None:
    assert promised_ms(mode, asked_ms, LEVELS) >= asked_ms  # type: ignore[arg-type]


def test_a_mode_that_this_version_or_this_broker_lacks_is_left_out_with_its_reason() -> None:
    wanted = [mode.name for mode in MODES]
    assert left_out(wanted, ("redis",), "no such exchange") == {
        "levels": "this version of postdate does not have it",
        "ladder": "this version of postdate does not have it",
        "plugin": "no such exchange",
    }
    assert left_out(wanted, ("redis", "levels", "ladder"), "") == {}
    assert left_out(["ttl"], (), "no such exchange") == {}


def test_nothing_that_cannot_be_removed_is_left_waiting_and_nobody_elses_broker_is_restarted() -> None:
    plan = Plan()
    assert "backlog" not in plan.kinds_of(BY_NAME["plugin"])
    assert [mode.name for mode in MODES if "restart" in plan.kinds_of(mode)] == ["redis", "levels", "ladder"]
    assert list(plan.kinds_of(BY_NAME["plain"])) == ["rate", "flood"]


def test_the_steps_have_a_title_for_each_rate() -> None:
    titles = Plan(rates=(5, 10)).titles([BY_NAME["plain"]])
    assert titles == ["plain, rate 5", "plain, rate 10", "plain, flood"]


def test_before_a_run_its_load_is_said_in_numbers() -> None:
    text = load_sentence(Plan(), list(MODES))
    for part in ("6 ways", "500 and 2,000 messages a second", "20,000", "100,000 that wait", "70 MB", "removed"):
        assert part in text
    assert "that wait" not in load_sentence(quick(Plan()), list(MODES))


def test_every_mode_of_a_seed_gets_the_same_delays_and_another_seed_gets_others() -> None:
    def first(seed: int) -> list[int]:
        delays = Load("exchange", "key", "queue", 10, run=1, delay_ms=(1, 10**6), seed=seed).delays()
        return [next(delays) for _ in range(10)]

    assert first(1) == first(1) != first(2)


def test_options_change_single_numbers() -> None:
    plan = comparison_plan(True, "900,300,300", "2s", 50, 3)
    assert (plan.rates, plan.duration_s, plan.count, plan.seed) == ((300, 900), 2, 50, 3)
    assert plan.flood_delay_ms == quick(Plan()).flood_delay_ms


def test_modes_come_in_the_order_of_the_table_and_a_strange_one_is_refused() -> None:
    assert chosen(None) == [mode.name for mode in MODES]
    assert chosen("ttl, redis") == ["redis", "ttl"]
    with pytest.raises(SettingsError, match="--modes: 'rediss' is none of plain, redis"):
        chosen("redis,rediss")
