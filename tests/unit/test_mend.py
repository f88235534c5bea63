"""A missing queue or topic is a trouble until it exists again, whether postdate or an operator recreated it."""

from __future__ import annotations

import asyncio

import pytest

from bridge.core.errors import Refused
from bridge.process import mend
from bridge.process.mend import Mend
from bridge.telemetry.health import WELL, Health


async def test_a_repair_by_another_ends_the_trouble_without_another_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mend, "_EVERY_S", 0.01)
    health, missing = Health(), True

    def declare() -> None:
        if missing:
            raise Refused("no right to declare the queue orders.1s")

    async def until(sentence: str) -> None:
        for _ in range(2000):
            if health.sentence() == sentence:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(health.sentence())

    Mend(declare, health)()
    await until("no right to declare the queue orders.1s.")
    missing = False
    await until(WELL)
