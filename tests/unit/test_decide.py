"""Delays of one log that end within a few milliseconds of each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.pipeline.decide import Neighbours
from tests.unit.house import House

LOG = b"orders.delay-0"
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
        due_ms = neighbours.due_ms(LOG, now_us // 1000 + delay_ms)
        assert before_ms <= due_ms <= (meant_us + 6_000) / 1000
        before_ms = due_ms


@given(st.lists(st.integers(1000, 1030), max_size=50))
def test_no_message_is_due_early_or_more_than_eight_milliseconds_late(asked_ms: list[int]) -> None:
    neighbours = Neighbours()
    assert all(0 <= neighbours.due_ms(LOG, due_ms) - due_ms <= 8 for due_ms in asked_ms)


def test_another_log_is_no_neighbour() -> None:
    neighbours = Neighbours()
    assert [neighbours.due_ms(log, due_ms) for log, due_ms in ((b"a", 1001), (b"b", 1000), (b"a", 1000))] == [
        1001,
        1000,
        1001,
    ]


def test_a_log_of_long_ago_is_forgotten_and_does_no_harm() -> None:
    neighbours = Neighbours()
    for number in range(10_000):
        assert neighbours.due_ms(b"%d" % number, 1000) == 1000
    assert len(neighbours._last_ms) < 5000


async def test_a_delay_keeps_its_place_in_the_log_and_a_moment_is_exact() -> None:
    house = House()
    now_ms = house.clock.now_ms()
    house.source.feed(b"first", {"x-delay": 5001}, order_key=LOG, origin=(LOG, 0))
    house.source.feed(b"second", {"x-delay": 5000}, order_key=LOG, origin=(LOG, 1))
    house.source.feed(b"exact", {"x-deliver-at": now_ms + 5000}, order_key=LOG, origin=(LOG, 2))
    await house.park()
    house.clock.advance(5001)
    await house.deliver()
    assert house.bodies() == ["exact", "first", "second"]
