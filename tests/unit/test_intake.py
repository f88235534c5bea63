"""Deliveries that wait for the way in: routes take turns, and each keeps its order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.message import Delivery
from bridge.pipeline.intake import Arrivals

MANY = 1 << 30


def delivery(route: str, number: int = 0, size: int = 1) -> Delivery:
    return Delivery(number, route, b"x" * size, b"", {}, 0)


def several(route: str, count: int, size: int = 1) -> list[Delivery]:
    return [delivery(route, number, size) for number in range(count)]


def counts(batch: list[Delivery]) -> dict[str, int]:
    return {
        route: sum(delivery.route == route for delivery in batch)
        for route in sorted({delivery.route for delivery in batch})
    }


def test_routes_share_a_batch_and_what_one_leaves_the_others_get() -> None:
    arrivals = Arrivals()
    arrivals.add([*several("flood", 1000), *several("a", 3), *several("b", 40)])
    assert counts(arrivals.more(60, MANY)) == {"a": 3, "b": 28, "flood": 29}
    assert counts(arrivals.more(60, MANY)) == {"b": 12, "flood": 48}


def test_more_routes_than_a_batch_has_messages_all_have_their_turn() -> None:
    arrivals = Arrivals()
    routes = [f"{number}" for number in range(10)]
    for route in routes:
        arrivals.add(several(route, 3))
    seen = [delivery.route for _ in range(10) for delivery in arrivals.more(3, MANY)]
    assert {route: seen.count(route) for route in routes} == dict.fromkeys(routes, 3)


def test_a_route_that_is_left_out_keeps_what_it_has() -> None:
    arrivals = Arrivals()
    arrivals.add([*several("busy", 5), *several("a", 2)])
    assert counts(arrivals.more(10, MANY, {"busy"})) == {"a": 2}
    assert arrivals.more(10, MANY, {"busy"}) == []
    assert counts(arrivals.more(10, MANY)) == {"busy": 5}


@pytest.mark.parametrize("size", [80, 100, 101, 1000])
def test_large_bodies_of_one_route_do_not_keep_another_waiting(size: int) -> None:
    arrivals = Arrivals()
    arrivals.add(several("large", 50, size))
    for _ in range(20):
        arrivals.add([delivery("small")])
        two = [*arrivals.more(10, 100), *arrivals.more(10, 100)]
        assert counts(two)["small"] == 1
        assert counts(two)["large"] >= 1


def test_a_delivery_larger_than_a_batch_is_taken_alone() -> None:
    arrivals = Arrivals()
    arrivals.add([delivery("a", 1), delivery("a", 2, 1000), delivery("a", 3)])
    assert [[delivery.tag for delivery in arrivals.more(10, 100)] for _ in range(4)] == [[1], [2], [3], []]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60))), st.integers(1, 7), st.integers(1, 100))
def test_all_are_taken_once_within_the_bounds_and_each_route_in_its_order(
    given_routes: list[tuple[str, int]], messages_max: int, bytes_max: int
) -> None:
    arrivals = Arrivals()
    put = [delivery(route, number, size) for number, (route, size) in enumerate(given_routes)]
    taken: list[Delivery] = []
    arrivals.add(put[: len(put) // 2])
    taken += arrivals.more(messages_max, bytes_max)
    arrivals.add(put[len(put) // 2 :])
    while not arrivals.empty():
        batch = arrivals.more(messages_max, bytes_max)
        assert 0 < len(batch) <= messages_max
        assert len(batch) == 1 or sum(len(delivery.payload) for delivery in batch) <= bytes_max
        taken += batch
    assert len(taken) == len(put)
    for route in "abc":
        assert [delivery for delivery in taken if delivery.route == route] == [
            delivery for delivery in put if delivery.route == route
        ]


def test_removed_deliveries_are_returned_and_delay_no_other() -> None:
    arrivals = Arrivals()
    arrivals.add([*several("a", 3), *several("b", 2)])
    assert [(delivery.route, delivery.tag) for delivery in arrivals.remove(lambda delivery: delivery.tag > 0)] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]
    assert counts(arrivals.more(10, MANY)) == {"a": 1, "b": 1}
    assert arrivals.empty()
    arrivals.add(several("a", 2))
    assert (len(arrivals.clear()), arrivals.empty()) == (2, True)
