"""A small house on memory adapters: the loops as they are, a clock that is moved by hand, passes that are called."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from adapters.memory import ManualClock, Memory, MemorySink, MemorySource, MemoryStore
from bridge.core.message import HeaderValue
from bridge.core.ports import Result
from bridge.delay.header import HeaderRules
from bridge.parking.identity import Ids
from bridge.pipeline.claim import Dispatcher, DispatchRules
from bridge.pipeline.decide import RouteRules
from bridge.pipeline.elsewhere import Elsewhere
from bridge.pipeline.park import Parker, ParkLimits
from bridge.pipeline.publish import Departures
from bridge.pipeline.retry import RetryRules
from bridge.pipeline.settle import Settler
from bridge.pipeline.wake import Wake
from bridge.process.members import Members
from bridge.process.sharing import Sharing
from bridge.telemetry.health import Health
from bridge.telemetry.lateness import Lateness

SHARDS = 4
LEASE_MS = 15_000
DRAIN_MS = 4_000
ORDERS = RouteRules("orders", HeaderRules(), "key", "dead", "replace", "find", 1 << 20)
RULES = DispatchRules(LEASE_MS, DRAIN_MS, 1, 100, 1 << 20, 1000)
RETRY = RetryRules(first_ms=500, factor=2, max_ms=30_000, attempts=3)


class House:
    """One instance. Give two of them the same memory and they are neighbours."""

    def __init__(
        self,
        memory: Memory | None = None,
        instance: str = "aaaaaa",
        route: RouteRules = ORDERS,
        rules: DispatchRules = RULES,
        window: int = 1000,
        ahead_ms: int = 0,
        **changes: Any,
    ) -> None:
        self.clock = ManualClock()
        self.memory = Memory(SHARDS, self.clock) if memory is None else memory
        assert isinstance(self.memory.clock, ManualClock)
        self.clock = self.memory.clock
        self.store = MemoryStore(self.memory, instance)
        self.health = Health()
        self.source = MemorySource(self.clock)
        self.wake = Wake(self.clock, ahead_ms)
        self.lateness = Lateness()
        self.sink = MemorySink(self._answered, window)
        self.departures = Departures(self.sink, self.clock)
        self.dispatcher = Dispatcher(self.store, self.sink, self.wake, self.departures, rules, self.health)
        self.elsewhere = Elsewhere(self.dispatcher.give_way)
        self.settler = Settler(
            self.store, self.clock, RETRY, self.lateness, self.dispatcher.ended, self.health, self.elsewhere
        )
        routes = {"orders": replace(route, **changes)}
        limits = ParkLimits(batch_max=100, batch_bytes=1 << 20, recent_max=50)
        self.parker = Parker(self.source, self.store, routes, Ids(instance), self.wake.heard, self.health, limits)
        self.dispatcher.take_over(frozenset(range(SHARDS)))

    def _answered(self, results: list[Result]) -> None:
        self.settler.answered(results)
        self.dispatcher.answered()

    def members(self, *routes: str) -> Members:
        """Its place among the instances; it can deliver these routes."""
        sharing = Sharing(self.store, self.store.instance, routes or ("orders",), self.elsewhere)
        return Members(self.store, self.dispatcher, DRAIN_MS, self.sink.able, dict, self.health, sharing)

    def publish(self, body: str, delay_ms: HeaderValue = 0, order_key: str = "", **how: Any) -> None:
        """A producer sends a message to be delivered later."""
        self.source.feed(body.encode(), {"x-delay": delay_ms}, order_key=order_key.encode(), **how)

    async def park(self) -> None:
        """One pass of the way in."""
        await self.parker.park(await self.source.take(1000, 1 << 30))

    async def deliver(self) -> int:
        """One pass of the way out, and of settling; how many were sent."""
        sent = await self.dispatcher.dispatch()
        await turns()
        await self.settler.settle()
        return sent

    def bodies(self) -> list[str]:
        """What was published, in order."""
        return [body.decode() for body in self.sink.bodies()]

    def dead(self) -> list[str]:
        """The reasons of all dead letters."""
        return [shard.why[message_id] for shard in self.memory.shards for message_id in shard.dead]

    def parked(self) -> int:
        """How many are parked."""
        return sum(len(shard.due) for shard in self.memory.shards)

    def count(self, name: str) -> int:
        """How many there were, ever."""
        return sum(shard.counts[name] for shard in self.memory.shards)


async def turns(number: int = 5) -> None:
    """Let the loop turn, so that what is ready to run has run; no time passes."""
    for _ in range(number):
        await asyncio.sleep(0)
