"""When to look: at the next due moment, at a hint that it came nearer, and once a second whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adapters.memory import ManualClock
from bridge.pipeline.wake import IDLE_S, Throughput, Wake, departure_s, gather_ms, pace_s, sleep_s
from tests.unit.house import turns

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("until_due", "since_look_s", "pace", "seconds"),
    [
        ([], 5.0, 0.001, IDLE_S),
        ([3600.0], 5.0, 0.001, IDLE_S),
        ([0.25, 3600.0], 5.0, 0.001, 0.2501),
        ([-3.0], 5.0, 0.001, 0.0),
        ([-3.0], 0.0, 0.001, 0.001),
        ([-3.0], 0.0004, 0.001, 0.0006),
        ([0.5], 0.0, 0.001, 0.5001),
    ],
)
def test_how_long_to_sleep(until_due: list[float], since_look_s: float, pace: float, seconds: float) -> None:
    assert sleep_s(until_due, since_look_s, pace) == pytest.approx(seconds)


@pytest.mark.parametrize(("rate", "pace"), [(0, 0.001), (2000, 0.001), (5000, 0.003), (7250, 0.0045), (1e6, 0.005)])
def test_the_pace_slows_with_the_load_to_five_times_and_no_further(rate: float, pace: float) -> None:
    assert pace_s(rate, 0.001) == pytest.approx(pace)


@pytest.mark.parametrize(("rate", "gap"), [(0, 0.0), (1000, 0.0), (2500, 0.0005), (4000, 0.001), (1e6, 0.001)])
def test_departures_gather_for_no_longer_than_they_may(rate: float, gap: float) -> None:
    assert departure_s(rate, 0.001) == pytest.approx(gap)


@pytest.mark.parametrize(("rate", "ms"), [(0, 0), (600, 0), (1000, 2), (2500, 10), (1e6, 10)])
def test_a_log_is_read_at_once_at_low_rates_and_in_steps_at_high_ones(rate: float, ms: int) -> None:
    assert gather_ms(rate) == ms


def test_the_rate_follows_the_load_within_a_fifth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("bridge.pipeline.wake.time.monotonic", lambda: now_s)
    rate = Throughput()
    for _ in range(50):
        now_s += 0.02
        rate.add(40)
    assert rate.per_s == pytest.approx(2000, rel=0.02)
    now_s += 0.3
    assert rate.add(0) == 0


class Sleeper:
    """A wake that sleeps an hour ahead of its next due moment."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wake = Wake(self.clock)
        self.wake.watch({0, 1})
        for shard in (0, 1):
            self.wake.learnt(shard, self.clock.now_ms() + HOUR_MS)
        self.task: asyncio.Task[None] | None = None

    async def fall_asleep(self) -> None:
        await self.wake.sleep(10, 0.001)  # for what `watch` has said
        self.task = asyncio.create_task(self.wake.sleep(10, 0.001))
        await turns()

    async def awake(self) -> bool:
        assert self.task is not None
        await turns()
        return self.task.done()


@pytest.fixture
async def sleeper() -> AsyncIterator[Sleeper]:
    sleeper = Sleeper()
    await sleeper.fall_asleep()
    yield sleeper
    assert sleeper.task is not None
    sleeper.task.cancel()
    await asyncio.gather(sleeper.task, return_exceptions=True)


async def test_without_anything_near_nothing_wakes_it(sleeper: Sleeper) -> None:
    assert not await sleeper.awake()


async def test_a_hint_of_a_nearer_moment_wakes(sleeper: Sleeper) -> None:
    sleeper.wake.heard(1, sleeper.clock.now_ms())
    assert await sleeper.awake()
    assert sleeper.wake.due() == [1]


async def test_a_hint_of_a_later_moment_does_not(sleeper: Sleeper) -> None:
    sleeper.wake.heard(1, sleeper.clock.now_ms() + 2 * HOUR_MS)
    assert not await sleeper.awake()
    assert sleeper.wake.known()[1] == sleeper.clock.now_ms() + HOUR_MS


async def test_a_hint_for_a_shard_of_another_instance_does_not_wake_it(sleeper: Sleeper) -> None:
    sleeper.wake.heard(3, sleeper.clock.now_ms())
    assert not await sleeper.awake()
    assert sleeper.wake.known().keys() == {0, 1}


async def test_a_shard_that_was_handed_over_is_looked_at_at_once(sleeper: Sleeper) -> None:
    sleeper.wake.heard(0, 0)
    assert await sleeper.awake()
    assert sleeper.wake.due() == [0]


async def test_a_nudge_wakes(sleeper: Sleeper) -> None:
    sleeper.wake.nudge()
    assert await sleeper.awake()


async def test_new_shards_are_looked_at_at_once_and_old_ones_when_they_are_due(sleeper: Sleeper) -> None:
    sleeper.wake.watch({1, 2})
    assert await sleeper.awake()
    assert sleeper.wake.due() == [2]
    assert sleeper.wake.known().keys() == {1, 2}


async def test_a_nudge_while_awake_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pipeline.wake.IDLE_S", 30.0)
    wake = Wake(ManualClock())
    wake.nudge()
    async with asyncio.timeout(20):
        await wake.sleep(10, 0.001)


async def test_a_nudge_right_after_a_look_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pipeline.wake.IDLE_S", 30.0)
    wake = Wake(ManualClock())
    wake.nudge()
    async with asyncio.timeout(20):
        await wake.sleep(0.0, 0.001)


@pytest.mark.usefixtures("leaping_time")
async def test_an_empty_house_is_looked_at_once_a_second() -> None:
    wake = Wake(ManualClock())
    started = asyncio.get_running_loop().time()
    await wake.sleep(10, 0.001)
    assert 0.9 < asyncio.get_running_loop().time() - started < 9


def test_the_most_overdue_shard_comes_first() -> None:
    clock = ManualClock()
    wake = Wake(clock)
    wake.watch({0, 1, 2, 3})
    now_ms = clock.now_ms()
    for shard, due_ms in enumerate((now_ms - 5, now_ms - 9, now_ms + 1, None)):
        wake.learnt(shard, due_ms)
    assert wake.due() == [1, 0]
    clock.advance(1)
    assert wake.due() == [1, 0, 2]


async def test_a_wake_that_looks_ahead_wakes_half_of_that_before_and_finds_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.pipeline.wake.IDLE_S", 30.0)
    clock = ManualClock()
    wake = Wake(clock, ahead_ms=20_000)
    wake.watch({0, 1, 2})
    now_ms = clock.now_ms()
    for shard, due_ms in enumerate((now_ms + 10_001, now_ms + 19_999, now_ms + 20_001)):
        wake.learnt(shard, due_ms)
    await wake.sleep(10, 0.001)  # for what `watch` has said
    started = asyncio.get_running_loop().time()
    await wake.sleep(10, 0.001)
    assert asyncio.get_running_loop().time() - started < 9
    assert wake.due() == [0, 1]


def test_what_a_claim_found_is_believed() -> None:
    clock = ManualClock()
    wake = Wake(clock)
    wake.watch({0})
    wake.heard(0, clock.now_ms())
    wake.asking([0])
    wake.learnt(0, None)
    assert wake.due() == []


@pytest.mark.parametrize("known_ms", [0, HOUR_MS])
@pytest.mark.parametrize("found_ms", [None, 2 * HOUR_MS])
def test_a_hint_that_overtakes_the_reply_of_a_claim_is_not_lost(known_ms: int, found_ms: int | None) -> None:
    """The claim was carried out before the message was parked, but its reply is read after the hint."""
    clock = ManualClock()
    wake = Wake(clock)
    wake.watch({0})
    wake.learnt(0, clock.now_ms() + known_ms)
    wake.asking([0])
    wake.heard(0, clock.now_ms() + 50)
    wake.learnt(0, None if found_ms is None else clock.now_ms() + found_ms)
    assert wake.known()[0] == clock.now_ms() + 50


def test_what_is_not_ours_is_not_learnt() -> None:
    wake = Wake(ManualClock())
    wake.watch({0})
    wake.learnt(5, 1)
    assert wake.known() == {0: 0}
