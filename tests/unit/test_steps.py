"""The sentence about a step of the store's clock, and the messages that the step concerns."""

from __future__ import annotations

import pytest

from adapters.redis.steps import ahead, step_in
from bridge.desk.clock_step import STEP_NEWS_MS, last_of

NOW_MS, HOUR_MS = 1_800_000_000_000, 3_600_000
BACK = {
    "stepped_ms": NOW_MS,
    "stepped_by_ms": -HOUR_MS,
    "stepped_from_ms": NOW_MS + HOUR_MS - 8000,
    "stepped_to_ms": NOW_MS + HOUR_MS,
    "stepped_parked": 255,
}


def test_a_step_back_names_the_messages_that_were_parked_meanwhile_and_the_command_that_lists_them() -> None:
    assert str(step_in(BACK, NOW_MS + 1)) == (
        "Redis's clock stepped back by 1h, to 2027-01-15T08:00:00.000Z. Messages parked while it was ahead, about 255, "
        "may wait 1h too long where their delay counts from arrival. Until 2027-01-15T08:59:52.000Z, `postdate list "
        "--parked-after 2027-01-15T08:59:52.000Z --parked-before 2027-01-15T09:00:00.000Z` lists them alone"
    )


def test_new_messages_have_the_stamps_of_those_when_the_clock_shows_their_moments_again() -> None:
    assert str(step_in(BACK, BACK["stepped_from_ms"])).endswith("from arrival. Then they leave by themselves")


def test_a_command_that_would_list_them_alone_for_seconds_only_is_not_offered() -> None:
    short = {**BACK, "stepped_by_ms": -60_000, "stepped_to_ms": NOW_MS + 60_000}
    for left_ms, offered in ((59_999, False), (60_000, True)):
        assert ("`" in str(step_in({**short, "stepped_from_ms": NOW_MS + left_ms}, NOW_MS))) is offered


def test_no_count_is_named_while_it_is_0_or_not_known() -> None:
    text = str(step_in({**BACK, "stepped_parked": 0}, NOW_MS))
    assert "Messages parked while it was ahead may wait 1h too long" in text


def test_a_step_forward_says_how_many_messages_left_at_once_and_how_early() -> None:
    forward = {**BACK, "stepped_by_ms": HOUR_MS - 3}
    assert str(step_in({**forward, "stepped_parked": 1255}, NOW_MS)) == (
        "Redis's clock stepped forward by 1h, to 2027-01-15T08:00:00.000Z. Messages due in between, about 1,255, left "
        "at once, up to 1h early by the clock before"
    )
    assert "Messages due in between left at once" in str(step_in({**forward, "stepped_parked": 0}, NOW_MS))


@pytest.mark.parametrize("made", [{}, {**BACK, "stepped_ms": NOW_MS + 5000}])
def test_no_step_and_one_that_a_later_step_undid_are_not_reported(made: dict[str, int]) -> None:
    assert step_in(made, NOW_MS) is None


@pytest.mark.parametrize(
    ("made", "for_ms"),
    [
        (BACK, HOUR_MS),
        ({**BACK, "stepped_to_ms": NOW_MS + 14_000}, STEP_NEWS_MS),
        ({**BACK, "stepped_to_ms": NOW_MS + 400 * 24 * HOUR_MS}, 24 * HOUR_MS),
        ({**BACK, "stepped_by_ms": HOUR_MS}, STEP_NEWS_MS),
    ],
    ids=["an hour back", "seconds back", "a year back", "an hour forward"],
)
def test_a_step_is_reported_for_two_minutes_and_until_the_clock_shows_again_where_it_was(
    made: dict[str, int], for_ms: int
) -> None:
    assert step_in(made, NOW_MS + for_ms - 1)
    assert step_in(made, NOW_MS + for_ms) is None


def test_the_clock_was_ahead_since_the_step_forward_or_since_a_moment_that_has_not_come_again() -> None:
    forward = {"stepped_ms": NOW_MS + HOUR_MS - 8000, "stepped_by_ms": HOUR_MS}
    assert ahead(forward, NOW_MS, -HOUR_MS) == (NOW_MS + HOUR_MS - 10_000, NOW_MS + HOUR_MS + 2000)
    for made in ({}, {**forward, "stepped_by_ms": -5}, {**forward, "stepped_ms": NOW_MS - 50_000}):
        assert ahead(made, NOW_MS, -HOUR_MS) == (NOW_MS, NOW_MS + HOUR_MS + 2000)


def test_a_step_that_two_stores_of_one_server_noted_is_one_step_with_the_messages_of_both() -> None:
    first = step_in(BACK, NOW_MS + 1)
    assert first is not None
    second = first._replace(at_ms=NOW_MS + 700, from_ms=first.from_ms - 5, to_ms=first.to_ms + 5, messages=4)
    long_ago = first._replace(at_ms=NOW_MS - HOUR_MS, messages=77)
    last = last_of([second, first])
    assert last == first._replace(from_ms=second.from_ms, to_ms=second.to_ms, messages=259)
    for not_noted_yet in (None, long_ago):
        assert last_of([second, first, not_noted_yet]) == last._replace(messages=0), "one store has not counted yet"
    assert last_of([None]) is None
