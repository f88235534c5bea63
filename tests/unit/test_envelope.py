"""The envelope: what goes in comes out, byte for byte, and what cannot be read is said to be so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.parking.envelope import (
    VERSION,
    DamagedEnvelope,
    Envelope,
    NewerEnvelope,
    UnopenedEnvelope,
    found_key,
    index_field,
    index_fields,
    seal,
    unseal,
)

moments = st.integers(0, 2**64 - 1)
short = st.binary(max_size=255)
routes = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=64)


@given(moments, moments, routes, short, short, st.binary())
def test_what_is_sealed_is_unsealed(
    due_ms: int, arrived_ms: int, route: str, key: bytes, first: bytes, payload: bytes
) -> None:
    data = seal(due_ms, arrived_ms, route.encode(), key, first, payload)
    assert unseal(data) == Envelope(due_ms, 0, arrived_ms, route, key, first, payload)


def test_the_head_stands_where_the_scripts_look_for_it() -> None:
    data = seal(0x0102030405060708, 0x1112131415161718, b"r", b"key", b"", b"payload")
    assert data[0] == VERSION == 1
    assert data[1:9] == bytes(range(1, 9))
    assert data[9:11] == b"\0\0"
    assert data[11:19] == bytes(range(0x11, 0x19))
    assert data[19:] == b"\1r\3key\0payload"


@pytest.mark.parametrize("version", [2, 16])
def test_a_newer_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(NewerEnvelope, match=f"envelope version {version}, and this postdate reads 1"):
        unseal(bytes((version,)) + seal(1, 1, b"r", b"", b"", b"x")[1:])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\2",
        b"\2" + bytes(8),
        *(bytes((version,)) + seal(1, 1, b"r", b"", b"", b"x")[1:] for version in (0, 99, 255)),
    ],
)
def test_what_no_version_can_have_written_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedEnvelope, match=r"^damaged: "):
        unseal(data)


@given(st.integers(1, 60))
def test_an_envelope_that_was_cut_off_is_damaged_or_has_a_shorter_payload(kept: int) -> None:
    data = seal(5, 6, b"orders", b"key-of-it", b"0123456789012345678v", b"payload")
    head = len(data) - len(b"payload")
    if kept < head:
        with pytest.raises(DamagedEnvelope, match="damaged"):
            unseal(data[:kept])
    else:
        assert unseal(data[:kept]).payload == b"payload"[: kept - head]


@given(st.binary(max_size=80))
def test_any_bytes_are_an_envelope_or_refused(data: bytes) -> None:
    try:
        unseal(b"\1" + data)
    except UnopenedEnvelope:
        return


def test_a_key_of_one_route_is_none_of_another() -> None:
    fields = {index_field(route, key) for route in (b"a", b"ab") for key in (b"k", b"bk", b"")}
    assert len(fields) == 6


@given(short, short)
def test_a_key_finds_its_own_messages_and_those_whose_message_id_it_is_and_no_others(key: bytes, other: bytes) -> None:
    parked = {found_key(other)} if other[:1] == b"\0" else {other, found_key(other)}
    hits = {index_field(b"r", parked_key) for parked_key in parked if parked_key} & set(index_fields(b"r", key))
    assert (hits != set()) == (key == other and index_fields(b"r", key) != ())
