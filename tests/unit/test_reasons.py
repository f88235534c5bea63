"""Reasons: the text that the store keeps, and the cause by which the log groups messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import HeaderError
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.trust import destination_refusal, is_cancellation, no_such_queue
from bridge.pipeline.decide import SAME_KEY, not_unique


def test_the_text_is_the_kind_and_the_sentence_with_its_values() -> None:
    reason = Reason(ReasonKind.TOO_LARGE, "it has {size} bytes", {"size": 9})
    assert (str(reason), reason.sentence) == ("too_large: it has 9 bytes", "it has 9 bytes")


@given(st.text())
def test_a_value_never_changes_the_cause_nor_is_read_as_a_template(value: str) -> None:
    reason = Reason(ReasonKind.REJECTED, "{text}", {"text": value})
    assert str(reason) == f"rejected: {value}"
    assert reason.cause == (ReasonKind.REJECTED, "{text}")


def test_a_header_error_reads_as_its_sentence() -> None:
    assert str(HeaderError(Reason(ReasonKind.BAD_HEADER, "the delay {why}", {"why": "is odd"}))) == "the delay is odd"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (SAME_KEY, "same_key: a message with this key is parked already, and on_same_key is reject"),
        (
            not_unique(b"k{0}", 3).reason,
            "not_unique: 3 messages are parked under 'k{0}', so nothing was cancelled; give each its own x-delay-key",
        ),
        (no_such_queue(b"eu"), "not_allowed: the routing key 'eu' is not in the route's allow_to"),
        (destination_refusal("a", ()), "not_allowed: header x-delay-to says 'a', and the route's allow_to is empty"),
        (
            destination_refusal(b"\xff", ["b"]),
            "not_allowed: header x-delay-to says '\\xff', which is not in the route's allow_to",
        ),
    ],
)
def test_the_stored_texts_of_rejected_messages(reason: Reason, text: str) -> None:
    assert str(reason) == text


def test_only_a_cancellation_is_never_retried() -> None:
    assert is_cancellation(str(not_unique(b"k", 3).reason))
    assert not is_cancellation(str(no_such_queue(b"eu")))
