"""Which level a wait takes, how a ladder adds up, and what becomes of a message on a route without a store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.message import Delivery, HeaderValue
from bridge.core.reasons import bad_headers
from bridge.delay import ladder
from bridge.delay.header import LEVELS_MS, HeaderRules
from bridge.delay.levels import Bury, Deliver, Hold, LevelRules, Round, decide, rounding, to_whole_seconds

NOW_MS = 1_790_000_000_000
LEVELS = (1000, 5000, 10_000)
RULES = LevelRules(HeaderRules(levels_ms=LEVELS), rounding(LEVELS, "up"), "dead", 1000)
LADDER = replace(RULES, headers=HeaderRules(max_delay_ms=10**12), round=to_whole_seconds)


def came(headers: Mapping[str, HeaderValue], published_ms: int | None = None, ago_ms: int = 0) -> Delivery:
    return Delivery(None, "orders", b"payload", b"", dict(headers), NOW_MS - ago_ms, published_ms)


class TestRounding:
    @given(st.integers(1, LEVELS_MS[-1]))
    def test_up_is_the_shortest_level_that_is_long_enough(self, wait_ms: int) -> None:
        level = rounding(LEVELS_MS, "up")(wait_ms, wait_ms)
        assert level == min(level_ms for level_ms in LEVELS_MS if level_ms >= wait_ms)

    @given(st.integers(1, LEVELS_MS[-1]))
    def test_nearest_is_off_by_no_more_than_any_other_level_would_be(self, wait_ms: int) -> None:
        level = rounding(LEVELS_MS, "nearest")(wait_ms, wait_ms)
        assert abs(level - wait_ms) == min(abs(level_ms - wait_ms) for level_ms in LEVELS_MS)

    def test_of_two_levels_that_are_equally_near_the_longer_is_taken(self) -> None:
        assert rounding((1000, 2000), "nearest")(1500, 1500) == 2000

    @pytest.mark.parametrize("how", ["up", "nearest"])
    def test_what_is_longer_than_the_longest_level_is_refused(self, how: str) -> None:
        with pytest.raises(ValueError, match="longer than the longest level of the route, 2h"):
            rounding(LEVELS_MS, how)(LEVELS_MS[-1] + 1, None)

    @pytest.mark.parametrize("to_wait", [rounding(LEVELS, "up"), rounding(LEVELS, "nearest"), to_whole_seconds])
    def test_no_time_that_has_passed_makes_a_delay_short_enough_that_is_too_long(self, to_wait: Round) -> None:
        with pytest.raises(ValueError, match="is longer than"):
            to_wait(1, 1000 * ladder.LONGEST_S + 1)

    def test_refuse_takes_what_was_asked_for_as_a_level_and_nothing_else(self) -> None:
        to_level = rounding(LEVELS, "refuse")
        assert to_level(4990, 5000) == 5000
        for asked_ms in (4999, None):
            with pytest.raises(ValueError, match="none of the route's levels"):
                to_level(5000, asked_ms)

    def test_the_order_of_the_list_does_not_matter(self) -> None:
        assert rounding((5000, 1000), "up")(1001, 1001) == 5000


class TestLadder:
    @given(st.integers(1, ladder.LONGEST_S))
    def test_the_steps_of_a_wait_add_up_to_it_the_longest_first_and_none_twice(self, wait_s: int) -> None:
        steps = ladder.steps(wait_s)
        assert sum(ladder.step_ms(step) for step in steps) == 1000 * wait_s
        assert list(steps) == sorted(set(steps), reverse=True)

    @given(st.integers(1, 1000 * ladder.LONGEST_S))
    def test_a_wait_is_rounded_up_by_less_than_a_second(self, wait_ms: int) -> None:
        assert 0 <= 1000 * ladder.whole_seconds(wait_ms) - wait_ms < 1000
        assert to_whole_seconds(wait_ms, None) == 1000 * ladder.whole_seconds(wait_ms)

    @pytest.mark.parametrize("wait_s", [-1, 0, ladder.LONGEST_S + 1])
    def test_no_steps_make_no_wait_and_none_beyond_the_ladder(self, wait_s: int) -> None:
        with pytest.raises(ValueError, match="waits from 1 to 268435455 s"):
            ladder.steps(wait_s)

    def test_a_millisecond_beyond_the_ladder_is_refused(self) -> None:
        with pytest.raises(ValueError, match="longer than the ladder"):
            to_whole_seconds(1000 * ladder.LONGEST_S + 1, None)


class TestDecide:
    def test_a_delay_that_is_a_level_stays_one_however_much_of_it_has_passed_in_the_intake(self) -> None:
        for ago_ms in (0, 3, 999):
            assert decide(came({"x-delay": 5000}, ago_ms=ago_ms), RULES, NOW_MS) == Hold(5000)

    def test_what_has_passed_in_the_intake_shortens_the_wait(self) -> None:
        assert decide(came({"x-delay": 5000}, ago_ms=4000), RULES, NOW_MS) == Hold(1000)

    def test_a_producer_whose_clock_is_ahead_gets_the_level_it_asked_for(self) -> None:
        assert decide(came({"x-delay": 5000}, published_ms=NOW_MS + 30), RULES, NOW_MS) == Hold(5000)

    def test_a_level_is_its_delay(self) -> None:
        assert decide(came({"x-delay-level": 3}), RULES, NOW_MS) == Hold(10_000)

    @pytest.mark.parametrize("headers", [{}, {"x-delay": 0}, {"x-delay": -1}, {"x-deliver-at": NOW_MS - 1}])
    def test_what_is_due_is_delivered(self, headers: Mapping[str, HeaderValue]) -> None:
        assert decide(came(headers), RULES, NOW_MS) == Deliver()

    @given(st.integers(1, 10_000), st.integers(0, 20_000))
    def test_nothing_is_early_with_up(self, delay_ms: int, ago_ms: int) -> None:
        for rules in (RULES, LADDER):
            move = decide(came({"x-delay": delay_ms}, ago_ms=ago_ms), rules, NOW_MS)
            wait_ms = move.wait_ms if isinstance(move, Hold) else 0
            assert NOW_MS + wait_ms >= NOW_MS - ago_ms + delay_ms

    @pytest.mark.parametrize(
        ("headers", "reason"),
        [
            ({"x-delay": "soon"}, "bad_header: header x-delay"),
            ({"x-delay": 10_001}, "bad_header: the delay of 10.001s is longer"),
            ({"x-delay-level": 4}, "bad_header: header x-delay-level: 4 is not a level"),
            ({"x-delay-cancel": "k"}, "not_possible: "),
        ],
    )
    def test_what_cannot_be_done_is_a_dead_letter(self, headers: Mapping[str, HeaderValue], reason: str) -> None:
        move = decide(came(headers), RULES, NOW_MS)
        assert isinstance(move, Bury)
        assert str(move.reason).startswith(reason)

    def test_a_route_may_deliver_bad_headers_at_once_but_a_cancellation_is_no_message(self) -> None:
        rules = replace(RULES, on_bad="deliver")
        assert decide(came({"x-delay": "soon"}), rules, NOW_MS) == Deliver()
        assert decide(came({"x-delay": 10_001}), rules, NOW_MS) == Deliver()
        assert isinstance(decide(came({"x-delay-cancel": "k"}), rules, NOW_MS), Bury)

    def test_a_refusal_names_the_delay_that_was_asked_for_and_not_what_is_left_of_it(self) -> None:
        for headers, said in (({"x-delay": 7_200_000}, "2h"), ({"x-delay": "3h"}, "3h")):
            move = decide(came(headers, ago_ms=1), RULES, NOW_MS)
            assert isinstance(move, Bury)
            said = f"bad_header: the delay of {said} is longer than the longest level of the route, 10s"
            assert str(move.reason) == said
        with pytest.raises(ValueError, match=r"24m 16s is longer than the ladder"):
            to_whole_seconds(1000 * ladder.LONGEST_S + 999, 1000 * ladder.LONGEST_S + 1000)

    def test_headers_that_could_not_be_read_and_bodies_that_are_too_large_are_dead_letters(self) -> None:
        assert decide(replace(came({}), fault="cut off"), RULES, NOW_MS) == Bury(bad_headers("cut off"))
        assert isinstance(decide(replace(came({}), payload=bytes(1001)), RULES, NOW_MS), Bury)
