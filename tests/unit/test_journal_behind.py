"""How far the journal is behind the store, while the database or Redis is away."""

from __future__ import annotations

import asyncio

import pytest

from adapters.memory.memory_journal import MemoryJournal
from bridge.telemetry.health import WELL
from tests.unit.house import HOUR_MS, SHARDS, turns
from tests.unit.test_journal import delivered, opened, written


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
