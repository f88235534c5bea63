"""A batch that aiokafka cannot decode is read from its bytes, record by record, whatever its names and its codec."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as Builder
from hypothesis import given
from hypothesis import strategies as st

from adapters.kafka.intake import KafkaIntake, Partition, StartOffset
from adapters.kafka.outgoing import OddName
from adapters.kafka.raw.poison import RawBatch, first_batch
from adapters.kafka.raw.record import Record
from adapters.kafka.source import KafkaSource
from adapters.kafka.topology.topic_ids import TopicId
from bridge.core.clock import StoreClock
from bridge.delay.naming import Naming
from bridge.settings import Kafka
from bridge.telemetry.health import Health

maybe_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.binary(max_size=12), maybe_bytes), max_size=4)
records = st.builds(Record, st.just(3), st.integers(-1, 2**40), maybe_bytes, maybe_bytes, headers)


def written(records: list[Record], base: int = 0, codec: int = 0) -> bytes:
    """A batch as a broker gives it; the base offset is what the broker writes into it."""
    builder = Builder(
        2, codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20
    )
    for number, record in enumerate(records):
        named: list[Any] = [(OddName(name), content) for name, content in record.headers]
        builder.append(number, record.timestamp, record.key, record.value, named)
    return base.to_bytes(8, "big") + bytes(builder.build())[8:]


@given(st.lists(records, min_size=1, max_size=6), st.sampled_from([0, 1, 2, 3, 4]), st.data())
def test_every_record_from_an_offset_on_is_read_as_it_was_written(
    given: list[Record], codec: int, data: st.DataObject
) -> None:
    skipped = data.draw(st.integers(0, len(given) - 1))
    batch = first_batch(written(given, 100, codec), 100 + skipped, 3)
    assert batch is not None
    assert batch.records == [(100 + number, record) for number, record in enumerate(given)][skipped:]
    assert batch.end == 100 + len(given)


def test_earlier_batches_and_a_truncated_last_batch_are_skipped() -> None:
    record = Record(3, 5, b"k", b"v", [(b"\xff", None)])
    data = written([record, record], 0) + written([record], 2) + written([record], 3)[:70]
    batch = first_batch(data, 2, 3)
    assert batch is not None
    assert (batch.records, batch.end) == ([(2, record)], 3)


@pytest.mark.parametrize("data", [b"", b"\0" * 30])
def test_without_a_batch_there_is_no_record_and_the_same_offset_is_read_again(data: bytes) -> None:
    assert first_batch(data, 7, 0) == RawBatch([], 7)


def test_behind_aborted_records_a_batch_that_the_fetch_cuts_is_read_by_the_next_one() -> None:
    aborted = bytearray(written([Record(3, 5, b"k", b"v", [])] * 2, 0))
    aborted[22] |= 0x10  # in a transaction, of producer -1
    data = bytes(aborted) + written([Record(3, 5, b"k", b"v", [(b"\xff", None)])], 2)[:70]
    assert first_batch(data, 0, 3, [(-1, 0)]) == RawBatch([], 2)


@pytest.mark.usefixtures("leaping_time")
async def test_a_broker_that_gives_no_bytes_for_now_makes_no_dead_letter() -> None:
    bad, tp = written([Record(0, 5, b"k", b"v", [(b"\xff", None)])]), TopicPartition("orders.delay", 0)
    fetched = [None, b"", bad]  # above its quota an answer has no topics, and of a new leader that is behind no bytes

    async def send(_node: int, _request: Any, group: str) -> Any:
        data = fetched.pop(0)
        return SimpleNamespace(topics=[] if data is None else [("orders.delay", [(0, 0, 1, 1, [], data)])])

    cluster = SimpleNamespace(leader_for_partition=lambda _: 1)
    seeks: list[int] = []
    consumer: Any = SimpleNamespace(
        _client=SimpleNamespace(cluster=cluster, send=send),
        getmany=AsyncMock(side_effect=UnicodeDecodeError("utf-8", b"", 0, 1, "")),
        position=AsyncMock(return_value=0),
        assignment=lambda: {tp},
        seek=lambda _, offset: seeks.append(offset),
    )
    intake = KafkaIntake("orders", Naming("orders.delay", "orders"), frozenset())
    source = KafkaSource(Kafka(), [intake], StoreClock(), 1 << 20, Health())
    source._parts[tp] = Partition(tp, intake, TopicId("c", "t"), StartOffset(0))
    await source._pass_over(consumer, tp)
    assert (seeks, source.more(9, 1 << 20)) == ([0], [])
    await source._pass_over(consumer, tp)
    assert [delivery.fault for delivery in source.more(9, 1 << 20)] == ["a header's name is not UTF-8"]
    assert seeks == [0, 1]


@given(st.binary(min_size=61, max_size=300))
def test_bytes_that_are_no_batch_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|record|codec"):
        first_batch(data[:16] + b"\x07" + data[17:], 0, 0)


def test_a_compressed_batch_that_is_damaged_is_refused() -> None:
    data = bytearray(written([Record(3, 5, b"k" * 500, b"v" * 500, [])], 0, 1))
    data[65:80] = bytes(15)
    with pytest.raises(ValueError, match=r"codec|record"):
        first_batch(bytes(data), 0, 3)


def test_a_record_whose_bytes_cannot_be_decoded_is_a_fault_that_says_where_it_is() -> None:
    intake = KafkaIntake("orders", Naming("orders.delay", "orders"), frozenset())
    part = Partition(TopicPartition("orders.delay", 2), intake, TopicId("c", "t"), StartOffset(0))
    found = part.raw(7, None, 0)
    assert found.fault.endswith("it is at offset 7 of orders.delay")
    assert (part.next, part.first_unread()) == (8, 8)
