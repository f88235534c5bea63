"""Deliveries that wait in a source for their moment."""

from __future__ import annotations

import asyncio
import time

import pytest

from bridge.core.clock import StoreClock
from bridge.core.message import Delivery
from bridge.pipeline.intake import HeldBack

MANY = 1 << 20


def delivery(due_in_ms: int, key: bytes = b"key", tag: object = None) -> Delivery:
    due_ms = round(time.time() * 1000) + due_in_ms
    return Delivery(tag, "orders", b"%d" % due_in_ms, key, {}, due_ms)


@pytest.fixture
def held() -> HeldBack:
    return HeldBack(StoreClock(), lambda delivery: delivery.arrived_ms)


async def arrive(held: HeldBack, count: int) -> list[tuple[Delivery, float]]:
    came: list[tuple[Delivery, float]] = []
    while len(came) < count:
        came += [(delivery, time.time()) for delivery in await asyncio.wait_for(held.take(100, MANY), 5)]
    return came


async def test_each_arrives_at_its_moment_and_none_before_it(held: HeldBack) -> None:
    held.add([delivery(due, b"%d" % due) for due in (90, 30, -10, 60)])
    came = await arrive(held, 4)
    assert [delivery.payload for delivery, _ in came] == [b"-10", b"30", b"60", b"90"]
    for arrival, at in came:
        assert arrival.arrived_ms / 1000 <= at + 0.0001


async def test_no_delivery_overtakes_a_later_one_of_the_same_key(held: HeldBack) -> None:
    held.add([delivery(80), delivery(20), delivery(10, b"another")])
    held.add([delivery(0)])
    assert [delivery.payload for delivery, _ in await arrive(held, 4)] == [b"10", b"80", b"20", b"0"]


async def test_a_removed_delivery_delays_no_other(held: HeldBack) -> None:
    held.add([delivery(60_000, tag="gone"), delivery(20)])
    assert [delivery.payload for delivery in held.remove(lambda delivery: delivery.tag == "gone")] == [b"60000"]
    held.add([delivery(30)])
    assert [delivery.payload for delivery, _ in await arrive(held, 2)] == [b"20", b"30"]


async def test_what_has_arrived_and_what_waits_is_taken_out_alike(held: HeldBack) -> None:
    held.add([delivery(-1), delivery(60_000)])
    assert len(held.clear()) == 2
    assert held.more(100, MANY) == []
