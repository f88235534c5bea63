"""Keys go to the partition that the producer's own client would have chosen."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.kafka.partitioner import PartitionChoice, murmur2

# The vectors of Kafka's own test of Utils.murmur2 (UtilsTest.java), as signed 32-bit numbers.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA.items())
def test_murmur2_equals_the_java_clients(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_murmur2_equals_aiokafkas(key: bytes) -> None:
    from aiokafka.partitioner import murmur2 as slow

    assert murmur2(key) == slow(key)


@given(st.binary(max_size=30), st.integers(1, 64))
def test_murmur2_drops_the_sign_before_it_divides(key: bytes, partitions: int) -> None:
    assert PartitionChoice("murmur2").partition(key, 0, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.binary(max_size=30), st.integers(1, 64))
def test_crc32_divides_the_whole_number(key: bytes, partitions: int) -> None:
    assert PartitionChoice("crc32").partition(key, 0, partitions) == crc32(key) % partitions


def test_the_partition_number_is_kept_where_the_target_has_it() -> None:
    choice = PartitionChoice("same")
    assert choice.partition(b"key", 5, 6) == 5
    assert choice.partition(None, 5, 6) == 5
    assert choice.partition(b"key", 6, 6) == PartitionChoice("murmur2").partition(b"key", 6, 6)


@pytest.mark.parametrize("number", [-1, -(2**31)])
def test_a_negative_partition_number_is_never_kept(number: int) -> None:
    assert PartitionChoice("same").partition(b"key", number, 6) == PartitionChoice("murmur2").partition(
        b"key", number, 6
    )


def test_an_empty_key_is_a_key() -> None:
    choice = PartitionChoice("murmur2")
    first = choice.partition(b"", 0, 12)
    choice.next_batch()
    assert choice.partition(b"", 0, 12) == first


def test_records_without_a_key_stay_together_in_a_batch_and_are_spread_over_all_partitions() -> None:
    choice = PartitionChoice("murmur2")
    used: list[int] = []
    for _ in range(12):
        choice.next_batch()
        batch = {choice.partition(None, 0, 12) for _ in range(50)}
        assert len(batch) == 1
        used += batch
    assert sorted(used) == list(range(12))


def test_the_cache_distinguishes_the_number_of_partitions() -> None:
    choice = PartitionChoice("murmur2")
    assert [choice.partition(b"foobar", 0, n) for n in (5, 12, 5, 12)] == [
        (murmur2(b"foobar") & 0x7FFFFFFF) % n for n in (5, 12, 5, 12)
    ]


def test_the_cache_is_bounded() -> None:
    choice = PartitionChoice("murmur2")
    for number in range(25_000):
        choice.partition(b"%d" % number, 0, 12)
    assert len(choice._known) <= 10_000
