"""Routes with a limit of what they park: one that is full takes nothing in, or rejects what would wait."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from bridge.pipeline.full import Fullness, IntakeGate, ParkedLimit
from bridge.telemetry.health import Health
from tests.unit.house import House


class Counts:
    """A store that tells how many messages are parked."""

    def __init__(self) -> None:
        self.parked = 0

    async def parked_by_route(self, routes: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(routes, self.parked)


def fullness(limit: ParkedLimit) -> tuple[Counts, Fullness, list[set[str]], Health]:
    counts: Any = Counts()
    held: list[set[str]] = []
    health = Health()
    gate = IntakeGate(lambda routes: held.append(set(routes)))
    return counts, Fullness(counts, {"orders": limit}, gate, health), held, health


async def test_a_full_route_takes_nothing_in_until_it_has_room_again() -> None:
    counts, full, held, health = fullness(ParkedLimit(messages=100))
    for counts.parked in (99, 100, 96, 94):
        await full.look()
    assert held == [{"orders"}, set()]
    assert health.troubles() == {}
    counts.parked = 100
    await full.look()
    [sentence] = health.troubles().values()
    assert sentence.startswith("route orders is full, further ones wait in the broker: messages parked: 100")
    assert full.report() == {"full": ["orders"]}
    assert full.rejecting == frozenset()


async def test_with_on_full_dead_it_goes_on_taking_in() -> None:
    counts, full, held, _ = fullness(ParkedLimit(messages=10, rejects=True))
    counts.parked = 10
    await full.look()
    assert held == [set()]
    assert full.rejecting == {"orders"}


async def test_bytes_are_estimated_from_what_was_taken_in_last() -> None:
    counts, full, held, _ = fullness(ParkedLimit(size=10_000))
    counts.parked = 99
    await full.look()
    house = House()
    house.publish("x" * 100)
    full.note("orders", await house.source.take(10, 1000))
    await full.look()
    assert held == []
    counts.parked = 100
    await full.look()
    assert held == [{"orders"}]


def test_causes_for_which_nothing_is_taken_in_add_up() -> None:
    held: list[set[str]] = []
    gate = IntakeGate(lambda routes: held.append(set(routes)))
    gate.close("drained", {"a"})
    gate.close("full", {"b"})
    gate.close("drained", ())
    assert held == [{"a"}, {"a", "b"}, {"b"}]


@pytest.mark.parametrize(("limit", "fill"), [(ParkedLimit(10), 0.5), (ParkedLimit(10, 100), 5.0), (ParkedLimit(), 0.0)])
def test_the_limit_that_is_nearer_counts(limit: ParkedLimit, fill: float) -> None:
    assert limit.fill(5, 100.0) == fill
