"""When a message that was not taken is tried again: exponential back-off with a ceiling and an end."""

from __future__ import annotations

from dataclasses import dataclass

#: The most that ``spread`` takes off a wait.
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class RetryRules:
    """The first wait and the longest (ms), the growth from one to the next, and how many tries there are in all.

    Raises ValueError for rules that would not wait, shrink, or never try.
    """

    first_ms: int
    factor: float
    max_ms: int
    attempts: int

    def __post_init__(self) -> None:
        if self.first_ms < 1:
            raise ValueError("the first wait must be 1 ms or more")
        if not 1 <= self.factor < float("inf"):
            raise ValueError("the factor must be 1 or more")
        if self.max_ms < self.first_ms:
            raise ValueError("the longest wait must not be shorter than the first")
        if self.attempts < 1:
            raise ValueError("there must be at least 1 attempt")


def next_try_ms(tries: int, rules: RetryRules, spread: float) -> int | None:
    """The wait (ms, from now, at least 1) before the next try, or None when all attempts are used up: give up.

    ``tries`` counts the tries that have failed, from 1. ``spread``, 0 to 1, is the caller's random number, which
    keeps this pure: it takes up to a fifth off the wait, so that messages refused together do not come back together.
    Downward only, so that ``max_ms`` stays a promise; full jitter (0 to the wait) was rejected, because it
    retries half of the messages too soon for a broker that is just coming back.
    Raises ValueError if ``tries`` or ``spread`` are outside their ranges.
    """
    if tries < 1:
        raise ValueError("tries counts from 1")
    if not 0 <= spread <= 1:
        raise ValueError("spread lies between 0 and 1")
    if tries >= rules.attempts:
        return None
    return max(1, int(_full_wait(tries, rules) * (1 - JITTER * spread)))


def _full_wait(tries: int, rules: RetryRules) -> float:
    try:
        return min(rules.first_ms * float(rules.factor) ** (tries - 1), rules.max_ms)
    except OverflowError:  # a float power beyond 1e308 raises instead of becoming infinite
        return rules.max_ms
