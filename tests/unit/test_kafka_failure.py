"""What postdate reads of a failed record, and what a returned one carries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.kafka.failure import Returns, believed, read_failure
from bridge.core.message import Failure
from bridge.delay.seal import Seal

SEAL = Seal(lambda: b"secret", "orders")
SPRING = [
    (b"kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerExecutionFailedException"),
    (b"kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
    (b"kafka_dlt-exception-message", b"no money"),
]
CONNECT = [
    (b"__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    (b"__connect.errors.exception.message", b"bad schema"),
]


def test_a_record_without_our_headers_has_failed_for_the_first_time() -> None:
    assert read_failure([(b"own", b"1")]) == Failure(1, "", None)


def test_the_number_goes_on_and_the_first_failure_stays() -> None:
    headers = [(b"x-retry-attempt", b"3"), (b"x-retry-first-failed", b"1700000000000")]
    assert read_failure(headers) == Failure(4, "", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (SPRING, "java.lang.IllegalStateException: no money"),
        (CONNECT, "org.apache.kafka.connect.errors.DataException: bad schema"),
        ([(b"kafka_dlt-exception-message", b"no money")], "no money"),
        ([(b"kafka_dlt-exception-message", b"\xff" * 300)], "\N{REPLACEMENT CHARACTER}" * 85),
    ],
)
def test_the_reason_is_the_exception_in_the_handlers_words(headers: list[tuple[bytes, bytes]], reason: str) -> None:
    assert read_failure(headers).reason == reason


@pytest.mark.parametrize("text", [b"", b"-1", b"1.5", b"soon", b"9999999", None, "٣".encode()])
def test_an_unreadable_number_counts_as_the_first_failure(text: bytes | None) -> None:
    assert read_failure([(b"x-retry-attempt", text), (b"x-retry-first-failed", b"5")]) == Failure(1, "", None)


@given(st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=40))))
def test_any_headers_can_be_read(headers: list[tuple[bytes, bytes | None]]) -> None:
    assert read_failure(headers).attempt >= 1


@given(st.integers(1, 999_998), st.text(max_size=60), st.integers(0, 10**14))
def test_what_a_returned_record_carries_is_read_back(attempt: int, reason: str, first_ms: int) -> None:
    headers = [(name.encode(), value) for name, value in Returns(3).added(Failure(attempt, reason), first_ms, b"0q42")]
    assert read_failure(headers) == Failure(attempt + 1, "", first_ms, b"0q42")


def test_a_returned_record_loses_what_handlers_added_and_one_that_leaves_keeps_it() -> None:
    returns = Returns(2, "given.up")
    for name, _ in (*SPRING, *CONNECT):
        assert returns.drops(name, Failure(2))
        assert not returns.drops(name, Failure(3))
    assert returns.drops(b"x-retry-attempt", Failure(3))
    assert not returns.drops(b"own", Failure(1))
    assert [returns.drops(b"x-delay-cancel", Failure(attempt)) for attempt in (1, 2, 3)] == [False, False, True]


def returned(attempt: int, first_ms: int, seal: Seal = SEAL) -> list[tuple[bytes, bytes | None]]:
    added = Returns(3, seal=seal).added(Failure(attempt, "", first_ms), 0, b"0q42")
    return [(b"own", b"1"), *((name.encode(), value) for name, value in added)]


def test_a_state_that_postdate_wrote_is_believed_as_it_came() -> None:
    headers = returned(2, 77)
    assert believed(headers, SEAL) == (Failure(3, "", 77, b"0q42"), headers)


@pytest.mark.parametrize(
    "headers",
    [
        returned(2, 77)[:-1],
        [*returned(2, 77), (b"x-retry-attempt", b"99")],
        [*returned(2, 77), (b"x-retry-first-failed", b"253402300799000")],
        [*returned(2, 77), (b"x-retry-signature", None)],
        [*returned(2, 77), (b"x-retry-id", b"another")],
        returned(2, 77, Seal(lambda: b"secret", "bills")),
        returned(2, 77, Seal(lambda: b"another", "orders")),
        [(b"own", b"1"), (b"x-retry-attempt", b"99"), (b"x-retry-signature", b"")],
        [(b"own", b"1"), (b"x-retry-reason", b"forged")],
    ],
)
def test_a_state_that_postdate_did_not_write_is_a_first_failure_and_dropped(
    headers: list[tuple[bytes, bytes | None]],
) -> None:
    assert believed(headers, SEAL) == (Failure(1), [(b"own", b"1")])


@given(st.lists(st.tuples(st.sampled_from([b"x-retry-attempt", b"x-retry-signature", b"a"]), st.none() | st.binary())))
def test_no_headers_forge_a_state(headers: list[tuple[bytes, bytes | None]]) -> None:
    assert believed(headers, SEAL)[0].attempt == 1
