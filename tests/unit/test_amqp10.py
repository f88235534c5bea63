"""AMQP 1.0 sections as RabbitMQ 3.10.8 packs them into a header. The bytes were sent by Qpid Proton 0.40."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.raw.amqp10 import read_section
from adapters.rabbitmq.raw.fields import TooManyEntries, UnreadableTable
from bridge.core.message import HeaderValue, Unreadable

NAMES = frozenset({"x-delay", "x-deliver-at", "x-delay-key", "flag", "a", "x-opt-delivery-delay"})
HEAD = b"\x00St\xd1\x00\x00\x00"
CAPTURED: dict[str, tuple[bytes, dict[str, HeaderValue]]] = {
    "int": (HEAD + b"\x12\x00\x00\x00\x02\xa1\x07x-delayq\x00\x00\x07\xd0", {"x-delay": 2000}),
    "long": (HEAD + b"\x16\x00\x00\x00\x02\xa1\x07x-delay\x81\x00\x00\x00\x00\x00\x00\x07\xd0", {"x-delay": 2000}),
    "text": (HEAD + b"\x13\x00\x00\x00\x02\xa1\x07x-delay\xa1\x042000", {"x-delay": "2000"}),
    "timestamp": (
        HEAD + b"\x1b\x00\x00\x00\x02\xa1\x0cx-deliver-at\x83\x00\x00\x01\xa2\tU\x01>",
        {"x-deliver-at": 1795452895550},
    ),
    "several": (
        HEAD + b"3\x00\x00\x00\x06\xa1\x0cx-deliver-at\x81\x00\x00\x01\xa2\tU\x0c\xf7"
        b"\xa1\x0bx-delay-key\xa1\x02k1\xa1\x04flagA",
        {"x-deliver-at": 1795452898551, "x-delay-key": "k1", "flag": True},
    ),
    "a double": (
        HEAD + b'"\x00\x00\x00\x04\xa1\x07x-delay\x81\x00\x00\x00\x00\x00\x00\x07\xd0\xa1\x01a\x82?\xf8' + bytes(6),
        {"x-delay": 2000, "a": 1.5},
    ),
    "an annotation": (
        b"\x00Sr\xd1\x00\x00\x00#\x00\x00\x00\x02\xa3\x14x-opt-delivery-delay\x81\x00\x00\x00\x00\x00\x00\x07\xd0",
        {"x-opt-delivery-delay": 2000},
    ),
    "a list": (b"\x00St\xc1\x05\x02\xa1\x01aE", {"a": Unreadable("a value of AMQP 1.0 type 0x45")}),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_each_section_is_read_as_its_producer_wrote_it(name: str) -> None:
    raw, values = CAPTURED[name]
    assert read_section(raw, NAMES, 1000) == values


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"\x00St", b"\x00St\xa1\x00", CAPTURED["int"][0][:-1], b"\x00St\xc1\x05\x02\x10"]
)
def test_bytes_that_are_no_section_are_unreadable(raw: bytes) -> None:
    with pytest.raises(UnreadableTable):
        read_section(raw, NAMES, 1000)


def test_the_entries_are_bounded() -> None:
    with pytest.raises(TooManyEntries):
        read_section(CAPTURED["several"][0], NAMES, 2)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reading(raw: bytes) -> None:
    for data in (raw, b"\x00St\xd1\x00\x00\x00" + raw):
        with suppress(UnreadableTable):
            read_section(data, NAMES, 10)
