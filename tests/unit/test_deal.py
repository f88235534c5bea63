"""Dealing shards by load: every shard has one able instance, all come to the same answer, and little moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.parking.identity import shard_for
from bridge.process.deal import WINDOW_S, deal

SHARDS = 8
A, B, C = "a", "b", "c"

names = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=9, unique=True)
loads = st.lists(st.floats(0, 10_000, allow_subnormal=False), min_size=1, max_size=64)


@st.composite
def deals(draw: st.DrawFn) -> tuple[list[str], list[float], list[str]]:
    """Who holds what, of whom some are gone; loads; and who is able."""
    given_loads, able = draw(loads), draw(names)
    holders = st.sampled_from([*able, "", "one that is gone"])
    held = draw(st.lists(holders, min_size=len(given_loads), max_size=len(given_loads)))
    return held, given_loads, able


def unheld(shards: int = SHARDS) -> list[str]:
    return [""] * shards


def part(dealt: list[str], given_loads: list[float], name: str) -> float:
    """The part of the load that an instance has."""
    return sum(load for owner, load in zip(dealt, given_loads, strict=True) if owner == name) / sum(given_loads)


def loads_of(topic: str, partitions: int, per_s: float) -> list[float]:
    """The load of each shard, where a topic's records are spread evenly over its partitions."""
    found = [0.0] * SHARDS
    for partition in range(partitions):
        found[shard_for(f"{topic}/{partition}".encode(), SHARDS)] += per_s / partitions
    return found


@given(deals())
@example((["a", "a"], [0.0, 100.0], ["a", "b"]))
@example((["a", "b", "b"], [100.0, 1.0, 1.0], ["a", "b", "c"]))
def test_every_shard_is_dealt_to_one_able_instance(case: tuple[list[str], list[float], list[str]]) -> None:
    held, given_loads, able = case
    dealt = deal(held, given_loads, able)
    assert len(dealt) == len(held)
    assert set(dealt) <= set(able)
    assert len(set(dealt)) == len(able) or len(able) > len(held), "every instance has a shard"


@given(st.data(), deals())
def test_everybody_comes_to_the_same_answer(
    data: st.DataObject, case: tuple[list[str], list[float], list[str]]
) -> None:
    held, given_loads, able = case
    assert deal(held, given_loads, data.draw(st.permutations(able))) == deal(held, given_loads, able)


@given(deals())
def test_the_same_loads_move_nothing_again(case: tuple[list[str], list[float], list[str]]) -> None:
    held, given_loads, able = case
    dealt = deal(held, given_loads, able)
    assert deal(dealt, given_loads, able) == dealt


@given(names, st.integers(1, 64))
def test_idle_shards_are_dealt_evenly(able: list[str], shards: int) -> None:
    dealt = deal(unheld(shards), [0.0] * shards, able)
    counts = [dealt.count(name) for name in able]
    assert max(counts) - min(counts) <= 1


@given(names, st.integers(1, 64))
def test_an_instance_that_joins_idle_ones_gets_an_even_part_and_only_that_part_moves(
    able: list[str], shards: int
) -> None:
    before = deal(unheld(shards), [0.0] * shards, able)
    after = deal(before, [0.0] * shards, [*able, "the new one"])
    counts = [after.count(name) for name in (*able, "the new one")]
    assert max(counts) - min(counts) <= 1
    assert all(new in (old, "the new one") for old, new in zip(before, after, strict=True))


@given(names, st.integers(1, 64))
def test_when_one_goes_only_its_shards_move(able: list[str], shards: int) -> None:
    before = deal(unheld(shards), [0.0] * shards, [*able, "the one that goes"])
    after = deal(before, [0.0] * shards, able)
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "the one that goes")


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=32), st.data())
def test_loads_that_change_a_little_move_nothing(given_loads: list[float], data: st.DataObject) -> None:
    dealt = deal(unheld(len(given_loads)), given_loads, [A, B])
    changed = [load * data.draw(st.floats(0.97, 1.03)) for load in given_loads]
    assert deal(dealt, changed, [A, B]) == dealt


@pytest.mark.parametrize("per_s", [2.0, 10.0, 100.0, 5000.0])
@pytest.mark.parametrize("partitions", [2, 4, 6, 8, 12])
def test_loads_that_are_measured_by_chance_move_nothing(partitions: int, per_s: float) -> None:
    """Ten minutes of beats, of loads that are averages over random arrivals, and at most two changes."""
    seeded = random.Random(1)
    true = loads_of("orders", partitions, per_s)
    measured, dealt, changes = list(true), deal(unheld(), [0.0] * SHARDS, [A, B]), 0
    for _ in range(600):
        kept = 1 - 1 / WINDOW_S
        arrived = [max(0.0, seeded.gauss(load, load**0.5)) for load in true]
        measured = [kept * old + (1 - kept) * new for old, new in zip(measured, arrived, strict=True)]
        before, dealt = dealt, deal(dealt, measured, [A, B])
        changes += dealt != before
    assert changes <= 2


@pytest.mark.parametrize("partitions", [2, 4, 5, 6, 7, 8, 9, 10, 11, 12])
@pytest.mark.parametrize("topic", ["orders.delay", "payments.delay", "t", "x.y.z"])
def test_the_partitions_of_a_topic_are_shared_before_anything_is_known_of_their_loads(
    topic: str, partitions: int
) -> None:
    idle = deal(unheld(), [0.0] * SHARDS, [A, B])
    assert 0.35 <= part(idle, loads_of(topic, partitions, 500), A) <= 0.65


def test_of_three_equal_shards_one_instance_has_two_and_stays_with_them() -> None:
    given_loads = loads_of("orders.delay", 3, 500)
    dealt = deal(unheld(), given_loads, [A, B])
    assert sorted(part(dealt, given_loads, name) for name in (A, B)) == pytest.approx([1 / 3, 2 / 3])
    assert deal(dealt, given_loads, [A, B]) == dealt


def test_of_three_equal_shards_the_third_changes_sides_when_it_is_time() -> None:
    given_loads = loads_of("orders.delay", 3, 500)
    dealt, parts = deal(unheld(), given_loads, [A, B]), []
    for _ in range(10):
        before, dealt = dealt, deal(dealt, given_loads, [A, B], turn=True)
        assert sum(old != new for old, new in zip(before, dealt, strict=True)) == 1
        parts.append(part(dealt, given_loads, A))
    assert sorted(parts[:2]) == pytest.approx([1 / 3, 2 / 3])
    assert sum(parts) / len(parts) == pytest.approx(0.5)


@pytest.mark.parametrize("partitions", [0, 1, 2, 4, 5, 6, 7, 8, 12])
def test_where_a_deal_is_even_or_one_shard_has_all_the_load_nothing_changes_sides(partitions: int) -> None:
    given_loads = loads_of("orders.delay", partitions, 500)
    dealt = deal(deal(unheld(), given_loads, [A, B]), given_loads, [A, B])
    assert deal(dealt, given_loads, [A, B], turn=True) == dealt


@given(deals())
def test_a_turn_moves_one_shard_at_most_and_leaves_every_shard_with_an_able_instance(
    case: tuple[list[str], list[float], list[str]],
) -> None:
    held, given_loads, able = case
    dealt = deal(held, given_loads, able)
    turned = deal(dealt, given_loads, able, turn=True)
    assert set(turned) <= set(able)
    assert sum(old != new for old, new in zip(dealt, turned, strict=True)) <= 1


@pytest.mark.parametrize("shards_in_use", [2, 4, 5, 6, 7, 8])
def test_an_instance_with_all_the_load_gives_half_of_it_away(shards_in_use: int) -> None:
    given_loads = [100.0] * shards_in_use + [0.0] * (SHARDS - shards_in_use)
    held = [A] * shards_in_use + [B] * (SHARDS - shards_in_use)
    held[-1] = B if shards_in_use < SHARDS else held[-1]
    assert 0.35 <= part(deal(held, given_loads, [A, B]), given_loads, A) <= 0.65


def test_one_hot_shard_is_alone_and_the_others_are_with_the_other_instance() -> None:
    given_loads = [60.0] * SHARDS
    given_loads[3] = 1000.0
    dealt = deal([A] * 4 + [B] * 4, given_loads, [A, B])
    assert dealt == [B, B, B, A, B, B, B, B]


def test_three_instances_share_twelve_partitions() -> None:
    given_loads = loads_of("orders.delay", 12, 600)
    dealt = deal(unheld(), given_loads, [A, B, C])
    assert all(0.25 <= part(dealt, given_loads, name) <= 0.42 for name in (A, B, C))
