"""A Kafka record survives the store byte for byte, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.kafka.raw.record import Header, Record, head_of, pack, topic_of, unpack

i64 = st.integers(-(2**63), 2**63 - 1)
maybe_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.binary(max_size=12), maybe_bytes), max_size=6)
records = st.builds(Record, st.integers(0, 2**31 - 1), i64, maybe_bytes, maybe_bytes, headers)


topics = st.binary(max_size=249)


@given(records, topics)
@example(Record(0, -1, None, None, []), b"")
@example(Record(3, 0, b"", b"", [(b"", None), (b"", b""), (b"a", b"1"), (b"a", None), (b"\xff\xfe", b"x")]), b"t")
def test_a_record_is_unpacked_as_it_was_packed_with_its_topic(record: Record, topic: bytes) -> None:
    packed = pack(*record, topic)
    assert unpack(packed) == record
    assert topic_of(packed) == topic


@given(records, topics, st.data())
def test_the_first_bytes_tell_the_partition_and_the_key_where_they_reach(
    record: Record, topic: bytes, data: st.DataObject
) -> None:
    packed = pack(*record, topic)
    assert head_of(packed) == (topic, record.partition, record.key)
    end = len(packed) - len(record.value or b"")
    kept = data.draw(st.integers(26, len(packed)))
    assert head_of(packed[:kept])[1:] == (record.partition, record.key if kept >= end else None)


@given(st.binary(max_size=80))
def test_the_head_of_any_bytes_is_read_or_refused(data: bytes) -> None:
    for version in (b"", b"\1", b"\2"):
        try:
            head_of(version + data)
        except ValueError:
            continue


@given(st.binary(max_size=40))
def test_the_topic_of_any_bytes_is_part_of_them(data: bytes) -> None:
    assert topic_of(data) in data


def test_null_and_empty_are_distinguished() -> None:
    packed = {pack(0, 0, key, value, []) for key in (None, b"") for value in (None, b"")}
    assert len(packed) == 4
    assert {unpack(data)[2:4] for data in packed} == {(None, None), (None, b""), (b"", None), (b"", b"")}


def test_headers_keep_their_order_and_duplicates() -> None:
    given: list[Header] = [(b"b", b"1"), (b"a", None), (b"b", b"1"), (b"", b"")]
    assert unpack(pack(0, 0, None, None, given)).headers == given


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_are_exactly_one_record(data: bytes) -> None:
    try:
        record = unpack(data)
    except ValueError:
        return
    assert pack(*record, topic_of(data)) == data


@given(records, st.data())
def test_a_truncated_or_extended_record_is_refused(record: Record, data: st.DataObject) -> None:
    packed = pack(*record)
    at = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError, match="not a Kafka record"):
        unpack(packed[:at])
    with pytest.raises(ValueError, match="not a Kafka record"):
        unpack(packed + b"\0")


@given(records, st.data())
def test_a_changed_byte_gives_another_record_or_none(record: Record, data: st.DataObject) -> None:
    packed = bytearray(pack(*record))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = unpack(bytes(packed))
    except ValueError:
        return
    assert changed != record or topic_of(bytes(packed)) != b""
    assert pack(*changed, topic_of(bytes(packed))) == bytes(packed)


@given(records, topics, st.data())
def test_the_headers_are_read_from_the_first_bytes_where_they_reach(
    record: Record, topic: bytes, data: st.DataObject
) -> None:
    packed = pack(*record, topic)
    end = len(packed) - len(record.value or b"") - len(record.key or b"")
    kept = data.draw(st.integers(26, len(packed)))
    if kept < end:
        with pytest.raises(ValueError, match="not a Kafka record"):
            unpack(packed[:kept], in_part=True)
    else:
        assert unpack(packed[:kept], in_part=True).headers == record.headers
