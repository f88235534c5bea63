"""Shards: every one has exactly one owner, whoever looks, and nobody has more than one more than another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.parking.shard import shard_for, share

names = st.lists(st.text(max_size=8), min_size=1, max_size=12, unique=True)
numbers = st.integers(1, 256)


@given(names, numbers)
def test_every_shard_has_exactly_one_owner(instances: list[str], shards: int) -> None:
    owned = [shard for name in instances for shard in share(instances, name, shards)]
    assert sorted(owned) == list(range(shards))


@given(names, numbers)
def test_the_shares_are_even(instances: list[str], shards: int) -> None:
    sizes = [len(share(instances, name, shards)) for name in instances]
    assert max(sizes) - min(sizes) <= 1


@given(st.data(), names, numbers)
def test_everybody_comes_to_the_same_answer_from_any_order(
    data: st.DataObject, instances: list[str], shards: int
) -> None:
    shuffled = data.draw(st.permutations(instances))
    assert all(share(instances, name, shards) == share(shuffled, name, shards) for name in instances)


@given(names, numbers)
def test_who_is_not_there_has_nothing(instances: list[str], shards: int) -> None:
    assert share(instances, "nobody of the others", shards) == frozenset()


@given(st.binary(), numbers)
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
