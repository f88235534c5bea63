"""A postdate without a store in a simulated run: the real relay, on a queue with levels in which messages expire."""

from __future__ import annotations

import asyncio
from typing import Any

from bridge.core.clock import StoreClock
from bridge.core.message import Delivery
from bridge.delay.header import HeaderRules
from bridge.delay.levels import Bury, Hold, LevelRules, Move, rounding
from bridge.pipeline.claim import ClaimRules
from bridge.pipeline.relay import Packing, Parcel, Relay, RelayLimits
from bridge.pipeline.settle import RetryRules
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from tests.simulation.broker import Broker, SimulatedSink, SimulatedSource
from tests.simulation.loop import Process, VirtualLoop

#: The intake, the queue of what has waited, and where it waits.
ROUTE, DUE, DEAD = "orders", "orders.due", "dead"
LEVELS_MS = (50, 500, 2_000, 5_000)
_RULES = LevelRules(HeaderRules(levels_ms=LEVELS_MS), rounding(LEVELS_MS, "up"), "dead", 1 << 20)
_LIMITS = RelayLimits(batch_max=100, batch_bytes=1 << 20, refused_max=10_000, refused_bytes=1 << 20)
_RETRIES = RetryRules(first_ms=500, factor=2, max_ms=5_000, attempts=1_000)


class _Places(Packing):
    """Says where a message goes. The number of the message is its payload all the way."""

    def route_of(self, _: Delivery) -> str:
        return ROUTE

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        match move:
            case Hold(wait_ms):
                return Parcel(str(wait_ms), delivery.payload)
            case Bury():
                return Parcel(DEAD, delivery.payload)
        return Parcel(ROUTE, delivery.payload)

    def may_go_back(self, delivery: Delivery) -> bool:
        return delivery.route != DUE


class _LevelSink(SimulatedSink):
    def _land(self, letter: Any, sent_s: float) -> None:
        broker, number = self.broker, int(letter.payload)
        if letter.route == ROUTE:
            broker.deliver(number, ROUTE, (b"", b""), sent_s, self.process.name)
        elif letter.route == DEAD:
            broker.dead.add(number)
        else:
            broker.wait_in_level(number, int(letter.route) / 1000, DUE)


class LevelInstance:
    """One process, as ``Instance``."""

    def __init__(self, name: str, loop: VirtualLoop, broker: Broker) -> None:
        self.name = name
        self.loop = loop
        self.broker = broker
        self.process = Process(name, loop)
        self.process.context.run(self._start)

    def _start(self) -> None:
        clock, places = StoreClock(), (ROUTE, DEAD, *map(str, LEVELS_MS))
        self.source = SimulatedSource(self.broker, clock, self.process, (ROUTE, DUE))
        self.sink = _LevelSink(self.broker, self.process, places)
        ends: tuple[Any, Any] = (self.source, self.sink)
        health = Health(self.loop.time)
        self._relay = Relay(*ends, clock, {ROUTE: _RULES}, _Places(), _RETRIES, _nothing, health, _LIMITS, Metrics())
        self.sink.on_answers(self._relay.answered)  # type: ignore[arg-type]
        self.source.connect()
        self.process.tasks += [self.loop.create_task(run) for run in self._relay.loops()]

    def reload(self, _: ClaimRules, retry: RetryRules) -> None:
        """Take over live settings, as at SIGHUP."""
        self.process.context.run(self._relay.follow, {ROUTE: _RULES}, retry)

    def kill(self) -> None:
        """End the process at once, as kill -9 does. The broker notices a little later."""
        self.process.kill()
        self.loop.call_later(self.broker.random.uniform(0, 0.5), self.broker.lose, self.source)

    def stop(self) -> None:
        """End the process gracefully, as SIGTERM does."""
        self.process.context.run(lambda: self.process.tasks.append(self.loop.create_task(self._stop())))

    async def _stop(self) -> None:
        self._relay.stop()
        until_s = self.loop.time() + 25.0
        while self.loop.time() < until_s and not self._relay.finished():  # noqa: ASYNC110 (as ``Running`` does)
            await asyncio.sleep(0.02)
        self.loop.call_soon(self.kill, context=self.broker.outside)


def _nothing() -> None:
    pass
