"""Kills at every step of parking, delivering, writing, tailing and restoring, drawn from a seed: nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from adapters.memory import ManualClock, Memory, MemorySource
from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.errors import StoreUnavailable
from bridge.pipeline.restore import RestoreOrder, Restorer
from tests.unit.house import HOUR_MS, SHARDS, House

#: The fast tier has the first of three sweeps, and finds a rare mistake a third as often.
SWEEPS = [range(20), *(pytest.param(range(first, first + 20), marks=pytest.mark.slow) for first in (20, 40))]
STEPS = 40
LOG = b"orders.delay-0"


pytestmark = pytest.mark.usefixtures("without_waiting")


class Story:
    """One run: a producer, an instance that dies again and again, a journal, and a store that may lose its data."""

    def __init__(self, seed: int, records: bool, before: bool) -> None:
        self.draw = random.Random(seed)
        self.records, self.before = records, before
        self.clock = ManualClock()
        self.source = MemorySource(self.clock)
        self.journal = MemoryJournal()
        self.memory = Memory(SHARDS, self.clock)
        self.published: Counter[bytes] = Counter()
        self.sent = self.instances = 0
        #: Bodies that left since the journal last knew of all that left, and those that may therefore come twice.
        self.unwritten: set[bytes] = set()
        self.may_repeat: set[bytes] = set()

    async def start(self) -> None:
        """An instance starts, on what there is."""
        self.instances += 1
        name = f"i{self.instances:05d}"
        self.house = House(self.memory, name, journal=self.journal, before=self.before, source=self.source)
        await self.house.store.read(range(SHARDS), 1)
        if not self.before:
            await self.house.store.read(range(SHARDS), 1, parks=True)

    async def died(self) -> None:
        """The instance dies, and another one starts."""
        self.count()
        self.source.lose_connection()
        self.clock.advance(30_000)
        await self.start()
        await self.house.store.recover(range(SHARDS), 15_000)
        if not self.before:
            assert self.house.journaling is not None
            await self.house.journaling.tail.adopt(range(SHARDS))

    def count(self) -> None:
        """What consumers got."""
        for claim in self.house.sink.published:
            self.published[claim.payload] += 1
            self.unwritten.add(claim.payload)
        self.house.sink.published.clear()

    async def killed_within(self, work: Coroutine[Any, Any, Any], turns: int = 30) -> bool:
        """Let the instance work, and perhaps die within. Return whether it died."""
        task = asyncio.ensure_future(work)
        dies = self.draw.random() < 0.4
        for _ in range(self.draw.randrange(turns) if dies else 3000):
            if task.done():
                break
            await asyncio.sleep(0)
        if task.done():
            task.exception()
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True

    async def step(self) -> None:
        """One thing happens."""
        assert self.house.journaling is not None
        if self.draw.random() < 0.15:
            self.house.store.lose_reply()
        if self.draw.random() < 0.15:
            self.journal.replies_to_lose = 1
        work: Coroutine[Any, Any, Any]
        what = self.draw.choice(["park", "park", "deliver", "tail", "restore", "wipe"])
        if what == "wipe":
            await self.wiped()
            return
        if what == "park":
            for _ in range(self.draw.randrange(1, 6)):
                self.send()
            work = self.house.park()
        elif what == "deliver":
            self.clock.advance(self.draw.randrange(2 * HOUR_MS))
            work = self.house.deliver()
        elif what == "tail":
            work = self.tail()
        else:
            work = self.restore()
        died = await self.killed_within(work)
        self.house.store.lose_reply(0)
        self.journal.replies_to_lose = 0
        self.count()
        if died:
            await self.died()

    def send(self) -> None:
        """The producer sends a message."""
        origin = (LOG, self.sent) if self.records else None
        delay = {"x-delay": self.draw.randrange(HOUR_MS)}
        self.source.feed(b"%d" % self.sent, delay, order_key=LOG, origin=origin)
        self.sent += 1

    async def tail(self) -> None:
        """The journal learns what left."""
        assert self.house.journaling is not None
        self.count()
        await self.house.journaling.tail.catch_up(range(SHARDS))
        self.unwritten.clear()

    async def restore(self) -> None:
        """An operator restores."""
        store = self.house.store
        await Restorer(store, MemoryDesk(store), self.journal, store).run(RestoreOrder())

    async def wiped(self) -> None:
        """The store loses its data while the instance lives: it writes the rows that it still has, and restores."""
        self.count()
        self.may_repeat |= self.unwritten
        self.memory = Memory(SHARDS, self.clock)
        assert self.house.journaling is not None
        await self.house.journaling.flush()
        self.source.lose_connection()
        await self.start()
        await self.restore()

    async def end(self) -> None:
        """All faults are over: everything is delivered."""
        await self.died()
        while self.source.left():
            await self.house.park()
        await self.restore()
        self.clock.advance(2 * HOUR_MS)
        while await self.house.deliver():
            pass
        self.count()


async def told(seed: int, records: bool, before: bool) -> Story:
    """The whole story of a seed."""
    story = Story(seed, records, before)
    await story.start()
    for _ in range(STEPS):
        try:
            await story.step()
        except StoreUnavailable:
            await story.died()
    await story.end()
    return story


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("records", [True, False], ids=["kafka", "rabbitmq"])
@pytest.mark.parametrize("seeds", SWEEPS, ids=str)
async def test_whatever_dies_nothing_is_lost(seeds: range, records: bool, before: bool) -> None:
    for seed in seeds:
        story = await told(seed, records, before)
        lost = [number for number in range(story.sent) if not story.published[b"%d" % number]]
        assert lost == [], f"seed {seed}"
