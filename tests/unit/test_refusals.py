"""Codes and texts of RabbitMQ 3.10 and 4.3, and the refusals made of them."""

from __future__ import annotations

import pytest

from adapters.rabbitmq import refusals
from bridge.core.message import Refusal, no_route

#: Code, text, the refusal's reason, whether it lasts, the exchange it accuses, the size it names.
CLOSES = [
    (404, "NOT_FOUND - no exchange 'orders' in vhost '/'", "missing_exchange", False, "orders", None),
    (404, "NOT_FOUND - no exchange 'a b.c' in vhost 'shop'", "missing_exchange", False, "a b.c", None),
    (
        403,
        "ACCESS_REFUSED - access to exchange 'orders' in vhost '/' refused for user 'postdate'",
        "forbidden",
        False,
        "orders",
        None,
    ),
    (
        403,
        "ACCESS_REFUSED - write access to exchange 'orders' in vhost '/' refused for user 'postdate'",
        "forbidden",
        False,
        "orders",
        None,
    ),
    (
        403,
        "ACCESS_REFUSED - write access to topic 'a.b' in exchange 'amq.topic' in vhost '/' refused for user 'postdate'",
        "forbidden",
        False,
        "amq.topic",
        None,
    ),
    (
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'inner' in vhost '/'",
        "forbidden",
        False,
        "inner",
        None,
    ),
    (
        406,
        "PRECONDITION_FAILED - message size 5000000 is larger than configured max size 1000000",
        "too_large",
        True,
        None,
        1_000_000,
    ),
    (
        406,
        "PRECONDITION_FAILED - message size 5000000 larger than max size 134217728",
        "too_large",
        True,
        None,
        134_217_728,
    ),
    (
        406,
        "PRECONDITION_FAILED - user_id property set to 'a' but authenticated user was 'b'",
        "rejected",
        True,
        None,
        None,
    ),
    (406, "PRECONDITION_FAILED - invalid expiration 'soon': ...", "rejected", True, None, None),
    (501, "FRAME_ERROR - cannot decode ...", "rejected", True, None, None),
    # A node that stops, or a process of the broker that has crashed: the next try may succeed.
    (541, "INTERNAL_ERROR", "rejected", False, None, None),
    (506, "RESOURCE_ERROR - ...", "rejected", False, None, None),
]


@pytest.mark.parametrize(("code", "text", "reason", "lasting", "exchange", "size"), CLOSES)
def test_the_text_of_a_close_gives_reason_exchange_and_size(
    code: int, text: str, reason: str, lasting: bool, exchange: str | None, size: int | None
) -> None:
    refusal = refusals.of_close(code, text)
    assert (refusal.reason.kind, refusal.lasting) == (reason, lasting)
    assert text in refusal.reason.sentence
    cause = refusals.cause_in(text)
    assert (cause and cause[0]) == exchange
    assert refusals.max_size_in(text) == size


def test_a_return_names_the_exchange_and_the_routing_key() -> None:
    refusal = refusals.unroutable("orders", b"eu.new", "312 NO_ROUTE")
    assert (refusal.reason.kind, refusal.lasting) == ("unroutable", False)
    assert "'orders'" in refusal.reason.sentence
    assert "'eu.new'" in refusal.reason.sentence
    assert "312 NO_ROUTE" in refusal.reason.sentence


def test_a_routing_key_that_is_not_utf_8_is_shown_escaped() -> None:
    assert "\\xff" in refusals.unroutable("orders", b"\xff", "312 NO_ROUTE").reason.sentence


@pytest.mark.parametrize("refusal", [refusals.too_large(5, 4), refusals.headers_too_large(4096)])
def test_a_message_that_is_too_large_is_not_retried(refusal: Refusal) -> None:
    assert refusal.reason.kind == "too_large"
    assert refusal.lasting


@pytest.mark.parametrize("refusal", [refusals.NACKED, no_route("orders")])
def test_a_full_queue_and_a_missing_route_are_retried(refusal: Refusal) -> None:
    assert not refusal.lasting


def test_a_topic_permission_names_one_routing_key_of_the_exchange() -> None:
    text = "ACCESS_REFUSED - write access to topic 'eu.new' in exchange 'orders' in vhost '/' refused for user 'u'"
    assert refusals.cause_in(text) == ("orders", b"eu.new")
