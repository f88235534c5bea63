"""The ladder: any number of whole seconds as a sum of powers of two, each of which is one queue. Pure.

A message goes from the highest step of its wait to the lowest. Every step waits 2**n seconds, so that 28 of them make
up every wait to 8.5 years, and none of them needs to know of the others.
"""

from __future__ import annotations

STEPS = 28
#: The longest wait, in whole seconds: 8.5 years.
LONGEST_S = 2**STEPS - 1


def whole_seconds(wait_ms: int) -> int:
    """A wait in milliseconds, above 0, rounded up to the whole second: never early, late by less than a second."""
    return -(-wait_ms // 1000)


def steps(wait_s: int) -> tuple[int, ...]:
    """The steps of a wait of 1 to ``LONGEST_S`` whole seconds, the longest first. Raises ValueError for another."""
    if not 1 <= wait_s <= LONGEST_S:
        raise ValueError(f"a ladder of {STEPS} steps waits from 1 to {LONGEST_S} s, and not {wait_s} s")
    return tuple(step for step in reversed(range(STEPS)) if wait_s >> step & 1)


def step_ms(step: int) -> int:
    """How long one step waits, in milliseconds."""
    return 1000 << step
