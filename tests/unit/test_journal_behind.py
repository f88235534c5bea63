"""How far the journal is behind the store, while the database or Redis is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from adapters.memory.memory_journal import MemoryJournal
from bridge.core.journal import JournalUnavailable
from bridge.telemetry.health import WELL
from tests.unit.house import HOUR_MS, SHARDS, House, turns
from tests.unit.test_journal import delivered, opened, waiting, written


async def test_rows_of_a_dead_instance_are_written_after_three_seconds_wherever_the_stores_clock_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a step back of its clock, Redis gives all that is parked the moment of the last entry before."""
    monkeypatch.setattr("bridge.pipeline.move_tail._EVERY_S", 0.0)
    now_s = [100.0]
    monkeypatch.setattr("bridge.pipeline.move_tail.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    journal = MemoryJournal()
    house = await opened(journal)
    await house.store.read(range(SHARDS), 1, parks=True)
    other = House(house.memory, "bbbbbb", journal=journal)
    assert other.journaling is not None
    tail = other.journaling.tail
    carrying = asyncio.create_task(tail.run(lambda: range(SHARDS), SHARDS, house.clock, HOUR_MS, other.health))
    house.publish("a", HOUR_MS)
    await house.park()
    house.clock.advance(1)
    await turns(20)
    assert await waiting(journal) == ["a"], "at its start another one may just have been killed"
    house.clock.step(-HOUR_MS)
    house.publish("b", HOUR_MS)
    await house.park()
    await turns(20)
    now_s[0] += 2.9
    await turns(20)
    assert await waiting(journal) == ["a"], "its writer has three seconds"
    now_s[0] += 0.2
    await turns(20)
    assert sorted(await waiting(journal)) == ["a", "b"]
    assert await house.store.read(range(SHARDS), 9, parks=True) == {}
    carrying.cancel()


async def test_rows_of_a_dead_instance_are_written_at_once_by_the_next_that_drains_its_shard() -> None:
    journal = MemoryJournal()
    house = await opened(journal)
    await house.store.read(range(SHARDS), 1, parks=True)
    other = House(house.memory, "bbbbbb", journal=journal)
    assert other.journaling is not None
    await other.journaling.tail.adopt_old([], SHARDS)
    house.publish("a", HOUR_MS)
    await house.park()
    await other.journaling.tail.adopt_old([], SHARDS)
    assert await waiting(journal) == []
    await other.journaling.tail.adopt_old(range(SHARDS), SHARDS)
    assert await waiting(journal) == ["a"]


async def test_how_far_it_is_behind_is_known_after_a_step_back_of_the_stores_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("bridge.pipeline.move_tail.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    journal = MemoryJournal()
    house = await opened(journal)
    assert house.journaling is not None
    tail = house.journaling.tail
    for name in ("a", "b"):
        house.publish(name, 1)
        await house.park()
        await written(house)
        assert name in await delivered(house)
        house.clock.step(-HOUR_MS)
        journal.away = "the database is away"
        for after_s in (0, 40):
            now_s[0] += after_s
            with pytest.raises(JournalUnavailable):
                await tail.catch_up(range(SHARDS))
            assert tail.behind_ms(house.clock) == after_s * 1000
        journal.away = ""
        await tail.catch_up(range(SHARDS))
        assert tail.behind_ms(house.clock) == 0


async def test_how_far_it_is_behind_is_a_trouble_of_the_database_and_unknown_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.pipeline.move_tail._EVERY_S", 0.0)
    journal = MemoryJournal()
    house = await opened(journal)
    house.publish("a", 1)
    await house.park()
    await written(house)
    assert await delivered(house) == ["a"]
    assert house.journaling is not None
    tail, journal.away = house.journaling.tail, "the database is away"
    carrying = asyncio.create_task(tail.run(lambda: range(SHARDS), SHARDS, house.clock, HOUR_MS, house.health))
    await turns(20)
    house.memory.away, journal.away = "Redis does not answer", ""
    await turns(20)
    errors = tail.errors
    house.clock.advance(132_000)
    await turns(20)
    assert "behind_s" not in house.journaling.numbers()
    assert (house.health.sentence(), tail.errors) == (WELL, errors)
    house.memory.away, journal.away = "", "the database is away"
    await turns(20)
    assert house.journaling.numbers()["behind_s"] >= 132
    assert "2m 12s behind the store: the database is away" in house.health.sentence()
    carrying.cancel()
