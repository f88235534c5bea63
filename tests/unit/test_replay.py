"""A replay brings back what a lost store had of a log: all that would have been delivered, once, and nothing else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.memory import Memory
from adapters.memory.memory_desk import MemoryDesk
from bridge.cli import run_command
from bridge.core.errors import REFUSED, StoreUnavailable
from bridge.core.message import Delivery, Origin
from bridge.core.ports import Batch, Parked
from bridge.operate.replay import Past, Replay
from bridge.parking.identity import shard_of
from bridge.pipeline.putback import Fate, Overdue, Pace, PutBack
from tests.unit.house import ORDERS, SHARDS, House

LOGS = (b"topic/0", b"topic/1")
SECOND = 1000


class Log:
    """``LogReplay`` over records that a test keeps."""

    def __init__(self, records: list[Delivery], committed: dict[bytes, int]) -> None:
        self._all = records
        self._end = len(records)
        self._committed = committed

    async def open(self, from_ms: int) -> None:
        pass

    async def records(self) -> AsyncIterator[Delivery]:
        for record in self._all[: self._end]:
            yield record

    async def later(self) -> AsyncIterator[Delivery]:
        before, self._end = self._end, len(self._all)
        for record in self._all[before:]:
            yield record

    def taken(self, delivery: Delivery) -> bool:
        assert delivery.origin is not None
        return delivery.origin[1] < self._committed.get(delivery.origin[0], 0)

    async def close(self) -> None:
        pass


class World:
    """A log, an instance on a store, and after the loss one on an empty store."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.house = House(**changes)
        self.clock = self.house.clock
        self.records: list[Delivery] = []
        self.delivered: list[str] = []
        self.next: Counter[bytes] = Counter()

    async def publish(self, body: str, delay_ms: int, key: str = "", log: int = 0, cancel: str = "") -> None:
        """A record is written, taken in and parked."""
        name = LOGS[log]
        origin: Origin = (name, self.next[name])
        self.next[name] += 1
        headers: dict[str, Any] = {"x-delay-cancel": cancel} if cancel else {"x-delay": delay_ms}
        if key:
            headers["x-delay-key"] = key
        now_ms = self.clock.now_ms()
        record = Delivery(None, "orders", body.encode(), name, headers, now_ms, now_ms, origin=origin)
        self.records.append(record)
        self.house.source.feed(record.payload, headers, order_key=name, origin=origin)
        await self.house.park()

    async def pass_by(self, ms: int) -> None:
        """Time passes, in steps of 100 ms in which what is due is delivered. Steps in which nothing is due are one."""
        left = ms // 100
        while left:
            shards, now_ms = self.house.memory.shards, self.clock.now_ms()
            claimed = any(shard.claimed for shard in shards)
            heads_ms = [head_ms for shard in shards if (head_ms := shard.due.head_ms()) is not None]
            next_ms = now_ms if claimed else min(heads_ms, default=now_ms + ms)
            steps = min(left, max(1, -(-(next_ms - now_ms) // 100)))
            self.clock.advance(100 * steps)
            left -= steps
            if claimed or any(shard.due.until(self.clock.now_ms(), 1) for shard in shards):
                before = len(self.house.bodies())
                await self.house.deliver()
                self.delivered += self.house.bodies()[before:]

    def lose(self) -> int:
        """Empty the store. Return the moment."""
        self.house = House(Memory(SHARDS, self.clock), "bbbbbb", **self.changes)
        return self.clock.now_ms()

    def replay(self, since_ms: int) -> tuple[Replay, PutBack]:
        store, rules = self.house.store, replace(ORDERS, **self.changes)
        putback = PutBack(store, MemoryDesk(store), Overdue.DELIVER, Pace(1_000_000))
        return Replay(Log(self.records, dict(self.next)), store, rules, since_ms), putback

    async def restore(self, since_ms: int) -> tuple[dict[Fate, int], dict[Past, int]]:
        replay, putback = self.replay(since_ms)
        await replay.look()
        await replay.put(putback)
        await replay.follow()
        return {fate: number for (_, fate), number in putback.counts.items()}, dict(replay.skipped)


async def test_what_waited_comes_back_once_and_what_was_delivered_or_cancelled_does_not() -> None:
    world = World()
    await world.publish("delivered", SECOND)
    await world.publish("waits", 60 * SECOND)
    await world.publish("cancelled", 60 * SECOND, key="c")
    await world.publish("", 0, cancel="c", log=1)
    await world.publish("replaced", 60 * SECOND, key="r")
    await world.publish("newest", 70 * SECOND, key="r", log=1)
    await world.pass_by(5 * SECOND)
    lost_ms = world.lose()
    await world.publish("after", 60 * SECOND)
    assert await world.restore(lost_ms) == ({Fate.PARKED: 2}, {Past.BEFORE: 1, Past.CANCELLED: 2, Past.HANDLED: 1})
    assert await world.restore(lost_ms) == ({Fate.THERE: 2}, {Past.BEFORE: 1, Past.CANCELLED: 2, Past.HANDLED: 1})
    await world.pass_by(100 * SECOND)
    assert sorted(world.delivered) == ["after", "delivered", "newest", "waits"]
    assert (await world.restore(lost_ms))[0] == {Fate.THERE: 2}  # delivered since, and known by their marks


async def test_messages_of_the_log_keep_their_order_and_their_due_moments() -> None:
    world = World()
    for n in range(50):
        await world.publish(f"{n:02}", 30 * SECOND)
    lost_ms = world.lose()
    await world.restore(lost_ms)
    await world.pass_by(29 * SECOND)
    assert world.delivered == []
    await world.pass_by(2 * SECOND)
    assert world.delivered == [f"{n:02}" for n in range(50)]


async def test_a_log_of_which_the_new_store_parked_nothing_comes_back_as_far_as_it_was_committed() -> None:
    world = World()
    await world.publish("waits", 60 * SECOND)
    lost_ms = world.lose()
    world.records.append(replace(world.records[0], payload=b"not taken yet", origin=(LOGS[0], 1)))
    assert await world.restore(lost_ms) == ({Fate.PARKED: 1}, {Past.HANDLED: 1})


async def test_a_cancellation_that_comes_during_the_replay_is_not_missed() -> None:
    world = World()
    await world.publish("cancelled", 60 * SECOND, key="c")
    await world.publish("replaced", 60 * SECOND, key="r")
    lost_ms = world.lose()
    replay, putback = world.replay(lost_ms)
    await replay.look()
    await world.pass_by(100)
    await world.publish("", 0, cancel="c")
    await world.publish("newest", 60 * SECOND, key="r")
    await replay.put(putback)
    assert await replay.follow() == 1  # the key's new message was there already, so the replaced one was not put back
    await world.pass_by(70 * SECOND)
    assert world.delivered == ["newest"]


async def test_a_key_that_an_older_message_keeps_stays_with_it() -> None:
    world = World(on_same_key="keep")
    await world.publish("gone", SECOND, key="k")
    await world.pass_by(2 * SECOND)
    await world.publish("kept", 60 * SECOND, key="k")
    await world.publish("ignored", 90 * SECOND, key="k")
    await world.restore(world.lose())
    await world.pass_by(100 * SECOND)
    assert world.delivered == ["gone", "kept"]


async def test_a_dead_letter_comes_back_if_it_arrived_after_the_named_moment() -> None:
    world = World()
    await world.publish("old", -1, key="k" * 300)
    await world.pass_by(SECOND)
    since_ms = world.clock.now_ms()
    await world.publish("bad", -1, key="k" * 300)
    world.lose()
    counts, _ = await world.restore(since_ms)
    assert counts == {Fate.DEAD: 1}
    assert [reason.partition(":")[0] for reason in world.house.dead()] == ["bad_header"]
    assert (await world.restore(since_ms))[0] == {Fate.THERE: 1}


async def test_a_replay_that_was_killed_goes_on_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(order="none")
    for n in range(600):
        await world.publish(f"{n}", 60 * SECOND, log=n % 2)
    lost_ms = world.lose()
    replay, putback = world.replay(lost_ms)
    await replay.look()
    park, calls = world.house.store.park, Counter[str]()

    async def dies(batches: dict[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        calls["park"] += 1
        if calls["park"] == 2:
            first = next(iter(batches))
            await park({first: batches[first]})  # one shard of several, and no answer
            raise KeyboardInterrupt
        return await park(batches)

    monkeypatch.setattr(world.house.store, "park", dies)
    with pytest.raises(KeyboardInterrupt):
        await replay.put(putback)
    monkeypatch.undo()
    counts, _ = await world.restore(lost_ms)
    assert counts[Fate.PARKED] + counts[Fate.THERE] == 600
    assert 250 < counts[Fate.THERE] < 600
    await world.pass_by(70 * SECOND)
    assert sorted(world.delivered, key=int) == [f"{n}" for n in range(600)]
    assert {shard_of(claim.id) for claim in world.house.claims()} == set(range(SHARDS))


@pytest.mark.parametrize("on_same_key", ["replace", "keep"])
@pytest.mark.parametrize("seed", range(12))
async def test_after_any_loss_all_is_delivered_as_without_it(seed: int, on_same_key: str) -> None:
    drawn = random.Random(seed)
    world, intact = World(on_same_key=on_same_key), World(on_same_key=on_same_key)
    lost_at, lost_ms = drawn.randrange(20, 80), 0
    for n in range(100):
        delay_ms, key = drawn.randrange(0, 40) * SECOND, drawn.choice(["", "", "a", "b", "c"])
        if on_same_key == "keep" and lost_at < n <= lost_at + 10:
            key = ""  # an empty store takes a key that the lost one would have kept for an older message
        cancel, log = (key if drawn.random() < 0.3 else ""), drawn.randrange(2)
        for place in (world, intact):
            await place.publish(f"{n}", delay_ms, "" if cancel else key, log, cancel)
            await place.pass_by(500)
        if n == lost_at:
            lost_ms = world.lose()
        if n == lost_at + 10:
            await world.restore(lost_ms + 1)
            for place in (world, intact):
                await place.pass_by(100)
    for place in (world, intact):
        await place.pass_by(60 * SECOND)
    lost = Counter(intact.delivered) - Counter(world.delivered)
    more = Counter(world.delivered) - Counter(intact.delivered)
    assert (lost, more) == (Counter(), Counter())


def test_beside_a_journal_the_intake_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their messages have other ids, so each would come twice."""
    file = tmp_path / "postdate.toml"
    file.write_text(
        f'journal.url = "sqlite:///{tmp_path}/journal.db"\n[routes.pay]\nbroker = "kafka"\nintercept = "pay.delay"\n'
        'deliver_to = "pay"\n'
    )
    assert run_command(["restore", "pay", "--from-intake", "--yes", "--config", str(file)]) == REFUSED
    assert "Run: postdate restore" in capsys.readouterr().err
