"""The bounds of a Kafka source's buffer, and each route's share of it."""

from __future__ import annotations

from adapters.kafka.source import HeldDeliveries
from bridge.core.message import Delivery


def several(route: str, count: int, size: int = 1) -> list[Delivery]:
    return [Delivery(None, route, b"x" * size, b"", {}, 0) for _ in range(count)]


def test_a_route_with_its_full_share_leaves_one_for_another_route() -> None:
    held = HeldDeliveries(90, 1 << 20, routes=3)
    held.add(several("flood", 44))
    assert held.crowded() == set()
    held.add(several("flood", 1))
    assert (held.crowded(), held.full()) == ({"flood"}, False)
    held.add(several("a", 29))
    assert held.crowded() == {"flood"}
    held.add(several("a", 1))
    assert (held.crowded(), held.full(), held.room()) == ({"flood", "a"}, False, 15)
    held.forget([*several("flood", 45), *several("a", 30)])
    assert (held.crowded(), held.half_empty(), held.messages) == (set(), True, 0)


def test_a_single_route_may_use_the_whole_buffer() -> None:
    held = HeldDeliveries(90, 1 << 20, routes=1)
    held.add(several("alone", 89))
    assert (held.crowded(), held.full()) == (set(), False)
    held.add(several("alone", 1))
    assert held.full()


def test_the_buffer_is_bounded_in_bytes_too() -> None:
    held = HeldDeliveries(90, 100, routes=2)
    held.add(several("large", 1, 100))
    assert (held.full(), held.half_empty()) == (True, False)
