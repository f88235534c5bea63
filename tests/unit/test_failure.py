"""What is read of a failure, from the headers that RabbitMQ 3.10 and 4.3 wrote, and from any others."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.failure import RETRY_HEADERS, FailingQueue, Rejected, read_rejected, retry_entries
from adapters.rabbitmq.raw.properties import UnreadableTable, edit, read
from bridge.core.message import Failure
from tests.unit.raw_properties import HEADERS, Entry, Props, sized

ORDERS = FailingQueue(b"orders.work", b"postdate.orders.back")
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


def named(one: dict[str, Any]) -> str:
    return f"{one['version']}-{one['queue_type']}-{one['case']}"


@pytest.mark.parametrize("one", CAPTURED, ids=named)
def test_each_way_to_fail_is_read_alike_on_both_brokers_and_queue_types(one: dict[str, Any]) -> None:
    failure, expiration = EXPECTED[one["case"]]
    found = read_rejected(bytes.fromhex(one["properties"]), ORDERS)
    assert found == Rejected(failure, b"order.new", expiration)


def test_every_case_was_captured_on_both_brokers() -> None:
    assert {one["version"][:2] for one in CAPTURED} == {"3.", "4."}
    assert {one["case"] for one in CAPTURED} == EXPECTED.keys()


def test_a_header_that_another_route_wrote_does_not_count() -> None:
    returned = next(one for one in CAPTURED if one["case"] == "returned and rejected")
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
    written = edit(dead(), RETRY_HEADERS, False, retry_entries(Failure(2, "expired"), 1234))
    assert read(written, RETRY_HEADERS).headers == {
        "x-retry-attempt": 2,
        "x-retry-reason": "expired",
        "x-retry-first-failed": 1234,
    }
    assert read_rejected(written, ORDERS).failure == Failure(3, "rejected", 1234)


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
    retry_entries(found.failure, 0)
    assert found.failure.attempt >= 1
    assert found.routing_key is None or len(found.routing_key) <= 255


@given(st.integers(1, 10**6), st.integers(0, 10**13), st.text(max_size=40))
def test_each_return_counts_one_more_and_keeps_the_first_moment(number: int, first_ms: int, reason: str) -> None:
    given_back = Failure(number, reason, first_ms)
    written = edit(dead(), RETRY_HEADERS, False, retry_entries(given_back, 5))
    assert read_rejected(written, ORDERS).failure == Failure(number + 1, "rejected", first_ms)


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
