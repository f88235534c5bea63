"""A small house on memory adapters: the loops as they are, a clock that is moved by hand, passes that are called."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapters.memory import ManualClock, Memory, MemorySink, MemorySource, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from bridge.core.journal import Journal
from bridge.core.message import Claim, HeaderValue
from bridge.delay.header import HeaderRules
from bridge.operate.journaled_desk import JournaledDesk
from bridge.parking.identity import Ids
from bridge.pipeline.assemble import PipelineRules, assemble
from bridge.pipeline.claim import ClaimRules
from bridge.pipeline.decide import RouteRules
from bridge.pipeline.journaled import journaling
from bridge.pipeline.park import ParkLimits
from bridge.pipeline.settle import RetryRules
from bridge.pipeline.tiers import Loader, TieredStore, Tiering
from bridge.process.members import Members, Sharing
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics

SHARDS = 4
LEASE_MS = 15_000
DRAIN_MS = 4_000
HOUR_MS = 3_600_000
ORDERS = RouteRules(HeaderRules(), "key", "dead", "replace", "find", 1 << 20)
RULES = ClaimRules(LEASE_MS, DRAIN_MS, 1, 100, 1 << 20, 1000)
RETRY = RetryRules(first_ms=500, factor=2, max_ms=30_000, attempts=3)


class House:
    """One instance. Give two of them the same memory and they are neighbours."""

    def __init__(
        self,
        memory: Memory | None = None,
        instance: str = "aaaaaa",
        route: RouteRules = ORDERS,
        rules: ClaimRules = RULES,
        window: int = 1000,
        ahead_ms: int = 0,
        also: Sequence[str] = (),
        journal: Journal | None = None,
        before: bool = False,
        source: MemorySource | None = None,
        cold_after_ms: int = 0,
        rates: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> None:
        self.clock = ManualClock()
        self.memory = Memory(SHARDS, self.clock) if memory is None else memory
        assert isinstance(self.memory.clock, ManualClock)
        self.clock = self.memory.clock
        self.store = MemoryStore(self.memory, instance)
        self.health = Health()
        self.source = MemorySource(self.clock) if source is None else source
        self.sink = MemorySink[Claim](window)
        routes = {"orders": replace(route, **changes), **dict.fromkeys(also, route)}
        limits = ParkLimits(batch_max=100, batch_bytes=1 << 20, recent_max=50)
        assembled = self.piped = PipelineRules(routes, rules, RETRY, limits, rates or {}, ahead_ms=ahead_ms)
        self.metrics = Metrics(routes)
        ends = self.store, self.source, self.sink
        self.journaling = None
        if journal is not None:
            loader = Loader(journal, self.store, self.store, SHARDS)
            self.desk = JournaledDesk(MemoryDesk(self.store), journal, "rabbitmq", loader)
            facts = self.desk, instance, cold_after_ms, self.health
            self.tiering = Tiering(loader, journal, self.store, *facts)
            parts = journal, self.store, before, HOUR_MS, self.health, lambda _: False
            self.journaling = journaling(TieredStore(self.store, loader), *parts)
        parking = self.journaling.store if self.journaling else None
        stages = assemble(*ends, assembled, Ids(instance), {}, self.health, self.metrics, parking)
        self.stages = stages
        self.wake, self.leases, self.ordered = stages.wake, stages.leases, stages.ordered
        self.recovery = stages.recovery
        self.parker, self.claimer, self.lateness = stages.parker, stages.claimer, stages.lateness
        self.publisher, self.settler = stages.publisher, stages.settler
        self.leases.take_over(frozenset(range(SHARDS)))

    def follow(self, *routes: str, rates: Mapping[str, float] | None = None) -> None:
        """Have these routes from now on, as after a reload."""
        rules = dict.fromkeys(routes, ORDERS)
        self.metrics.follow(routes)
        self.stages.follow(replace(self.piped, routes=rules, rates=rates or {}))

    def members(self, *routes: str) -> Members:
        """Its place among the instances; it can deliver these routes."""
        sharing = Sharing(self.store, self.store.instance, routes or ("orders",), self.leases.elsewhere)
        here = self.store, self.leases, self.recovery
        return Members(*here, DRAIN_MS, self.sink.able, dict, self.health, sharing, self.ordered, self.stages.fullness)

    def publish(self, body: str, delay_ms: HeaderValue = 0, order_key: str = "", **how: Any) -> None:
        """A producer sends a message to be delivered later."""
        self.source.feed(body.encode(), {"x-delay": delay_ms}, order_key=order_key.encode(), **how)

    async def park(self) -> None:
        """Park what the source has."""
        await self.parker.once(await self.source.take(1000, 1 << 30))

    async def deliver(self) -> int:
        """Claim, publish and settle once. Return how many were sent."""
        sent = await self.claimer.once()
        await turns()
        await self.settler.once()
        return sent

    def claims(self) -> list[Claim]:
        """Return the claims that were published, in order."""
        return self.sink.published

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
