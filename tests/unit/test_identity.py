"""Ids: they rise in the order of arrival whatever the clock does, none comes twice, and each names its shard."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.parking.identity import (
    ID_BYTES,
    Ids,
    arrived_ms_of,
    ids_of_rank,
    new_instance,
    rank_of,
    shard_for,
    shard_of,
)

NOW_MS = 1_800_000_000_000


@given(st.lists(st.tuples(st.integers(0, 2**44), st.integers(0, 1023)), min_size=2, max_size=50))
def test_ids_rise_even_when_the_clock_steps_back(calls: list[tuple[int, int]]) -> None:
    ids = Ids("abc123")
    made = [ids.next(now_ms, shard) for now_ms, shard in calls]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_forty_thousand_ids_of_one_millisecond_are_unique_and_rise() -> None:
    ids = Ids("abc123")
    made = [ids.next(NOW_MS, 7) for _ in range(40_000)]
    assert len(set(made)) == 40_000
    assert made == sorted(made)


def test_ids_go_on_rising_after_a_millisecond_was_borrowed() -> None:
    ids = Ids("abc123")
    borrowed = [ids.next(NOW_MS, 0) for _ in range(40_000)][-1]
    assert borrowed < ids.next(NOW_MS, 0) < ids.next(NOW_MS + 1, 0) < ids.next(NOW_MS + 2, 0)


def test_later_is_higher_between_instances_too() -> None:
    assert Ids("vvvvvv").next(NOW_MS, 1023) < Ids("000000").next(NOW_MS + 1, 0)


@given(st.integers(0, 1023), st.integers(0, 2**44))
def test_an_id_names_its_shard(shard: int, now_ms: int) -> None:
    message_id = Ids("abc123").next(now_ms, shard)
    assert len(message_id) == ID_BYTES
    assert shard_of(message_id) == shard


@pytest.mark.parametrize(
    "text", [b"", b"0" * 19, b"0" * 21, b"0" * 19 + b"w", b"A" * 20, b"\xff" * 20, b"0" * 19 + b" "]
)
def test_what_is_no_id_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a message id"):
        shard_of(text)


def test_instances_have_names_of_their_own() -> None:
    names = {new_instance() for _ in range(1000)}
    assert len(names) == 1000
    assert all(re.fullmatch("[0-9a-v]{6}", name) for name in names)


@given(st.binary(), st.integers(1, 256))
def test_a_key_has_one_shard(key: bytes, shards: int) -> None:
    assert 0 <= shard_for(key, shards) < shards
    assert shard_for(key, shards) == shard_for(key, shards)


def test_the_shard_of_a_key_is_the_same_in_every_version() -> None:
    # Written down: another answer would break the order of what is parked across an upgrade.
    assert [shard_for(key, 8) for key in (b"", b"a", b"orders", b"customer-42")] == [0, 3, 6, 5]


def test_many_keys_are_spread() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[shard_for(f"customer-{number}".encode(), 8)] += 1
    assert min(counts) > 800


@given(st.integers(0, 2**42 - 1), st.sampled_from([None, *range(17)]))
def test_an_id_tells_its_moment_whatever_its_rank(now_ms: int, priority: int | None) -> None:
    assert arrived_ms_of(Ids("abc123").next(now_ms, 0, rank_of(priority))) == now_ms


@given(st.integers(0, 2**42 - 1), st.sampled_from([None, *range(17)]))
def test_an_id_is_among_those_of_its_rank_alone(now_ms: int, priority: int | None) -> None:
    rank = rank_of(priority)
    message_id = Ids("abc123").next(now_ms, 0, rank)
    assert [n for n in range(16) if ids_of_rank(n)[0] <= message_id < ids_of_rank(n)[1]] == [rank]


def test_a_higher_priority_sorts_first_and_each_one_in_its_order() -> None:
    ids = Ids("abc123")
    made = {(p, n): ids.next(NOW_MS + n, 0, rank_of(p)) for n in range(50) for p in range(16)}
    assert sorted(made, key=lambda place: made[place]) == sorted(made, key=lambda place: (-place[0], place[1]))
    assert rank_of(15) == rank_of(255) == rank_of(None) == 0
