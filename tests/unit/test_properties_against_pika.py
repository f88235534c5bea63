"""Raw properties compared with pika's decoder, for values that pika can represent."""

import struct
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any

from adapters.rabbitmq.raw.fields import long_entry, text_entry
from adapters.rabbitmq.raw.properties import edit, read
from tests.unit.raw_properties import Entry, every_property, sized

AUDIT = text_entry(b"x-delay-id", b"01JD") + long_entry(b"x-delay-due", 1_790_000_000_000)
X_DELAY: Entry = (b"x-delay", "I", struct.pack(">i", 5000))


def decoded(raw: bytes) -> Any:
    return import_module("pika.spec").BasicProperties().decode(raw)


_PIKA_READS: list[Entry] = [
    (b"int8", "b", b"\xf0"),
    (b"uint8", "B", b"\xf0"),
    (b"int16", "s", b"\xf0\1"),
    (b"uint16", "u", b"\xf0\1"),
    (b"short", "U", b"\xf0\1"),
    (b"int32", "I", b"\xf0\1\2\3"),
    (b"uint32", "i", b"\xf0\1\2\3"),
    (b"int64", "l", b"\xf0\1\2\3\4\5\6\7"),
    (b"also int64", "L", b"\xf0\1\2\3\4\5\6\7"),
    (b"bool", "t", b"\1"),
    (b"void", "V", b""),
    (b"text", "S", sized("grün".encode())),
    (b"not text", "S", sized(b"\xff")),
    (b"bytes", "x", sized(b"abc")),
]


def test_values_equal_those_that_pika_reads() -> None:
    raw = every_property(_PIKA_READS).encode()
    theirs = decoded(raw)
    ours = read(raw, frozenset(name for name, *_ in _PIKA_READS))
    assert ours.headers == theirs.headers
    assert ours.message_id == theirs.message_id.encode()


def test_pika_reads_edited_properties_unchanged_but_for_the_edit() -> None:
    moment: Entry = (b"when", "T", struct.pack(">q", 1_790_000_000))
    price: Entry = (b"price", "D", b"\2" + struct.pack(">i", 150))
    raw = every_property([X_DELAY, *_PIKA_READS, moment, price]).encode()
    before = decoded(raw)
    after = decoded(edit(raw, frozenset({b"x-delay"}), True, AUDIT))
    assert (before.user_id, after.user_id) == ("user_id", None)
    before.user_id = None
    del before.headers["x-delay"]
    before.headers |= {"x-delay-id": "01JD", "x-delay-due": 1_790_000_000_000}
    assert vars(after) == vars(before)
    assert after.headers["when"] == datetime.fromtimestamp(1_790_000_000, UTC)
    assert after.headers["price"] == Decimal("1.50")
