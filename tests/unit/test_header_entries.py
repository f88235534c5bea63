"""The limit on header entries (``limits.header_entries``): above it a message is a dead letter, and costs next to
nothing on its way in and out."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from hypothesis import given

from adapters.kafka.intake import KafkaIntake, Partition, StartOffset
from adapters.kafka.raw import record as kafka_record
from adapters.kafka.raw.record import Header
from adapters.kafka.topology.topic_ids import TopicId
from adapters.rabbitmq.levels.packing import REASON_HEADER, RabbitPacking, RoutePacking
from adapters.rabbitmq.levels.waits import plan_waits
from adapters.rabbitmq.outgoing import Encoder, Out
from adapters.rabbitmq.raw.fields import TooManyEntries, entries, walk
from adapters.rabbitmq.raw.payload import pack, unpack
from adapters.rabbitmq.raw.properties import edit, ordered, read
from bridge.core.message import Claim, Delivery, Refusal
from bridge.core.reasons import bad_headers
from bridge.delay.levels import Bury
from bridge.delay.naming import Naming
from bridge.pipeline.decide import Rejection, decide
from bridge.settings import load
from tests.unit.house import ORDERS
from tests.unit.raw_properties import PROPS, Entry, Props, encode_entry, sized

MOST = 10
DELAY: Entry = (b"x-delay", "I", struct.pack(">i", 1000))
WANTED = frozenset({b"x-delay"})
VOID: Entry = (b"", "V", b"")
#: A table in a table that holds far more entries than the limit.
NESTED: Entry = (b"nested", "F", sized(encode_entry(VOID) * 1000))
LIST: Entry = (b"list", "A", sized(b"V" * 1000))
CUT_OFF = b"\xff"


def props(*headers: Entry, tail: bytes = b"") -> bytes:
    """Properties whose table has these headers; ``tail`` are bytes behind them that are no entry."""
    raw = Props(list(headers)).encode()
    return raw[:2] + sized(raw[6:] + tail)


def many(number: int, tail: bytes = b"") -> bytes:
    return props(DELAY, *[VOID] * (number - 1), tail=tail)


def test_as_many_headers_as_the_limit_are_read_and_edited() -> None:
    assert read(many(MOST), WANTED, entries_max=MOST).headers == {"x-delay": 1000}
    assert edit(many(MOST), WANTED, False, b"", MOST) == props(*[VOID] * (MOST - 1))


def test_what_nested_tables_and_arrays_hold_is_not_counted() -> None:
    assert read(props(DELAY, NESTED, LIST), WANTED, entries_max=MOST).headers == {"x-delay": 1000}


@pytest.mark.parametrize("number", [MOST + 1, 65_000])
def test_one_header_above_the_limit_is_refused_and_the_rest_is_not_read(number: int) -> None:
    raw = many(number, tail=CUT_OFF)
    for attempt in (
        lambda: read(raw, WANTED, entries_max=MOST),
        lambda: edit(raw, WANTED, False, b"", MOST),
    ):
        with pytest.raises(TooManyEntries, match=r"it has more than 10 header entries \(limits.header_entries\)"):
            attempt()


@given(PROPS)
def test_entries_are_what_the_walker_yields(some: Props) -> None:
    raw = some.encode()
    table = b"".join(map(encode_entry, some.headers or ()))
    assert entries(table, 0, len(table)) == list(walk(table, 0, len(table)))
    found = read(raw, WANTED)
    assert ordered(raw, WANTED, found.fields) == ordered(raw, WANTED)


def test_a_message_with_too_many_headers_becomes_a_dead_letter_even_where_bad_headers_are_delivered() -> None:
    fault = "it has more than 10 header entries (limits.header_entries)"
    for on_bad in ("dead", "deliver"):
        rules = ORDERS.__class__(**{**ORDERS.__dict__, "on_bad": on_bad})
        assert decide(Delivery(1, "orders", b"", b"", {}, 0, fault=fault), rules) == Rejection(bad_headers(fault))


def claim(payload: bytes) -> Claim:
    return Claim(b"i" * 20, 0, b"t" * 8, 1000, 0, 0, "orders", b"", payload, b"i" * 20, 0.0)


@pytest.mark.parametrize("plugin", [False, True])
def test_a_retried_dead_letter_is_refused_again_with_the_same_reason(plugin: bool) -> None:
    out = Out("orders", WANTED, drop_user_id=True, audit=True, plugin=plugin, entries_max=MOST)
    encoder = Encoder(1, 131072)
    refused = encoder.encode(claim(pack(b"key", many(MOST + 1, tail=CUT_OFF), b"body")), out)
    reason = "it has more than 10 header entries (limits.header_entries)"
    assert refused == Refusal(bad_headers(reason), lasting=True)
    assert not isinstance(encoder.encode(claim(pack(b"key", many(MOST), b"body")), out), Refusal)


@pytest.mark.parametrize("expiration", [None, b"60000"])
def test_a_dead_letter_of_a_route_without_a_store_has_the_reason_and_all_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expiration: bytes | None
) -> None:
    monkeypatch.chdir(tmp_path)
    route = {"intercept": "orders.delay", "deliver_to": "orders", "mode": "levels"}
    waits = plan_waits(load(None, {}, {"routes.orders": route}), "orders")
    packing = RoutePacking(waits, Out("orders", WANTED, True, True, False, entries_max=MOST))
    headers = [DELAY, *[VOID] * MOST]
    others = {} if expiration is None else {"expiration": bytes((len(expiration),)) + expiration}
    payload = pack(b"key", Props(headers, others).encode(), b"body")
    parcel = RabbitPacking({"orders": packing}, {}).parcel(
        Delivery(None, "orders", payload, b"key", {}, 0, fault="too many"), Bury(bad_headers("too many")), 0
    )
    reason: Entry = (REASON_HEADER, "S", sized(b"bad_header: too many"))
    aside: list[Entry] = [] if expiration is None else [(b"x-delay-expiration", "S", sized(expiration))]
    assert unpack(parcel.payload) == (b"key", props(*headers, reason, *aside), b"body")


# -- Kafka ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "fault"), [(MOST, ""), (MOST + 1, "it has more than 10 headers (limits.header_")])
def test_a_record_with_too_many_headers_has_a_fault_and_keeps_its_bytes(number: int, fault: str) -> None:
    intake = KafkaIntake("pay", Naming("pay.delay", "pay"), WANTED, headers_max=MOST)
    headers: list[Header] = [(b"x-delay", b"1000"), *[(b"", None)] * (number - 1)]
    seen = [(name.decode(), value) for name, value in headers]
    record = ConsumerRecord("pay.delay", 0, 7, 5, 0, b"k", b"v", None, 1, 1, seen)
    part = Partition(TopicPartition("pay.delay", 0), intake, TopicId("c", "t"), StartOffset(0))
    [fetched] = part.deliveries([record], 0)
    raw = part.raw(8, kafka_record.Record(0, 5, b"k", b"v", headers), 0)
    for delivery in (fetched, raw):
        assert delivery.fault.startswith(fault)
        assert bool(delivery.fault) is bool(fault)
        assert kafka_record.unpack(delivery.payload).headers == headers
        assert len(kafka_record.unpack(delivery.payload).headers) == number
