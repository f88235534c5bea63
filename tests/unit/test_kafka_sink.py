"""The sink on Kafka: whether anything can be published, by what the brokers answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.kafka import sink as sink_module
from adapters.kafka.sink import KafkaSink
from bridge.core.message import Outcome
from bridge.settings import Kafka
from bridge.telemetry.health import Health


class Sink(KafkaSink[Any]):
    """A connected sink. ``delivers`` confirms a record."""

    def __init__(self) -> None:
        self.health = Health()
        super().__init__(Kafka(), {}, 1, self.health)
        self.on_answers(lambda _: None)
        self._producer = SimpleNamespace(client=None)

    def delivers(self) -> None:
        self._on_answer("target", [SimpleNamespace(letter=SimpleNamespace(payload=b"x"))], Outcome.CONFIRMED, None)  # type: ignore[list-item]

    @property
    def well(self) -> bool:
        return self.able() and not self.health.troubles()


async def test_the_first_delivery_ends_the_trouble_that_nothing_can_be_published() -> None:
    sink = Sink()
    for there in (True, False):
        sink._reached(there)
        assert sink.well is there
    sink.delivers()
    await asyncio.sleep(0)
    assert sink.well


async def test_a_sink_without_a_connection_is_not_able_after_its_last_deliveries() -> None:
    sink = Sink()
    sink.delivers()
    sink._producer = None
    sink._give_back()
    assert not sink.able()


async def test_a_broker_that_confirmed_while_it_was_asked_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sink, asked, again = Sink(), 0, asyncio.Event()

    async def answers(_: object, __: float) -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            sink.delivers()
            await asyncio.sleep(0)
        else:
            again.set()
        return False

    monkeypatch.setattr(sink_module, "answers", answers)
    monkeypatch.setattr(sink_module, "_ASK_AWAY_S", 0.0)
    sink._reached(True)
    asking = asyncio.create_task(sink._keep_asking(sink._producer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sink.well
    await again.wait()
    await asyncio.sleep(0)
    assert not sink.well
    asking.cancel()
