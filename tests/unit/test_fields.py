"""The walker over field tables, and the reading of single values."""

import math
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.raw.fields import (
    UnreadableTable,
    entry,
    long_entry,
    negated_entry,
    read_value,
    text_entry,
    walk,
    walk_array,
)
from bridge.core.message import Timestamp, Unreadable

ALL_TAGS = b"tbBsuUIilLfdDSAFTVx"


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


VALUES = [
    ("t", b"\0", False),
    ("t", b"\1", True),
    ("t", b"\x07", True),
    ("b", b"\xff", -1),
    ("B", b"\xff", 255),
    ("s", b"\xff\xfe", -2),
    ("U", b"\xff\xfe", -2),
    ("u", b"\xff\xfe", 65534),
    ("I", b"\xff\xff\xff\xff", -1),
    ("i", b"\xff\xff\xff\xff", 2**32 - 1),
    ("l", b"\x80" + b"\0" * 7, -(2**63)),
    ("L", b"\xff" * 8, -1),
    ("f", struct.pack(">f", 1.5), 1.5),
    ("d", struct.pack(">d", 5000.25), 5000.25),
    ("d", struct.pack(">d", math.inf), math.inf),
    ("D", b"\0" + struct.pack(">i", -5), -5),
    ("D", b"\2" + struct.pack(">i", 1500), 15),
    ("D", b"\2" + struct.pack(">i", 150), 1.5),
    ("D", b"\xff" + struct.pack(">i", 0), 0),
    ("S", sized("grün".encode()), "grün"),
    ("S", sized(b""), ""),
    ("S", sized(b"\xff\xfe"), b"\xff\xfe"),
    ("x", sized(b"5000"), b"5000"),
    ("T", struct.pack(">q", 1_790_000_000), Timestamp(1_790_000_000)),
    ("T", struct.pack(">q", 1_790_000_000_000), Timestamp(1_790_000_000_000)),
    ("T", b"\xff" * 8, Timestamp(-1)),
    ("V", b"", None),
    ("F", sized(b""), Unreadable("a table")),
    ("A", sized(b"Vt\1"), Unreadable("an array")),
    ("?", b"", Unreadable("a value of unknown type '?'")),
]


@pytest.mark.parametrize(("tag", "raw", "value"), VALUES)
def test_each_type_is_read_with_its_sign_and_width(tag: str, raw: bytes, value: object) -> None:
    found = read_value(ord(tag), raw)
    assert found == value
    assert type(found) is type(value)


def test_nan_stays_nan() -> None:
    value = read_value(ord("d"), struct.pack(">d", math.nan))
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(("tag", "raw", "value"), [case for case in VALUES if case[0] != "?"])
def test_each_type_is_skipped_by_its_length(tag: str, raw: bytes, value: object) -> None:
    table = entry(b"first", ord(tag), raw) + long_entry(b"second", 7)
    first, second = walk(b"##" + table + b"##", 2, 2 + len(table))
    assert first == (b"first", ord(tag), 9, 9 + len(raw), 2)
    assert second[0] == b"second"


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(ALL_TAGS)))
def test_an_unknown_type_ends_the_walk_and_says_where(tag: int) -> None:
    table = long_entry(b"fine", 1) + entry(b"odd", tag, b"\0" * 20)
    fields = walk(table, 0, len(table))
    assert next(fields)[0] == b"fine"
    with pytest.raises(UnreadableTable, match="at byte 18 is a value of unknown type"):
        next(fields)


@pytest.mark.parametrize(("tag", "raw", "value"), [case for case in VALUES if case[0] != "?"])
def test_a_value_of_a_wrong_length_is_unreadable(tag: str, raw: bytes, value: object) -> None:
    if tag not in "FA":
        with pytest.raises(UnreadableTable):
            read_value(ord(tag), raw + b"\0")
    if raw and tag not in "FA":
        with pytest.raises(UnreadableTable):
            read_value(ord(tag), raw[:-1])


def test_an_entry_may_not_reach_beyond_its_table_even_where_there_are_bytes() -> None:
    table = text_entry(b"name", b"12345")
    for end in range(1, len(table)):
        with pytest.raises(UnreadableTable):
            list(walk(table + b"\0" * 300, 0, end))


@pytest.mark.parametrize("tag", "tIlSxFAD")
def test_a_table_cut_anywhere_within_its_last_entry_is_unreadable(tag: str) -> None:
    table = entry(b"name", ord(tag), b"\0" * {"t": 1, "l": 8, "D": 5}.get(tag, 4))
    for end in range(1, len(table)):
        with pytest.raises(UnreadableTable):
            list(walk(table[:end], 0, end))


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (0, 99), (3, 2)])
def test_bounds_outside_the_bytes_are_unreadable(start: int, end: int) -> None:
    with pytest.raises(UnreadableTable):
        list(walk(b"\0V\0V", start, end))
    with pytest.raises(UnreadableTable):
        list(walk_array(b"VVVV", start, end))


def test_twenty_thousand_nested_tables_are_one_step() -> None:
    nest = b""
    for _ in range(20_000):
        nest = b"\0F" + sized(nest)
    assert [field[3] for field in walk(nest, 0, len(nest))] == [len(nest)]


def test_an_array_is_walked_element_by_element() -> None:
    content = b"t\1" + b"S" + sized(b"ab") + b"V" + b"A" + sized(b"VV")
    assert [(chr(tag), content[start:end]) for tag, start, end in walk_array(content, 0, len(content))] == [
        ("t", b"\1"),
        ("S", sized(b"ab")),
        ("V", b""),
        ("A", sized(b"VV")),
    ]


@given(st.binary(max_size=200), st.integers(-3, 210), st.integers(-3, 210))
def test_any_bytes_are_walked_or_unreadable(raw: bytes, start: int, end: int) -> None:
    for walker in (walk, walk_array):
        with suppress(UnreadableTable):
            list(walker(raw, start, end))


@given(st.integers(0, 255), st.binary(max_size=24))
def test_any_value_is_read_or_unreadable(tag: int, raw: bytes) -> None:
    with suppress(UnreadableTable):
        read_value(tag, raw)


@given(st.binary(max_size=255), st.binary(max_size=300))
def test_a_text_entry_reads_back(name: bytes, value: bytes) -> None:
    made = text_entry(name, value)
    ((found, tag, start, end, _),) = walk(made, 0, len(made))
    assert (found, tag, made[start + 4 : end]) == (name, ord("S"), value)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_long_entry_reads_back(value: int) -> None:
    made = long_entry(b"x-delay-due", value)
    ((_, tag, start, end, _),) = walk(made, 0, len(made))
    assert chr(tag) == "l"
    assert read_value(tag, made[start:end]) == value


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="255 bytes"):
        text_entry(b"n" * 256, b"")
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="64-bit"):
            long_entry(b"n", value)


@pytest.mark.parametrize(
    ("delay_ms", "given_tag", "tag"),
    [
        (5000, "I", "I"),
        (2**31, "I", "I"),
        (2**31 + 1, "I", "l"),
        (5000, "l", "l"),
        (5000, "S", "l"),
        (5000, None, "l"),
        (-(2**31), "I", "l"),
    ],
)
def test_the_negated_delay_stays_an_int32_only_where_it_came_as_one_and_fits(
    delay_ms: int, given_tag: str | None, tag: str
) -> None:
    made = negated_entry(b"x-delay", delay_ms, None if given_tag is None else ord(given_tag))
    ((_, found, start, end, _),) = walk(made, 0, len(made))
    assert chr(found) == tag
    assert read_value(found, made[start:end]) == -delay_ms
