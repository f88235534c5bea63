"""What is read of a failure, from the headers that RabbitMQ 3.10 and 4.3 wrote, and from any others."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.failure import RETRY_HEADERS, FailingQueue, Rejected, read_rejected, retry_entries
from adapters.rabbitmq.raw.properties import UnreadableTable, edit, read
from bridge.core.message import Failure
from bridge.delay.seal import Seal
from tests.unit.raw_properties import HEADERS, Entry, Props, sized

ORDERS = FailingQueue(b"orders.work", b"postdate.orders.back")
SEAL = Seal(lambda: b"secret", "orders")
#: As the intake reads: nothing without a signature.
SEALED = replace(ORDERS, seal=SEAL)
#: The properties of messages that each broker dead-lettered to postdate, as they came.
CAPTURED = [json.loads(line) for line in Path(__file__).with_name("x_death.jsonl").read_text().splitlines()]
#: What a message carried that postdate had returned twice.
TWICE = 1_700_000_000_000

EXPECTED = {
    "rejected": (Failure(1, "rejected"), b""),
    "rejected with expiration": (Failure(1, "rejected"), b"60000"),
    "returned and rejected": (Failure(3, "rejected", TWICE), b"60000"),
    "forged and rejected": (Failure(1, "rejected"), b""),
    "expired by queue": (Failure(1, "expired"), b""),
    "expired by message": (Failure(1, "expired"), b"100"),
    "returned and expired": (Failure(3, "expired", TWICE), b"100"),
    "delivery limit": (Failure(1, "delivery_limit"), b""),
    "maxlen": (Failure(1, "maxlen"), b""),
    "dead-lettered before": (Failure(1, "rejected"), b""),
    "returned, republished and rejected": (Failure(1, "rejected"), b""),
    "through a wait queue": (Failure(3, "rejected", TWICE), b"60000"),
}


def attempt(number: int) -> Entry:
    return (b"x-retry-attempt", "l", struct.pack(">q", number))


def dead(
    queue: bytes = b"orders.work",
    exchange: bytes = b"postdate.orders.back",
    reason: bytes = b"rejected",
    key: bytes = b"order.new",
    deaths: list[Entry] | None = None,
    more: list[Entry] | None = None,
) -> bytes:
    """The properties of a message that a queue dead-lettered."""
    texts = [(b"queue", queue), (b"exchange", exchange), (b"reason", reason)]
    table: list[Entry] = [(name, "S", sized(text)) for name, text in texts]
    table += [(b"routing-keys", "A", sized(b"S" + sized(key))), *(deaths or [])]
    death = b"".join(bytes((len(name),)) + name + tag.encode() + value for name, tag, value in table)
    return Props([(b"x-death", "A", sized(b"F" + sized(death))), *(more or [])]).encode()


def returned(attempt: int, first_ms: int, seal: Seal | None = SEAL) -> bytes:
    return edit(dead(), RETRY_HEADERS, False, retry_entries(Failure(attempt, "rejected", first_ms), 0, b"0q42", seal))


def named(case: dict[str, Any]) -> str:
    return f"{case['version']}-{case['queue_type']}-{case['case']}"


@pytest.mark.parametrize("case", CAPTURED, ids=named)
def test_each_way_to_fail_is_read_alike_on_both_brokers_and_queue_types(case: dict[str, Any]) -> None:
    failure, expiration = EXPECTED[case["case"]]
    found = read_rejected(bytes.fromhex(case["properties"]), ORDERS)
    assert found == Rejected(failure, b"order.new", expiration)


def test_every_case_was_captured_on_both_brokers() -> None:
    assert {case["version"][:2] for case in CAPTURED} == {"3.", "4."}
    assert {case["case"] for case in CAPTURED} == EXPECTED.keys()


def test_a_header_that_another_route_wrote_does_not_count() -> None:
    returned = next(case for case in CAPTURED if case["case"] == "returned and rejected")
    bills = FailingQueue(b"orders.work", b"postdate.bills.back")
    assert read_rejected(bytes.fromhex(returned["properties"]), bills).failure == Failure(1, "rejected")


def test_a_dead_letter_of_another_queue_is_a_first_failure_with_its_reason_and_routing_key() -> None:
    props = dead(b"elsewhere", exchange=b"postdate.orders.back", more=[attempt(4)])
    assert read_rejected(props, ORDERS) == Rejected(Failure(1, "rejected"), b"order.new", b"")


def test_a_message_without_headers_is_a_first_failure_without_a_reason() -> None:
    assert read_rejected(Props().encode(), ORDERS) == Rejected(Failure(1), None, b"")


@pytest.mark.parametrize(
    "header",
    [
        (b"x-retry-attempt", "S", sized(b"2")),
        (b"x-retry-attempt", "l", struct.pack(">q", 0)),
        (b"x-retry-attempt", "l", struct.pack(">q", -1)),
        (b"x-retry-attempt", "l", struct.pack(">q", 2**62)),
        (b"x-retry-attempt", "t", b"\1"),
        (b"x-retry-attempt", "V", b""),
    ],
)
def test_an_attempt_that_postdate_did_not_write_counts_as_none(header: Entry) -> None:
    assert read_rejected(dead(more=[header]), ORDERS).failure == Failure(1, "rejected")


@pytest.mark.parametrize("moment", [-1, 2**62])
def test_an_impossible_first_failure_is_ignored(moment: int) -> None:
    first = (b"x-retry-first-failed", "l", struct.pack(">q", moment))
    assert read_rejected(dead(more=[attempt(2), first]), ORDERS).failure == Failure(3, "rejected", None)


def test_the_reason_has_at_most_255_bytes() -> None:
    assert read_rejected(dead(reason="é".encode() * 200), ORDERS).failure.reason == "é" * 127


def test_an_expiration_that_rabbitmq_would_refuse_is_not_restored() -> None:
    props = dead(deaths=[(b"original-expiration", "S", sized(b"soon"))])
    assert read_rejected(props, ORDERS).expiration == b""


def test_a_routing_key_that_amqp_cannot_carry_is_not_restored() -> None:
    assert read_rejected(dead(key=b"k" * 256), ORDERS).routing_key is None


def test_what_is_written_is_read_again_as_the_next_failure() -> None:
    written = edit(dead(), RETRY_HEADERS, False, retry_entries(Failure(2, "expired"), 1234, b"0q42"))
    assert read(written, RETRY_HEADERS).headers == {
        "x-retry-attempt": 2,
        "x-retry-reason": "expired",
        "x-retry-first-failed": 1234,
        "x-retry-id": "0q42",
    }
    assert read_rejected(written, ORDERS).failure == Failure(3, "rejected", 1234, b"0q42")


def test_the_intake_believes_a_state_with_postdates_signature() -> None:
    found = read_rejected(returned(2, 1234), SEALED)
    assert (found.failure, found.forged) == (Failure(3, "rejected", 1234, b"0q42"), False)


@pytest.mark.parametrize(
    "props",
    [
        returned(2, 1234, None),
        returned(2, 1234, Seal(lambda: b"secret", "bills")),
        returned(2, 1234, Seal(lambda: b"another", "orders")),
        edit(returned(2, 1234), frozenset({b"x-retry-first-failed"}), False, b""),
        edit(returned(2, 1234), frozenset({b"x-retry-id"}), False, b""),
        dead(more=[(b"x-retry-attempt", "l", struct.pack(">q", 99))]),
        dead(more=[(b"x-retry-signature", "S", sized(b"0" * 32))]),
        dead(more=[(b"x-retry-signature", "l", struct.pack(">q", 1))]),
        dead(more=[(b"x-retry-reason", "S", sized(b"rejected"))]),
    ],
)
def test_the_intake_takes_any_other_state_for_forged_and_the_failure_for_the_first(props: bytes) -> None:
    found = read_rejected(props, SEALED)
    assert (found.failure, found.forged) == (Failure(1, "rejected"), True)


def test_a_message_without_retry_headers_is_not_forged() -> None:
    assert not read_rejected(dead(), SEALED).forged


def test_a_table_of_deaths_that_a_producer_filled_costs_as_little_as_rabbitmqs_own() -> None:
    entry = b"\1aS" + sized(b"")
    wide = b"F" + sized(entry * 20_000)
    for deaths in (wide, (b"F" + sized(entry)) * 20_000):
        props = Props([(b"x-death", "A", sized(deaths))]).encode()
        assert len(props) > 120_000
        began = time.thread_time()
        for _ in range(20):
            read_rejected(props, SEALED, 100)
        assert (time.thread_time() - began) / 20 < 0.005


@given(HEADERS)
def test_no_header_breaks_the_reading(headers: list[Entry]) -> None:
    props = Props(headers).encode()
    try:
        read(props, frozenset({b"x-death"}))
    except UnreadableTable:
        return
    try:
        found = read_rejected(props, ORDERS)
    except UnreadableTable:
        return
    retry_entries(found.failure, 0, b"0q42")
    assert found.failure.attempt >= 1
    assert found.routing_key is None or len(found.routing_key) <= 255


@given(st.integers(1, 10**6), st.integers(0, 10**13), st.text(max_size=40), st.binary(max_size=64))
def test_each_return_counts_one_more_and_keeps_the_first_moment_and_the_id(
    number: int, first_ms: int, reason: str, own_id: bytes
) -> None:
    given_back = Failure(number, reason, first_ms, own_id)
    written = edit(dead(), RETRY_HEADERS, False, retry_entries(given_back, 5, b"0q42"))
    assert read_rejected(written, ORDERS).failure == Failure(number + 1, "rejected", first_ms, own_id or b"0q42")
