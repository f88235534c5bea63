"""Which instances run, as one of them sees it while the store's clock steps."""

from __future__ import annotations

from bridge.core.roll import Roll, believable, silent_ms

TTL_MS, HOUR_MS = 4000, 3_600_000


def watch(roll: Roll, beats: dict[str, int], store_ms: int, from_s: int, to_s: int) -> list[str]:
    """Look once a second, while no beat changes. Return what runs at the end."""
    for now_s in range(from_s, to_s):
        roll.running(beats, TTL_MS, store_ms, float(now_s))
    return roll.running(beats, TTL_MS, store_ms, float(to_s))


def test_an_instance_runs_while_its_beats_change_and_is_silent_after_its_time() -> None:
    roll = Roll()
    assert roll.running({"a": 5000}, TTL_MS, 1000, 10.0) == ["a"]
    assert roll.running({"a": 6000}, TTL_MS, 2000, 11.0) == ["a"]
    assert watch(roll, {"a": 6000}, 5900, 12, 14) == ["a"]
    assert roll.silent(14.9) == {}
    assert roll.running({"a": 6000}, TTL_MS, 6000, 15.0) == []
    assert roll.silent(15.0) == {"a": 6000}


def test_an_observer_that_could_not_look_for_a_while_takes_nobody_for_dead() -> None:
    roll = Roll()
    assert roll.running({"a": 5000}, TTL_MS, 1000, 10.0) == ["a"]
    assert roll.silent(40.0) == {}
    assert roll.running({"a": 5000}, TTL_MS, 31_000, 40.0) == ["a"]
    assert watch(roll, {"a": 5000}, 31_000, 41, 43) == []
    assert roll.silent(43.0) == {"a": 5000}


def test_a_step_forward_removes_no_instance_and_a_step_back_keeps_none() -> None:
    roll = Roll()
    roll.running({"a": 5000, "b": 5000}, TTL_MS, 1000, 10.0)
    assert roll.running({"a": 5000, "b": 5000}, TTL_MS, 1000 + HOUR_MS, 11.0) == ["a", "b"]
    assert roll.running({"a": 6000 + HOUR_MS, "b": 5000}, TTL_MS, 2000 + HOUR_MS, 12.0) == ["a", "b"]
    assert roll.running({"a": 8000, "b": 5000}, TTL_MS, 4000, 13.0) == ["a", "b"]
    assert watch(roll, {"a": 9000, "b": 5000}, 5000, 14, 15) == ["a"]
    assert watch(roll, {"a": 9000, "b": 5000}, 6000, 16, 18) == []


def test_an_instance_that_was_never_seen_counts_by_the_stores_clock_until_it_speaks_again() -> None:
    roll = Roll()
    beats = {"dead before a step back": 5000 + HOUR_MS, "expired": 1000, "living": 4000}
    assert roll.running(beats, TTL_MS, 1000, 10.0) == ["living"]
    assert roll.running(beats | {"expired": 5500}, TTL_MS, 1500, 10.5) == ["expired", "living"]
    assert watch(roll, beats | {"expired": 5500}, 1500, 11, 14) == ["expired"]
    assert set(roll.silent(14.0)) == {"dead before a step back", "living"}


def test_an_instance_that_left_the_list_is_forgotten_at_once() -> None:
    roll = Roll()
    roll.running({"a": 5000}, TTL_MS, 1000, 10.0)
    assert roll.running({}, TTL_MS, 1000, 10.1) == []
    assert roll.silent(20.0) == {}


def test_a_beat_that_comes_while_the_list_is_read_is_that_of_a_running_instance() -> None:
    report = {"takeover_ms": TTL_MS}
    assert believable(1000 + TTL_MS + 900, 1000, report)
    assert not believable(1000 + TTL_MS + HOUR_MS, 1000, report)


def test_the_silence_of_an_instance_counts_from_its_last_beat() -> None:
    assert silent_ms(until_ms=5000, store_ms=5000, report={"takeover_ms": TTL_MS}) == TTL_MS
    assert silent_ms(until_ms=5000, store_ms=8000, report={"takeover_ms": TTL_MS}) == TTL_MS + 3000
