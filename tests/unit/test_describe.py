"""Properties shown by ``postdate show``."""

import json
import math
import struct
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.raw.values import DEPTH_MAX, NESTED_MAX, UNREADABLE, describe
from tests.raw_amqp import persistent
from tests.unit.raw_properties import PROPS, Entry, Props, sized


def test_every_property_and_type_is_shown() -> None:
    props = persistent(
        {
            "n": -5,
            "big": 2**40,
            "yes": True,
            "nil": None,
            "text": "grün",
            "raw": b"\xff",
            "at": datetime.fromtimestamp(0, UTC),
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
            "n": -5, "big": 2**40, "yes": True, "nil": None, "text": "grün", "raw": "\\xff",
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
        (b"pi", "d", struct.pack(">d", 3.5)),
        (b"nan", "d", struct.pack(">d", math.nan)),
        (b"ms", "T", struct.pack(">q", 1_790_000_000_000)),
    ]
    assert describe(Props(headers).encode()) == {
        "headers": {
            "deaths": [{"a": "x"}, None, 7],
            "price": "1.50",
            "pi": 3.5,
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


def test_nested_values_are_bounded_and_what_stands_behind_them_is_read() -> None:
    nested = sized(b"\1aV" * (NESTED_MAX + 1))
    headers: list[Entry] = [(b"big", "F", nested), (b"list", "A", sized(b"V")), (b"plain", "S", sized(b"text"))]
    shown: Any = describe(Props(headers).encode())["headers"]
    why = f"more than {NESTED_MAX} nested values"
    assert len(shown["big"]) == NESTED_MAX + 1
    assert shown["big"][UNREADABLE] == why
    assert shown["list"] == [f"{UNREADABLE} {why}"]
    assert shown["plain"] == "text"
