"""The store's clock as seen from here: the quickest reply is believed, a contradicted estimate is thrown away."""

from __future__ import annotations

import pytest

from bridge.core.clock import JUMP_US, StoreClock


class Time:
    """This process's monotonic clock, by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.stepped_us = 0.0
        monkeypatch.setattr("bridge.core.clock.time.monotonic", lambda: self.now_s)

    def reply(self, clock: StoreClock, took_s: float, store_us: int) -> None:
        """A reply that was sent now, arrives later, and carries the store's clock of its middle."""
        sent_s, self.now_s = self.now_s, self.now_s + took_s
        self.stepped_us = clock.observe(sent_s, self.now_s, store_us)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_the_store_is_taken_to_have_looked_in_the_middle_of_the_wait(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.010, 5_000_000_000)
    assert clock.now_us() == pytest.approx(5_000_005_000)


def test_a_slow_reply_does_not_spoil_a_quick_one(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.001, 5_000_000_500)
    time.reply(clock, 1.0, 5_000_900_000)  # the store answered late in the wait: its middle is 400 ms off
    assert clock.now_us() == pytest.approx(5_000_000_000 + 1_001_000)
    assert time.stepped_us == 0


def test_a_thousand_slow_replies_do_not_spoil_a_quick_one(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.001, 5_000_000_500)
    for n in range(1, 1001):
        sent_us = 5_000_001_000 + (n - 1) * 10_000
        time.reply(clock, 0.010, sent_us)  # the store answered early in the wait: its middle is 5 ms off
    assert clock.now_us() == pytest.approx(5_010_001_000, abs=10)
    assert len(clock._samples) < 50


def test_an_arrival_is_stamped_late_and_not_early_where_nothing_better_than_a_slow_reply_is_known(time: Time) -> None:
    clock = StoreClock()
    sent_us = 5_000_000_000
    time.reply(clock, 0.020, sent_us)  # the store may have answered at either end of these 20 ms
    assert clock.now_ms() * 1000 >= sent_us + 20_000 - 1000
    time.reply(clock, 0.001, sent_us + 20_500)
    assert clock.now_ms() * 1000 == pytest.approx(sent_us + 21_000, abs=1000)


def test_a_quicker_reply_is_better(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.5, 5_000_000_000)
    time.reply(clock, 0.001, 5_000_500_500)
    assert clock.now_us() == pytest.approx(5_000_501_000)


def test_old_replies_are_forgotten(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.0001, 5_000_000_000)
    time.now_s += 30
    time.reply(clock, 0.01, 5_000_000_000 + 30_000_000 + 6000)
    assert clock.now_us() == pytest.approx(5_030_011_000)


@pytest.mark.parametrize("step_us", [60_000_000, -60_000_000])
def test_a_step_of_the_stores_clock_is_followed_at_once_and_returned(time: Time, step_us: int) -> None:
    clock = StoreClock()
    time.reply(clock, 0.001, 500_000_000_000)
    time.reply(clock, 0.001, 500_000_001_000 + step_us)
    assert clock.now_us() == pytest.approx(500_000_001_500 + step_us)
    assert time.stepped_us == pytest.approx(step_us, abs=1000)


def test_a_small_step_is_followed_without_a_word(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.001, 500_000_000_000)
    time.reply(clock, 0.001, 500_000_001_000 + JUMP_US // 2)
    assert clock.now_us() == pytest.approx(500_000_001_500 + JUMP_US // 2)
    assert time.stepped_us == 0


@pytest.mark.parametrize("looked_after_s", [0.0, 4.0])
def test_after_a_store_that_stood_still_the_difference_to_its_slow_reply_is_no_step(
    time: Time, looked_after_s: float
) -> None:
    clock = StoreClock()
    start_us = 500_000_000_000
    time.reply(clock, 4.0, start_us + int(looked_after_s * 1e6))
    time.reply(clock, 0.001, start_us + 4_000_500)
    assert clock.now_us() == pytest.approx(start_us + 4_001_000)
    assert time.stepped_us == 0


def test_a_step_that_is_larger_than_all_slowness_is_said_after_a_slow_reply_too(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 4.0, 500_000_000_000)
    time.reply(clock, 0.001, 500_000_000_000 + 60_000_000)
    assert time.stepped_us > 50_000_000


def test_the_first_reply_is_no_step_however_wrong_this_machine_is(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.001, 1)
    assert time.stepped_us == 0


def test_what_the_store_shows_at_least_is_what_it_showed_when_the_reply_was_read(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.010, 5_000_000_000)
    assert clock.surely_us() == pytest.approx(5_000_000_000, abs=100)
    assert clock.surely_us() <= 5_000_000_000


def test_an_old_observation_is_trusted_less(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.0, 5_000_000_000)
    time.now_s += 10
    time.reply(clock, 0.1, 5_010_050_000)
    assert clock.now_us() - clock.surely_us() == pytest.approx(555, abs=10)


@pytest.mark.parametrize(
    ("us", "ms"), [(5_000_000_000, 5_000_000), (5_000_000_499, 5_000_000), (5_000_000_501, 5_000_001)]
)
def test_now_is_the_nearest_millisecond(time: Time, us: int, ms: int) -> None:
    clock = StoreClock()
    time.reply(clock, 0.0, us)
    assert clock.now_ms() == ms


def test_seconds_until_a_moment_are_negative_when_it_has_passed(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.0, 5_000_000_000)
    assert clock.seconds_until(5_002_500) == pytest.approx(2.5)
    assert clock.seconds_until(4_999_000) == pytest.approx(-1.0)


def test_a_better_estimate_does_not_set_arrivals_back_and_a_step_does(time: Time) -> None:
    clock = StoreClock()
    time.reply(clock, 0.020, 5_000_000_000)  # its middle is 10 ms late
    first_ms = clock.now_ms()
    time.reply(clock, 0.001, 5_000_010_500)
    assert clock.now_us() < first_ms * 1000
    assert clock.now_ms() == first_ms
    time.now_s += 0.050
    later_ms = clock.now_ms()
    assert later_ms > first_ms
    time.reply(clock, 0.001, 4_000_000_000)
    assert clock.now_ms() < later_ms - 900_000
