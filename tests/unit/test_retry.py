"""Back-off: it grows, it is bounded, it ends, and it is never a busy loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.pipeline.settle import JITTER, RetryRules, next_try_ms

RULES = RetryRules(first_ms=1000, factor=2, max_ms=300_000, attempts=20)
ANY_RULES = st.builds(
    lambda first, factor, more, attempts: RetryRules(first, factor, first + more, attempts),
    st.integers(1, 10**7),
    st.floats(1, 1e300),
    st.integers(0, 10**9),
    st.integers(1, 10**6),
)


@pytest.mark.parametrize(
    ("tries", "spread", "wait_ms"),
    [
        (1, 0, 1000),
        (2, 0, 2000),
        (3, 0, 4000),
        (9, 0, 256_000),
        (10, 0, 300_000),
        (19, 0, 300_000),
        (1, 1, 800),
        (1, 0.5, 900),
        (20, 0, None),
        (10**9, 0, None),
    ],
)
def test_the_wait_grows_to_the_ceiling_and_ends(tries: int, spread: float, wait_ms: int | None) -> None:
    assert next_try_ms(tries, RULES, spread) == wait_ms


def test_one_attempt_means_no_second_try() -> None:
    assert next_try_ms(1, RetryRules(1, 1, 1, 1), 0) is None


def test_the_shortest_wait_is_one_millisecond_even_with_jitter() -> None:
    assert next_try_ms(1, RetryRules(1, 1, 1, 2), 1) == 1


def test_a_power_too_large_for_a_float_is_the_ceiling() -> None:
    assert next_try_ms(10_000, RetryRules(1, 10, 5000, 10**6), 0) == 5000


@given(ANY_RULES, st.integers(1, 10**6), st.floats(0, 1))
def test_a_wait_lies_between_one_millisecond_and_the_ceiling(rules: RetryRules, tries: int, spread: float) -> None:
    wait_ms = next_try_ms(tries, rules, spread)
    assert (wait_ms is None) == (tries >= rules.attempts)
    if wait_ms is not None:
        assert max(1, int(rules.first_ms * (1 - JITTER))) <= wait_ms <= rules.max_ms


@given(ANY_RULES, st.integers(1, 1000), st.floats(0, 1))
def test_a_later_try_never_waits_shorter_at_the_same_spread(rules: RetryRules, tries: int, spread: float) -> None:
    now, later = next_try_ms(tries, rules, spread), next_try_ms(tries + 1, rules, spread)
    if now is not None and later is not None:
        assert now <= later
