"""The sink on Kafka: whether anything can be published, by what the brokers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.kafka import sink as sink_module
from adapters.kafka.sink import KafkaSink
from bridge.core.errors import BrokerUnavailable
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


class Producers:
    """Stands for aiokafka: producers that start unless ``away``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        self.started = 0
        cluster = SimpleNamespace(add_listener=lambda _: None)
        producer = SimpleNamespace(client=SimpleNamespace(cluster=cluster, force_metadata_update=self._done))
        monkeypatch.setattr(sink_module, "new_producer", lambda _: producer)
        monkeypatch.setattr(sink_module, "start", self._start)
        monkeypatch.setattr(sink_module, "give_up_producer", self._done)
        monkeypatch.setattr(sink_module, "answers", self._answers)

    async def _start(self, *_: object) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise BrokerUnavailable("no broker answers")
        self.started += 1

    async def _answers(self, *_: object) -> bool:
        return True

    async def _done(self, *_: object) -> None:
        await asyncio.sleep(0)


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not there():  # noqa: ASYNC110 (the sink decides when)
            await asyncio.sleep(0)


async def test_a_producer_that_is_replaced_at_once_is_no_trouble_and_one_that_is_not_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when Kafka elects leaders, and answers some batches with an error meanwhile."""
    monkeypatch.setattr(sink_module, "STEADY_S", 0.0)
    monkeypatch.setattr(sink_module, "_LOOK_S", 60.0)
    producers, sink = Producers(monkeypatch), Sink()
    sink._producer = None
    running = asyncio.create_task(sink.run())
    await until(sink.able)
    assert sink.room()[0] > 0
    sink._break("topic target, partition 0: [Error 6] NotLeaderForPartitionError")
    await until(lambda: sink._producer is None)
    assert (sink.well, sink.room()) == (True, (0, 0))
    await until(lambda: producers.started == 2 and sink.room()[0] > 0)
    assert sink.well
    producers.away = True
    sink._break("the broker is down")
    await until(lambda: not sink.able())
    await asyncio.sleep(0)
    assert sink.health.sentence() == "nothing can be published to Kafka: no broker answers."
    running.cancel()
