"""A real store does what the memory store does, whatever the order of the moves."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.store_machine import StoreMachine


def run(url: str, key_prefix: str, examples: int, steps: int) -> None:
    prefixes = (f"{key_prefix}{number}" for number in count())
    machine = type("Machine", (StoreMachine,), {"url": url, "prefixes": prefixes})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=steps))


@pytest.mark.redis
def test_redis_and_memory_never_differ(redis_url: str, key_prefix: str) -> None:
    run(redis_url, key_prefix, examples=60, steps=50)


@pytest.mark.redis
@pytest.mark.long
@pytest.mark.timeout(900)
def test_redis_and_memory_never_differ_in_long_runs(redis_url: str, key_prefix: str) -> None:
    run(redis_url, key_prefix, examples=600, steps=120)
