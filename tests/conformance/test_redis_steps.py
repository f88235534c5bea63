"""What instances note of a step of Redis's clock: the clock stays, and an instance takes it for another."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from adapters.redis.guard import read_agreement
from adapters.redis.steps import step_in
from adapters.redis.store import RedisStore
from bridge.desk.clock_step import ClockStep
from tests.conformance.redis_rig import RedisRig
from tests.conformance.rig import HOUR_MS, claim, park

pytestmark = pytest.mark.redis


@pytest.fixture
async def rig(redis_url: str, key_prefix: str) -> AsyncIterator[RedisRig]:
    rig = RedisRig(redis_url, key_prefix)
    yield rig
    await rig.close()


async def noted(rig: RedisRig, store: RedisStore, key_prefix: str, by_ms: int) -> ClockStep | None:
    """What is noted after an instance has seen this step."""
    store._guard._steps._clock.observe = lambda *_: by_ms * 1000  # type: ignore[method-assign]
    await store.look()
    return step_in(await read_agreement(rig.client, f"{{{key_prefix}}}:store"), await rig.now_ms())


async def test_a_step_forward_counts_what_became_due_by_it_wherever_that_is_now(rig: RedisRig, key_prefix: str) -> None:
    store = await rig.open()
    due_ms = await rig.now_ms() + 500
    await park(store, *await rig.overdue(2), *(rig.message(due_ms) for _ in range(4)), rig.message(due_ms + HOUR_MS))
    await store.look()
    assert due_ms > await rig.now_ms(), "the test machine is too slow"
    await rig.after_ms(600)
    await store.settle((await claim(store, limit=3)).claims)
    await claim(store, limit=2)
    step = await noted(rig, store, key_prefix, HOUR_MS)
    assert step is not None
    assert (step.by_ms, step.messages) == (HOUR_MS, 4)


async def test_two_instances_note_one_step_and_another_step_within_a_minute_takes_its_place(
    rig: RedisRig, key_prefix: str
) -> None:
    first, second = await rig.open("a"), await rig.open("b")
    step = await noted(rig, first, key_prefix, 30_000)
    assert step is not None
    assert await noted(rig, second, key_prefix, 30_004) == step
    assert await noted(rig, second, key_prefix, 900) == step, "a small step is in the log only"
    later = await noted(rig, first, key_prefix, 40_000)
    assert later is not None
    assert later.by_ms == 40_000
