"""Delays of one record key that end within a few milliseconds of each other."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bridge.pipeline.decide import Neighbours
from tests.unit.house import House

LOG = b"orders.delay-0"
LINE = LOG, b"customer 7"
#: How long a producer works between two records, and between computing a delay and publishing, in microseconds.
PACES = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 6_000)), min_size=1, max_size=50)


@given(st.integers(500_000, 501_000), PACES)
def test_records_that_mean_one_moment_are_never_due_before_those_in_front_of_them(
    meant_us: int, paces: list[tuple[int, int]]
) -> None:
    neighbours, before_ms, now_us = Neighbours(), 0, 0
    for works_us, stands_us in paces:
        now_us += works_us
        delay_ms = (meant_us - now_us) // 1000
        now_us += stands_us
        due_ms = neighbours.due_ms(LINE, now_us // 1000 + delay_ms)
        assert before_ms <= due_ms <= (meant_us + 6_000) / 1000
        before_ms = due_ms


#: Around the end of a word, in which moments are remembered.
EDGES_MS = st.integers(1000, 1050)


@given(st.lists(EDGES_MS, max_size=50))
@example([1000, 1007, 1000, 1000, 1012, 1000])
def test_no_record_is_due_before_an_earlier_one_unless_it_would_wait_for_it_for_more_than_eight_milliseconds(
    asked_ms: list[int],
) -> None:
    neighbours = Neighbours()
    due_ms = [neighbours.due_ms(LINE, moment_ms) for moment_ms in asked_ms]
    assert all(0 <= due - asked <= 8 for due, asked in zip(due_ms, asked_ms, strict=True))
    for later, asked in enumerate(asked_ms):
        assert all(due_ms[later] >= earlier for earlier in due_ms[:later] if earlier <= asked + 8)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 8)), max_size=100))
def test_records_of_moments_that_lie_apart_keep_their_order_however_they_alternate(
    asked: list[tuple[int, int]],
) -> None:
    neighbours, latest_ms = Neighbours(), dict[int, int]()
    for moment, off_ms in asked:
        due_ms = neighbours.due_ms(LINE, 1000 + moment * 100 + off_ms)
        assert due_ms >= latest_ms.get(moment, 0)
        latest_ms[moment] = due_ms


def test_another_log_or_another_key_is_no_neighbour() -> None:
    neighbours = Neighbours()
    for other in ((b"orders.delay-1", b"customer 7"), (LOG, b"customer 8"), (LOG, None)):
        assert neighbours.due_ms(LINE, 1001) == 1001
        assert neighbours.due_ms(other, 1000) == 1000
    assert neighbours.due_ms(LINE, 1000) == 1001


def test_moments_of_long_ago_are_forgotten_and_do_no_harm() -> None:
    neighbours = Neighbours()
    for number in range(50_000):
        assert neighbours.due_ms(LINE, number * 1000) == number * 1000
    assert len(neighbours._words) + len(neighbours._older) < 40_000
    assert neighbours.due_ms(LINE, 49_999_000 - 5) == 49_999_000, "those of late are remembered"


async def test_a_delay_keeps_its_place_among_those_of_its_key_and_a_moment_is_exact() -> None:
    house = House()
    now_ms = house.clock.now_ms()
    house.source.feed(b"first", {"x-delay": 5001}, order_key=LOG, origin=(LOG, 0), record_key=b"a")
    house.source.feed(b"second", {"x-delay": 5000}, order_key=LOG, origin=(LOG, 1), record_key=b"a")
    house.source.feed(b"exact", {"x-deliver-at": now_ms + 5000}, order_key=LOG, origin=(LOG, 2), record_key=b"a")
    house.source.feed(b"other", {"x-delay": 5000}, order_key=LOG, origin=(LOG, 3), record_key=b"b")
    await house.park()
    house.clock.advance(5001)
    await house.deliver()
    assert house.bodies() == ["exact", "other", "first", "second"]
