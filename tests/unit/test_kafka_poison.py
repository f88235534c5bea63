"""A batch that aiokafka cannot decode is read from its bytes, record by record, whatever its names and its codec."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as Builder
from hypothesis import given
from hypothesis import strategies as st

from adapters.kafka.outgoing import OddName
from adapters.kafka.raw.poison import first_batch
from adapters.kafka.raw.record import Record

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
def test_without_a_batch_there_is_no_record(data: bytes) -> None:
    assert first_batch(data, 0, 0) is None


@given(st.binary(min_size=61, max_size=300))
def test_bytes_that_are_no_batch_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|record|codec"):
        first_batch(data[:16] + b"\x07" + data[17:], 0, 0)


def test_a_compressed_batch_that_is_damaged_is_refused() -> None:
    data = bytearray(written([Record(3, 5, b"k" * 500, b"v" * 500, [])], 0, 1))
    data[65:80] = bytes(15)
    with pytest.raises(ValueError, match=r"codec|record"):
        first_batch(bytes(data), 0, 3)
