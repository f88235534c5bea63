"""Two instances move messages between the tiers, beside cancels, replacements and verbs, and die at every step.

Nothing is lost or early, nothing comes twice, and what was cancelled or replaced stays away.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from adapters.memory import ManualClock, Memory, MemorySource, MemoryStore
from adapters.memory.memory_journal import MemoryJournal
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import START, Journal, JournalFilter, Written
from bridge.core.state import State
from bridge.desk.rows import Answer, Filter
from bridge.parking.envelope import unseal
from bridge.pipeline.restore import RestoreOrder, Restorer
from bridge.pipeline.tiers import Loader, TieredStore
from tests.unit.house import HOUR_MS, SHARDS, House

STEPS = 40
COLD_AFTER_MS = 2 * HOUR_MS
KEYS = tuple(b"%d" % number for number in range(4))
EVERY_ROW = JournalFilter(tuple(Written))


pytestmark = pytest.mark.usefixtures("without_waiting")


@dataclass
class Sent:
    """A message, and what may become of it: ``gone`` must not be delivered any more, ``unsure`` may be."""

    key: bytes
    due_ms: int
    accepted: bool = False
    delivered: bool = False
    gone: bool = False
    unsure: bool = False

    @property
    def waits(self) -> bool:
        return self.accepted and not (self.delivered or self.gone or self.unsure)


class Story:
    """Two producers with a log each, two instances, a journal, and a store that may lose its data."""

    def __init__(self, seed: int, before: bool, journal: Journal) -> None:
        self.draw = random.Random(seed)
        self.before = before
        self.journal = journal
        self.clock = ManualClock()
        self.memory = Memory(SHARDS, self.clock)
        self.sources = [MemorySource(self.clock), MemorySource(self.clock)]
        self.houses: list[House] = []
        self.sent: dict[bytes, Sent] = {}
        #: By house: the records that are not accepted yet, each with what it is of: a message, or a key to cancel.
        self.unaccepted: list[list[bytes]] = [[], []]
        self.records = [0, 0]
        self.instances = 0

    async def start(self, number: int) -> None:
        """An instance starts, on what there is."""
        self.instances += 1
        house = House(
            self.memory,
            f"i{self.instances:05d}",
            journal=slow(self.journal, self.draw),
            before=self.before,
            source=self.sources[number],
            cold_after_ms=COLD_AFTER_MS,
        )
        self.houses[number : number + 1] = [house]
        await house.store.read(range(SHARDS), 1)
        if not self.before:
            await house.store.read(range(SHARDS), 1, parks=True)
            assert house.journaling is not None
            await house.journaling.tail.adopt(range(SHARDS))
        await Loader(self.journal, house.store, house.store, SHARDS).begin()

    async def step(self) -> None:
        """Both instances do something at once, and may die within; or time passes."""
        what = self.draw.choice(["work"] * 8 + ["deliver", "deliver", "check", "rollback", "wipe"])
        if what == "work":
            await asyncio.gather(self.days_work(0), self.days_work(1))
        elif what == "deliver":
            await self.deliver(self.draw.randrange(3 * HOUR_MS))
        elif what == "check":
            await self.check()
        elif what == "rollback":
            await self.rollback()
        elif self.draw.random() < 0.4:
            await self.wipe()

    async def days_work(self, number: int) -> None:
        """One instance does a few things, while the other may stand still."""
        for _ in range(self.draw.randrange(1, 4)):
            await self.works(number)

    async def works(self, number: int) -> None:
        """One instance does one thing."""
        house = self.houses[number]
        if self.draw.random() < 0.15:
            house.store.lose_reply()
        work = self.draw.choice([self.park, self.park, self.verb, self.unload, self.unload, self.load, self.tail])
        if await self.killed_within(work(number)):
            self.sources[number].lose_connection()
            await self.start(number)
        house.store.lose_reply(0)

    async def killed_within(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Let an instance work, and perhaps die within. Return whether it died."""
        task = asyncio.ensure_future(work)
        for _ in range(self.draw.randrange(200) if self.draw.random() < 0.4 else 20_000):
            if task.done():
                break
            await asyncio.sleep(0)
        died = not task.done()
        task.cancel()
        with suppress(StoreUnavailable, asyncio.CancelledError):
            await task
        return died

    # -- what instances do --------------------------------------------------------------------------------------------

    async def park(self, number: int) -> None:
        """The producer sends messages and cancellations. A key belongs to one producer."""
        for _ in range(self.draw.randrange(1, 5)):
            self.publish(number)
        await self.houses[number].park()
        self.note_accepted(number)

    def publish(self, number: int) -> None:
        key = self.draw.choice(KEYS[number * 2 : number * 2 + 2])
        body = b"%d-%d" % (number, self.records[number])
        origin = b"log-%d" % number, self.records[number]
        self.records[number] += 1
        order_key = self.draw.choice([b"a", b"b", b"c"])
        if self.draw.random() < 0.3:
            headers: dict[str, Any] = {"x-delay-cancel": key.decode()}
            self.unaccepted[number].append(key)
        else:
            key = key if self.draw.random() < 0.7 else b""
            delay_ms = self.draw.randrange(8 * HOUR_MS)
            headers = {"x-delay": delay_ms, **({"x-delay-key": key.decode()} if key else {})}
            self.sent[body] = Sent(key, self.clock.now_ms() + delay_ms)
            self.unaccepted[number].append(body)
        self.sources[number].feed(body, headers, order_key=order_key, origin=origin)

    def note_accepted(self, number: int) -> None:
        """What the broker need not keep any more counts, in its order."""
        count = len(self.unaccepted[number]) - self.sources[number].left()
        for name in self.unaccepted[number][:count]:
            message = self.sent.get(name)
            if message is None or message.key:
                key = name if message is None else message.key
                for other in self.sent.values():
                    other.gone |= other.key == key and other.accepted and not other.delivered
            if message is not None:
                message.accepted = True
        del self.unaccepted[number][:count]

    async def verb(self, number: int) -> None:
        """An operator cancels or reschedules a message that waits."""
        body = self.draw.choice([body for body, message in self.sent.items() if message.waits] or [b""])
        ids = [message_id for message_id, known in (await self.ids()).items() if known == body]
        if not ids:
            return
        message, desk = self.sent[body], self.houses[number].desk
        message.unsure, due_ms = True, self.clock.now_ms() + self.draw.randrange(8 * HOUR_MS)
        cancels = self.draw.random() < 0.5
        try:
            answers = await (desk.cancel(ids) if cancels else desk.reschedule(ids, due_ms))
        finally:
            message.due_ms = message.due_ms if cancels else min(message.due_ms, due_ms)
        if Answer.PARKED in answers.values():
            message.gone, message.unsure = message.gone or cancels, False
            message.due_ms = message.due_ms if cancels else due_ms
        else:
            assert message.gone or message.key in self.keys_under_way(), f"{body!r} is not found"

    def keys_under_way(self) -> set[bytes]:
        """The keys that records which are not accepted yet replace or cancel."""
        names = [name for unaccepted in self.unaccepted for name in unaccepted]
        return {self.sent[name].key if name in self.sent else name for name in names} - {b""}

    async def ids(self) -> dict[bytes, bytes]:
        """The body of each message, by id."""
        found = {row.id: row.envelope for row in await self.journal.page(EVERY_ROW, START, 10_000)}
        for shard in self.memory.shards:
            found |= shard.messages
        return {message_id: unseal(envelope).payload for message_id, envelope in found.items()}

    async def unload(self, number: int) -> None:
        await self.houses[number].tiering.unload(range(SHARDS), self.clock.now_ms())

    async def load(self, number: int) -> None:
        await self.houses[number].tiering.load(self.clock.now_ms())

    async def tail(self, number: int) -> None:
        journaling = self.houses[number].journaling
        assert journaling is not None
        await journaling.flush()
        await journaling.tail.catch_up(range(SHARDS))

    # -- what happens to all ------------------------------------------------------------------------------------------

    async def deliver(self, ms: int) -> None:
        """Time passes, in which the loader works as it does, and what is due is delivered."""
        for number in (0, 1):
            self.note_accepted(number)
        until_ms = self.clock.now_ms() + ms
        while self.clock.now_ms() < until_ms:
            self.clock.advance(min(HOUR_MS // 2, until_ms - self.clock.now_ms()))
            await self.load(0)
            for house in self.houses:
                while await house.deliver():
                    pass
                for claim in house.sink.published:
                    self.count(claim.payload)
                house.sink.published.clear()

    def count(self, body: bytes) -> None:
        message = self.sent[body]
        assert self.clock.now_ms() >= message.due_ms, f"{body!r} is early"
        assert not message.delivered, f"{body!r} comes twice"
        assert not message.gone, f"{body!r} was cancelled or replaced"
        message.delivered = True

    async def wipe(self) -> None:
        """The store loses its data after the journal knew of all. Both instances die, and an operator restores."""
        await self.accepted()
        self.clock.advance(1)
        self.memory = Memory(SHARDS, self.clock)
        for number in (0, 1):
            self.sources[number].lose_connection()
            await self.start(number)
        store: MemoryStore = self.houses[0].store
        tiered = TieredStore(store, Loader(self.journal, store, store, SHARDS))
        await Restorer(tiered, self.houses[0].desk, self.journal, store).run(RestoreOrder())

    async def accepted(self) -> None:
        """All that was sent is accepted, and the journal knows of all that left."""
        for number in (0, 1):
            while self.sources[number].left():
                await self.houses[number].park()
            self.note_accepted(number)
            await self.tail(number)

    async def rollback(self) -> None:
        """A crash of the store takes back its last second, in which messages changed their tier."""
        saved = copy.deepcopy(self.memory, {id(self.clock): self.clock})
        works = [self.draw.choice([self.load, self.load, self.unload, self.tail]) for _ in self.houses]
        await asyncio.gather(*(self.killed_within(work(number)) for number, work in enumerate(works)))
        self.clock.advance(1)
        self.memory = saved
        for number in (0, 1):
            self.sources[number].lose_connection()
            await self.start(number)

    async def check(self) -> None:
        """All is accepted: lists and counts of both tiers show what waits, each message once."""
        await self.accepted()
        desk = self.houses[0].desk
        waits = {body for body, message in self.sent.items() if message.waits}
        unsure = {body for body, message in self.sent.items() if message.unsure}
        rows = [row async for row in desk.rows(State.PARKED, Filter())]
        listed = [row.payload for row in rows]
        assert len(listed) == len(set(listed))
        assert waits <= set(listed) <= waits | unsure, (waits - set(listed), set(listed) - waits - unsure)
        assert [(row.at_ms, row.id) for row in rows] == sorted((row.at_ms, row.id) for row in rows)
        looked = await desk.look([row.id for row in rows], -1)
        assert [row.payload for row in looked] == listed
        stats = await desk.stats()
        assert stats.parked == sum(route.parked for route in stats.by_route.values()) == len(listed), (
            stats,
            len(listed),
        )
        cold = await self.journal.page(JournalFilter((Written.COLD,)), START, 10_000)
        both = sum(row.id in shard.due for row in cold for shard in self.memory.shards)
        assert sum(await desk.density([0, self.clock.now_ms() + 100 * HOUR_MS])) == len(listed) + both
        assert {stored.row.payload async for stored in desk.stored()} == set(listed)

    async def end(self) -> None:
        """All faults are over: everything is delivered."""
        await self.check()
        await self.deliver(17 * HOUR_MS)


def slow(journal: Journal, draw: random.Random) -> Any:
    """The journal as an instance sees it: each call takes some time, before and after it works."""

    class Slow:
        def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
            call = getattr(journal, name)

            async def later(*args: Any, **facts: Any) -> Any:
                for _ in range(draw.randrange(12) if draw.random() < 0.9 else 120):
                    await asyncio.sleep(0)
                found = await call(*args, **facts)
                for _ in range(draw.randrange(12) if draw.random() < 0.9 else 120):
                    await asyncio.sleep(0)
                return found

            return later

    return Slow()


async def told(seed: int, before: bool, journal: Journal) -> Story:
    """The whole story of a seed."""
    story = Story(seed, before, journal)
    for number in (0, 1):
        story.houses.append(House(story.memory))
        await story.start(number)
    for _ in range(STEPS):
        await story.step()
    await story.end()
    return story


def lost(story: Story) -> list[bytes]:
    """Messages that should have come and did not."""
    return [body for body, message in story.sent.items() if message.waits]


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])  # the fast tier has every other seed
async def test_whatever_dies_between_the_tiers_nothing_is_lost_early_or_twice(
    before: bool, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.operate.journaled_desk._PATIENCE_S", 60.0)  # the journal is slow, and never away
    for seed in range(part, 20, 2):
        story = await told(seed, before, MemoryJournal())
        assert lost(story) == [], f"seed {seed}"
