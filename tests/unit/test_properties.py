"""Reading and editing raw basic properties, compared with a model that knows every byte."""

import struct
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.raw.fields import UnreadableTable, long_entry, text_entry
from adapters.rabbitmq.raw.properties import GIVEN_TWICE, dropped, edit, header_field, read
from bridge.core.message import Unreadable
from tests.unit.raw_properties import (
    ENTRIES,
    NAMES,
    ORDER,
    PROPS,
    Entry,
    Props,
    encode_entry,
    every_property,
    short,
    sized,
)

DELAY = frozenset({b"x-delay"})
NOTHING: frozenset[bytes] = frozenset()
AUDIT = text_entry(b"x-delay-id", b"01JD") + long_entry(b"x-delay-due", 1_790_000_000_000)
X_DELAY: Entry = (b"x-delay", "I", struct.pack(">i", 5000))
TENANT: Entry = (b"tenant", "S", sized(b"acme"))


# Reading


def test_only_the_wanted_headers_are_read_and_names_compare_exactly() -> None:
    props = Props([X_DELAY, (b"X-DELAY", "I", b"\0\0\0\1"), TENANT]).encode()
    assert read(props, DELAY).headers == {"x-delay": 5000}


def test_a_wanted_header_that_comes_twice_is_given_twice() -> None:
    assert read(Props([X_DELAY, TENANT, X_DELAY]).encode(), DELAY).headers == {"x-delay": GIVEN_TWICE}
    assert read(Props([X_DELAY] * 3).encode(), DELAY).headers == {"x-delay": Unreadable("given twice")}


def test_an_unwanted_header_may_come_twice() -> None:
    assert read(Props([TENANT, X_DELAY, TENANT]).encode(), DELAY).headers == {"x-delay": 5000}


@pytest.mark.parametrize("message_id", [None, b"", b"m-1", b"\xff" * 255])
def test_an_absent_message_id_differs_from_an_empty_one(message_id: bytes | None) -> None:
    props = every_property([X_DELAY])
    props.others.pop("message_id")
    if message_id is not None:
        props.others["message_id"] = short(message_id)
    assert read(props.encode(), NOTHING).message_id == message_id


@pytest.mark.parametrize("correlation_id", [None, b"", b"task-1", b"\xff" * 255])
def test_the_correlation_id_is_the_message_id_where_a_route_says_so(correlation_id: bytes | None) -> None:
    props = every_property([X_DELAY])
    props.others["message_id"] = short(b"m-1")
    props.others.pop("correlation_id")
    if correlation_id is not None:
        props.others["correlation_id"] = short(correlation_id)
    assert read(props.encode(), NOTHING, correlated=True).message_id == correlation_id
    assert read(props.encode(), NOTHING).message_id == b"m-1"


@pytest.mark.parametrize(
    ("fields", "moment"),
    [
        ([("l", struct.pack(">q", 1_790_000_000_000))], 1_790_000_000_001),
        ([("l", struct.pack(">q", -1))], None),
        ([("t", b"\1")], None),
        ([("S", sized(b"1790000000000"))], None),
        ([("l", b"\0" * 8), ("l", b"\0" * 8)], None),
        ([], None),
    ],
)
def test_the_brokers_timestamp_is_one_integer_rounded_up_or_absent(
    fields: list[tuple[str, bytes]], moment: int | None
) -> None:
    props = Props([(b"timestamp_in_ms", *field) for field in fields]).encode()
    assert read(props, DELAY, True).timestamp_ms == moment
    assert read(props, DELAY).timestamp_ms is None


def test_the_brokers_timestamp_may_be_a_wanted_header_too() -> None:
    found = read(Props([(b"timestamp_in_ms", "B", b"\7")]).encode(), frozenset({b"timestamp_in_ms"}), True)
    assert (found.headers, found.timestamp_ms) == ({"timestamp_in_ms": 7}, 8)


def test_the_tag_of_a_header_is_that_of_the_first_of_its_name() -> None:
    field = header_field(Props([TENANT, X_DELAY, (b"x-delay", "V", b"")]).encode(), b"x-delay")
    assert field is not None
    assert field[1] == ord("I")
    assert header_field(Props([TENANT]).encode(), b"x-delay") is None
    assert header_field(Props().encode(), b"x-delay") is None


# Editing


@given(PROPS, NAMES.map(lambda name: b"\0never" + name[:200]))
def test_an_edit_without_changes_returns_the_same_object(props: Props, absent: bytes) -> None:
    props.headers = props.headers and [entry for entry in props.headers if entry[0] != absent]
    raw = props.encode()
    assert edit(raw, NOTHING, False, b"") is raw
    assert edit(raw, frozenset({absent}), False, b"") is raw


@given(PROPS, st.frozensets(NAMES, max_size=3), st.booleans(), st.lists(ENTRIES, max_size=2))
def test_an_edit_changes_what_was_asked_for_and_no_other_byte(
    props: Props, drop: frozenset[bytes], drop_user_id: bool, add: list[Entry]
) -> None:
    raw = props.encode()
    wanted = deepcopy(props)
    if wanted.headers is not None or add:
        wanted.headers = [entry for entry in wanted.headers or [] if entry[0] not in drop] + add
    if drop_user_id:
        wanted.others.pop("user_id", None)
    assert edit(raw, drop, drop_user_id, b"".join(map(encode_entry, add))) == wanted.encode()


@given(PROPS.filter(lambda props: bool(props.headers)), st.data())
def test_dropping_a_name_drops_all_its_entries(props: Props, data: st.DataObject) -> None:
    assert props.headers
    name = data.draw(st.sampled_from([entry[0] for entry in props.headers]))
    edited = edit(props.encode(), frozenset({name}), False, b"")
    props.headers = [entry for entry in props.headers if entry[0] != name]
    assert edited == props.encode()


def test_an_emptied_table_stays_and_an_absent_one_stays_absent() -> None:
    assert edit(Props([X_DELAY]).encode(), DELAY, False, b"") == Props([]).encode()
    assert edit(Props(None).encode(), DELAY, True, b"") == Props(None).encode()


def test_every_combination_of_the_fourteen_flags_is_read_and_edited() -> None:
    everything = every_property([X_DELAY, TENANT])
    names = [name for name in ORDER if name != "headers"]
    for chosen in range(2**14):
        others = {name: everything.others[name] for place, name in enumerate(names) if chosen >> place & 1}
        props = Props(everything.headers if chosen >> 13 else None, others)
        raw = props.encode()
        assert read(raw, DELAY)[:3] == (
            {"x-delay": 5000} if props.headers else {},
            b"message_id" if "message_id" in others else None,
            None,
        )
        kept = {name: value for name, value in others.items() if name != "user_id"}
        added = [(b"id", "V", b"")]
        assert edit(raw, DELAY, True, b"\2idV") == Props([TENANT, *added] if props.headers else added, kept).encode()


def test_a_hundred_kibibytes_of_headers_are_edited_exactly() -> None:
    headers: list[Entry] = [(b"h-%d" % n, "S", sized(b"v" * 90)) for n in range(1000)]
    mixed = [entry for header in headers for entry in (header, X_DELAY)]
    raw = Props(mixed).encode()
    assert len(raw) > 100 * 1024
    assert edit(raw, DELAY, True, AUDIT)[6:] == Props(headers).encode()[6:] + AUDIT


# Bytes that are no properties


def test_valid_properties_cut_anywhere_are_unreadable() -> None:
    raw = every_property([X_DELAY, TENANT, (b"n", "F", sized(b"\1aV"))]).encode()
    for end in range(len(raw)):
        for attempt in (lambda cut: read(cut, DELAY), lambda cut: edit(cut, DELAY, True, AUDIT)):
            with pytest.raises(UnreadableTable):
                attempt(raw[:end])


@pytest.mark.parametrize("raw", [b"\0\0\0", b"\x80\0\1AB", b"\0\1", b"\0\1\0\0", b"\0\2", b"\x20\0\0\0\0\5\0V"])
def test_bytes_after_the_last_property_and_unknown_flags_are_unreadable(raw: bytes) -> None:
    with pytest.raises(UnreadableTable):
        read(raw, DELAY)
    with pytest.raises(UnreadableTable):
        edit(raw, DELAY, True, b"")


def test_an_unknown_type_anywhere_makes_the_table_unreadable() -> None:
    raw = Props([X_DELAY, (b"odd", "?", b"\0\0")]).encode()
    with pytest.raises(UnreadableTable, match="unknown type '\\?'"):
        read(raw, DELAY)
    with pytest.raises(UnreadableTable, match="unknown type '\\?'"):
        edit(raw, DELAY, False, b"")


def _refused(raw: bytes) -> bool:
    try:
        edit(raw, DELAY, True, AUDIT)
    except UnreadableTable:
        return True
    return False


def _broken(raw: bytes, where: int, byte: int) -> bytes:
    where %= len(raw)
    return raw[:where] + bytes((byte,)) + raw[where + 1 :]


@given(st.binary(max_size=200) | st.builds(_broken, PROPS.map(Props.encode), st.integers(0, 4000), st.integers(0, 255)))
def test_read_and_edit_refuse_the_same_bytes(raw: bytes) -> None:
    try:
        read(raw, DELAY, True)
    except UnreadableTable:
        assert _refused(raw)
    else:
        assert not _refused(raw)


# What is dropped


def test_by_default_the_brokers_own_headers_are_dropped_with_the_delay_headers() -> None:
    assert dropped([b"x-delay"]) == {
        b"x-delay", b"x-opt-delivery-time", b"CC", b"BCC", b"x-death", b"x-delivery-count", b"x-acquired-count",
        b"x-first-death-exchange", b"x-first-death-queue", b"x-first-death-reason",
        b"x-last-death-exchange", b"x-last-death-queue", b"x-last-death-reason",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keeps", "kept"),
    [
        ({"cc": True}, {b"CC"}),
        ({"bcc": True}, {b"BCC"}),
        ({"delivery_count": True}, {b"x-delivery-count", b"x-acquired-count"}),
    ],
)
def test_each_rule_keeps_its_own_headers_only(keeps: dict[str, bool], kept: set[bytes]) -> None:
    assert dropped([]) - dropped([], **keeps) == kept


def test_x_death_is_kept_with_its_companions() -> None:
    kept = dropped([]) - dropped([], x_death=True)
    assert len(kept) == 7
    assert all(b"death" in name for name in kept)


def test_a_delay_header_is_dropped_even_where_a_rule_would_keep_its_name() -> None:
    assert b"CC" in dropped([b"CC"], cc=True)
