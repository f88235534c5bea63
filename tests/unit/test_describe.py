"""Properties shown by ``postdate show``, and properties made by ``postdate send``."""

import json
import math
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.raw.properties import header_tag, read
from adapters.rabbitmq.raw.values import DEPTH_MAX, NESTED_MAX, UNREADABLE, build, describe
from bridge.core.message import HeaderValue, Timestamp, Unreadable
from tests.unit.raw_properties import PROPS, Entry, Props, sized


def test_every_property_and_type_is_shown() -> None:
    props = build(
        {
            "n": -5,
            "big": 2**40,
            "pi": 3.5,
            "yes": True,
            "nil": None,
            "text": "grün",
            "raw": b"\xff",
            "at": Timestamp(0),
        },
        content_type="text/plain",
        content_encoding="gzip",
        priority=0,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="",
        timestamp=1_790_000_000,
        type="t",
        app_id="a",
    )
    assert describe(props) == {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": {
            "n": -5, "big": 2**40, "pi": 3.5, "yes": True, "nil": None, "text": "grün", "raw": "\\xff",
            "at": "1970-01-01T00:00:00Z",
        },
        "delivery_mode": 2,
        "priority": 0,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "",
        "timestamp": "2026-09-21T14:13:20Z",
        "type": "t",
        "app_id": "a",
    }  # fmt: skip


def test_nested_tables_arrays_and_odd_values_are_shown() -> None:
    table = sized(b"\1aS" + sized(b"x"))
    headers = [
        (b"deaths", "A", sized(b"F" + table + b"V" + b"B\7")),
        (b"price", "D", b"\2" + struct.pack(">i", 150)),
        (b"nan", "d", struct.pack(">d", math.nan)),
        (b"ms", "T", struct.pack(">q", 1_790_000_000_000)),
    ]
    assert describe(Props(headers).encode()) == {
        "headers": {
            "deaths": [{"a": "x"}, None, 7],
            "price": "1.50",
            "nan": "nan",
            "ms": "1790000000000 seconds since 1970",
        }
    }


def test_a_repeated_name_is_shown_with_a_number() -> None:
    names = [b"a", b"a #2", b"a", b"a"]
    headers = [(name, "B", bytes((n,))) for n, name in enumerate(names)]
    assert describe(Props(headers).encode()) == {"headers": {"a": 0, "a #2": 1, "a #3": 2, "a #4": 3}}


def test_everything_before_the_unreadable_part_is_shown_with_the_reason() -> None:
    odd = Props([(b"a", "B", b"\1"), (b"odd", "?", b"")], {"delivery_mode": b"\2"}).encode()
    shown = describe(odd)
    assert shown["delivery_mode"] == 2
    assert shown["headers"] == {
        "a": 1,
        UNREADABLE: "at byte 14 is a value of unknown type '?', so its end is not known",
    }
    assert describe(odd[:-1]) == {"headers": shown["headers"], UNREADABLE: "cut off at byte 15"}


def test_depth_is_bounded() -> None:
    nest = b""
    for _ in range(20_000):
        nest = b"\0F" + sized(nest)
    text = json.dumps(describe(b"\x20\0" + sized(nest)))
    assert "nested tables" in text
    assert text.count("{") == DEPTH_MAX + 1


@given(PROPS.map(Props.encode))
def test_valid_properties_are_shown_whole_and_as_json(raw: bytes) -> None:
    shown = describe(raw)
    assert UNREADABLE not in shown
    json.dumps(shown, allow_nan=False)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"\x20\0" + sized(tail)))
def test_any_bytes_are_shown(raw: bytes) -> None:
    json.dumps(describe(raw), allow_nan=False).encode()


@given(PROPS.map(Props.encode), st.data())
def test_valid_bytes_cut_or_changed_are_shown(raw: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=3)))
    changed = b"?".join(raw[start:end] for start, end in pairwise([0, *cuts, len(raw)]))
    json.dumps(describe(changed), allow_nan=False)
    json.dumps(describe(changed[: cuts[0] if cuts else 1]), allow_nan=False)


HEADER_VALUES: st.SearchStrategy[HeaderValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
)


@given(st.dictionaries(st.text(max_size=60), HEADER_VALUES, max_size=6))
def test_built_headers_read_back_with_their_types(headers: dict[str, HeaderValue]) -> None:
    found = read(build(headers), frozenset(name.encode() for name in headers)).headers
    assert found == headers
    assert {name: type(value) for name, value in found.items()} == {n: type(value) for n, value in headers.items()}


@pytest.mark.parametrize(
    ("value", "tag"), [(2**31 - 1, "I"), (2**31, "l"), (-(2**31), "I"), (-(2**31) - 1, "l"), (2**63 - 1, "l")]
)
def test_an_integer_is_an_int32_while_it_fits(value: int, tag: str) -> None:
    props = build({"n": value})
    assert header_tag(props, b"n") == ord(tag)
    assert read(props, frozenset({b"n"})).headers == {"n": value}


def test_properties_without_values_are_only_persistent() -> None:
    assert build() == b"\x10\0\2"
    assert build(delivery_mode=None) == b"\0\0"
    assert build({}, delivery_mode=None) == b"\x20\0\0\0\0\0"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, Unreadable("a table")])
def test_a_header_that_the_broker_cannot_carry_is_refused(value: HeaderValue) -> None:
    with pytest.raises(ValueError, match="header"):
        build({"n": value})


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="message_id has 256 bytes"):
        build(message_id="ü" * 128)
    with pytest.raises(ValueError, match="priority cannot be 256"):
        build(priority=256)
    with pytest.raises(ValueError, match="timestamp cannot be -1"):
        build(timestamp=-1)
    with pytest.raises(ValueError, match="255 bytes"):
        build({"n" * 256: 1})


def test_nested_values_are_bounded_and_what_stands_behind_them_is_read() -> None:
    nested = sized(b"\1aV" * (NESTED_MAX + 1))
    headers: list[Entry] = [(b"big", "F", nested), (b"list", "A", sized(b"V")), (b"plain", "S", sized(b"text"))]
    shown: Any = describe(Props(headers).encode())["headers"]
    why = f"more than {NESTED_MAX} nested values"
    assert len(shown["big"]) == NESTED_MAX + 1
    assert shown["big"][UNREADABLE] == why
    assert shown["list"] == [f"{UNREADABLE} {why}"]
    assert shown["plain"] == "text"
