"""The ladder: every wait in whole seconds as a sum of powers of two, with one queue for each power. Pure.

A message goes from the highest step of its wait to the lowest. Step n waits 2**n seconds, so 28 steps make up every
wait up to 8.5 years. No step has to know of the others.
"""

from __future__ import annotations

STEPS = 28
#: The longest wait, in whole seconds: 8.5 years.
LONGEST_S = 2**STEPS - 1


def whole_seconds(wait_ms: int) -> int:
    """Round a wait in milliseconds, above 0, up to whole seconds: never early, late by less than a second."""
    return -(-wait_ms // 1000)


def steps(wait_s: int) -> tuple[int, ...]:
    """Return the steps of a wait, the longest first. Raises ValueError for a wait outside 1 to ``LONGEST_S``."""
    if not 1 <= wait_s <= LONGEST_S:
        raise ValueError(f"a ladder of {STEPS} steps waits from 1 to {LONGEST_S} s, and not {wait_s} s")
    return tuple(step for step in reversed(range(STEPS)) if wait_s >> step & 1)


def step_ms(step: int) -> int:
    """Return the wait of one step in milliseconds."""
    return 1000 << step
