"""The way out: in order, within the window, only under a living lease, and one instance a shard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from adapters.memory import Memory
from adapters.memory.memory_sink import HOLD
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Outcome
from bridge.core.ports import Met
from bridge.parking.identity import shard_for
from bridge.pipeline.claim import ClaimRules, next_claim_max
from bridge.telemetry.health import WELL
from bridge.telemetry.subject import STORE, STORE_CLAIM, Subject
from tests.unit.house import DRAIN_MS, LEASE_MS, RULES, SHARDS, House, turns

HOUR_MS = 3_600_000
SHARD = shard_for(b"", SHARDS)


async def filled(number: int, **how: object) -> House:
    """A house with so many messages that are due, all of one order key."""
    house = House(**how)  # type: ignore[arg-type]
    for n in range(number):
        house.publish(f"{n}")
    await house.park()
    return house


def numbers(upto: int) -> list[str]:
    return [str(n) for n in range(upto)]


@asynccontextmanager
async def running(house: House) -> AsyncIterator[None]:
    """The loop itself, until the test is through with it."""
    task = asyncio.create_task(house.claimer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(house: House, published: int) -> None:
    """Wait until so much was published."""
    async with asyncio.timeout(5):
        while len(house.sink.published) < published:  # noqa: ASYNC110 (the loop decides when)
            await asyncio.sleep(0.001)


async def until_troubles(house: House, is_so: Callable[[Container[Subject]], bool]) -> None:
    """Wait until the troubles that the house reports are such."""
    async with asyncio.timeout(5):
        while not is_so(house.health.troubles()):  # noqa: ASYNC110 (the loop decides when)
            await asyncio.sleep(0.001)


# -- one pass -------------------------------------------------------------------------------------------------------


async def test_no_more_is_claimed_than_may_be_unsettled_though_the_broker_would_take_it() -> None:
    house = await filled(50, rules=replace(RULES, held_max=20))
    for in_all in (20, 40):
        for _ in range(10):
            await house.claimer.once(idle=False)
            await turns()
        assert len(house.bodies()) == in_all
        await house.settler.once()


async def test_messages_leave_in_the_order_they_came() -> None:
    house = await filled(250)
    while await house.deliver():
        pass
    assert house.bodies() == numbers(250)
    assert house.count("delivered") == 250


async def test_the_first_pass_of_a_burst_is_small_and_later_ones_grow() -> None:
    house = await filled(1000, rules=replace(RULES, batch_max=500, held_max=5000), window=5000)
    passes = [await house.deliver() for _ in range(5)]
    assert passes == [64, 128, 256, 500, 52]
    assert house.bodies() == numbers(1000)
    house.publish("later")
    await house.park()
    await house.deliver()
    assert house.claimer._most == 64


@pytest.mark.parametrize(
    ("most", "fullest", "then"),
    [(64, 64, 128), (256, 256, 500), (500, 500, 500), (500, 125, 500), (500, 124, 64), (64, 0, 64), (64, 10, 64)],
)
def test_a_full_claim_lets_the_next_one_take_twice_as_much(most: int, fullest: int, then: int) -> None:
    assert next_claim_max(most, fullest, 500) == then


async def test_nothing_leaves_before_it_is_due() -> None:
    house = House()
    house.publish("a", 1000)
    await house.park()
    house.clock.advance(999)
    assert await house.deliver() == 0
    house.clock.advance(1)
    assert await house.deliver() == 1


async def test_no_more_is_in_flight_than_the_window_has_room_for() -> None:
    house = await filled(50, window=20)
    house.sink.answer = HOLD
    house.leases.take_over(frozenset({SHARD}))
    assert [await house.claimer.once() for _ in range(3)] == [20, 0, 0]
    house.sink.answer_held()
    await turns()
    await house.settler.once()
    assert await house.claimer.once() == 20
    assert house.bodies() == numbers(40)


async def test_a_window_smaller_than_the_number_of_shards_serves_the_most_overdue() -> None:
    house = House(window=1)
    for number in range(40):
        house.publish(f"{number}", order_key=str(number))
    await house.park()
    for _ in range(200):
        await house.deliver()
    assert sorted(house.bodies(), key=int) == numbers(40)


async def test_a_blocked_sink_claims_nothing() -> None:
    house = await filled(5)
    house.sink.block(True)
    assert await house.claimer.once() == 0
    assert house.parked() == 5
    house.sink.block(False)
    assert await house.deliver() == 5


async def test_what_was_claimed_is_published_although_answers_are_outstanding() -> None:
    house = await filled(6, rules=replace(RULES, batch_max=2))
    house.sink.answer = HOLD
    for _ in range(3):
        await house.claimer.once()
    assert house.bodies() == numbers(6)
    assert len(house.leases.held()) == 6


async def test_a_lease_that_ended_before_the_reply_was_read_is_not_published() -> None:
    house = await filled(3, rules=ClaimRules(0, DRAIN_MS, 1, 100, 1 << 20, 1000))
    await house.claimer.once()
    assert house.bodies() == []
    assert house.leases.held() == []
    assert house.parked() == 3


async def test_a_lease_that_ended_and_could_not_be_released_is_not_renewed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = await filled(3, rules=ClaimRules(0, DRAIN_MS, 1, 100, 1 << 20, 1000))

    async def away(_: object) -> int:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(house.store, "release", away)
    with pytest.raises(StoreUnavailable):
        await house.claimer.once()
    assert house.leases.held() == []
    assert await house.store.recover([SHARD], LEASE_MS) == 3


async def test_a_store_that_fails_in_one_shard_delivers_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    house = await filled(3)
    other = (SHARD + 1) % SHARDS
    asked: list[int] = []
    claim = house.store.claim

    async def half(shards: list[int], *rest: int) -> dict[int, object]:
        asked.extend(shards)
        replies: dict[int, object] = dict(await claim([shard for shard in shards if shard != other], *rest))
        return {**({other: StoreUnavailable("this node is away")} if other in shards else {}), **replies}

    monkeypatch.setattr(house.store, "claim", half)
    await house.claimer.once()
    assert house.bodies() == numbers(3)
    assert house.health.sentence() == "nothing is delivered from some shards (1): this node is away."
    await house.claimer.once()
    assert asked.count(other) == 1, "it rests for a while"
    assert "this node is away" in house.health.sentence(), "and is still said to be away"


async def test_a_store_that_is_away_is_not_called_away_for_some_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    house = await filled(3)
    await house.claimer.once()
    asked: list[int] = []

    async def down(shards: list[int], *_: int) -> dict[int, object]:
        asked.extend(shards)
        return dict.fromkeys(shards, StoreUnavailable("Redis does not answer"))

    monkeypatch.setattr(house.store, "claim", down)
    for shard in range(2):
        house.wake.learnt(shard, 1)
        await house.claimer.once()
        assert shard in asked
        assert house.health.sentence() == WELL, "no shard has answered since the first failure"
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    house.wake.learnt(0, 1)
    with pytest.raises(StoreUnavailable):
        await house.claimer.once()
    assert "some shards" not in house.health.sentence()


async def test_leases_are_renewed_while_the_broker_takes_its_time() -> None:
    house = await filled(3)
    house.sink.answer = HOLD
    await house.claimer.once()
    for claim in house.leases.held():
        claim.lease_ends -= LEASE_MS / 2000  # half of it has passed
    house.clock.advance(LEASE_MS / 2)
    await house.recovery.renew()
    house.clock.advance(LEASE_MS * 0.9)
    assert await house.store.recover(range(SHARDS), LEASE_MS) == 0
    house.sink.answer_held()
    await turns()
    await house.settler.once()
    assert house.count("delivered") == 3


async def test_young_leases_are_left_alone() -> None:
    house = await filled(3)
    house.sink.answer = HOLD
    await house.claimer.once()
    house.memory.away = "nobody should ask"
    await house.recovery.renew()


# -- shares ---------------------------------------------------------------------------------------------------------


async def test_a_shard_is_handed_over_when_the_last_message_in_flight_is_settled() -> None:
    house = await filled(3)
    neighbour = House(house.memory, "bbbbbb")
    house.sink.answer = HOLD
    await house.claimer.once()
    house.publish("later")
    await house.park()

    house.leases.take_over(frozenset())
    await house.leases.hand_over()
    assert await neighbour.deliver() == 0

    house.sink.answer_held()
    await turns()
    await house.settler.once()
    await house.leases.hand_over()
    assert await neighbour.deliver() == 1
    assert neighbour.bodies() == ["later"]


@pytest.mark.parametrize("mine", [frozenset(), frozenset(range(SHARDS))])
async def test_no_other_instance_drains_a_shard_whose_messages_the_broker_keeps_waiting(mine: frozenset[int]) -> None:
    house = await filled(3)
    neighbour = House(house.memory, "bbbbbb")
    house.sink.answer = HOLD
    await house.claimer.once()

    house.leases.take_over(mine)
    for _ in range(3):
        house.clock.advance(DRAIN_MS - 1000)
        await house.recovery.renew()
        await house.leases.hand_over()
        claimed = (await neighbour.store.claim([SHARD], 1, 1, LEASE_MS, DRAIN_MS))[SHARD]
        assert not isinstance(claimed, StoreUnavailable)
        assert claimed.owner == "aaaaaa"


async def test_a_shard_that_comes_back_before_it_was_handed_over_stays() -> None:
    house = await filled(3)
    house.sink.answer = HOLD
    await house.claimer.once()
    house.leases.take_over(frozenset())
    house.leases.take_over(frozenset(range(SHARDS)))
    house.sink.answer_held()
    await turns()
    await house.settler.once()
    await house.leases.hand_over()
    neighbour = House(house.memory, "bbbbbb")
    claimed = (await neighbour.store.claim([SHARD], 1, 1, LEASE_MS, DRAIN_MS))[SHARD]
    assert not isinstance(claimed, StoreUnavailable)
    assert claimed.owner == "aaaaaa"


async def test_a_leaving_instance_gives_back_its_claims_and_shards() -> None:
    house = await filled(3)
    house.sink.answer = HOLD
    await house.claimer.once()
    await house.leases.leave()
    neighbour = House(house.memory, "bbbbbb")
    assert await neighbour.deliver() == 3
    assert neighbour.bodies() == numbers(3)


async def test_instances_share_the_shards_and_lose_none_when_one_goes() -> None:
    memory = Memory(SHARDS, House().clock)
    houses = [House(memory, name) for name in ("aaaaaa", "bbbbbb", "cccccc")]
    members = [house.members() for house in houses]
    for _ in range(3):  # who gives a shard away keeps it for one beat more
        for instance in members:
            await instance.once()
    shares = [house.leases.shards() for house in houses]
    assert sorted(shard for share in shares for shard in share) == list(range(SHARDS))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1

    houses[1].sink.connected = False
    for instance in members:
        await instance.once()
    await members[0].once()
    assert houses[1].leases.shards() == frozenset()
    assert houses[0].leases.shards() | houses[2].leases.shards() == frozenset(range(SHARDS))


async def test_what_a_dead_neighbour_held_is_recovered_and_delivered() -> None:
    house = await filled(3)
    house.sink.answer = HOLD
    await house.claimer.once()
    neighbour = House(house.memory, "bbbbbb")
    members = neighbour.members()
    house.clock.advance(LEASE_MS)
    await members.once()
    assert await neighbour.deliver() == 3
    assert neighbour.bodies() == numbers(3)


async def test_a_beat_under_way_does_not_list_an_instance_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    house, answer = House(), asyncio.Event()
    members = house.members()
    meet = house.store.meet

    async def slow(ttl_ms: int, able: bool, health: str) -> Met:
        await answer.wait()
        return await meet(ttl_ms, able, health)

    monkeypatch.setattr(house.store, "meet", slow)
    beat = asyncio.create_task(members.once())
    await turns()
    goodbye = asyncio.create_task(members.leave())
    await turns()
    answer.set()
    await asyncio.gather(beat, goodbye)
    await members.once()
    assert house.memory.instances == {}


# -- the loop -------------------------------------------------------------------------------------------------------


async def test_the_loop_delivers_what_is_parked_while_it_sleeps() -> None:
    house = House()
    async with running(house):
        await asyncio.sleep(0.01)
        for number in range(5):
            house.publish(f"{number}")
        await house.park()
        await until(house, 5)
    assert house.bodies() == numbers(5)


async def test_the_loop_goes_on_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.telemetry.reconnect.FIRST_S", 0.001)
    house = await filled(3)
    house.memory.away = "the store is away"
    async with running(house):
        await until_troubles(house, lambda troubles: STORE_CLAIM in troubles)
        house.memory.away = ""
        await until(house, 3)
        await until_troubles(house, lambda troubles: not troubles)


@pytest.mark.parametrize("why", ["no room at the broker", "no shard to drain"])
@pytest.mark.usefixtures("leaping_time")
async def test_a_loop_that_has_nothing_to_claim_for_calls_no_store_away(why: str) -> None:
    """Redis and the broker stood still together, and Redis answers again: only the broker is away."""
    house = await filled(3)
    house.memory.away = "the store is away"
    async with running(house):
        await until_troubles(house, lambda troubles: STORE_CLAIM in troubles)
        if why == "no room at the broker":
            house.sink.connected = False
        else:
            house.leases.take_over(frozenset())
        house.memory.away = ""
        house.health.answered(STORE)
        await until_troubles(house, lambda troubles: not troubles)


async def test_the_loop_goes_on_when_the_sink_has_room_again() -> None:
    house = await filled(6, window=2)
    house.sink.answer = HOLD
    async with running(house):
        for batch in (2, 4, 6):
            await until(house, batch)
            assert len(house.sink.published) == batch
            house.sink.answer_held()
            await turns()
            await house.settler.once()
    assert house.bodies() == numbers(6)


async def test_a_stopping_loop_ends_and_claims_nothing_more() -> None:
    house = await filled(3)
    task = asyncio.create_task(house.claimer.run())
    house.claimer.stop()
    await asyncio.wait_for(task, 5)
    assert house.parked() == 3


def at_each_claim(house: House, do: Callable[[], Awaitable[None]]) -> None:
    """Do this before the store is asked for a claim."""
    claim = house.store.claim

    async def first(*args: Any) -> Any:
        await do()
        return await claim(*args)

    cast("Any", house.store).claim = first


async def test_while_much_is_overdue_the_next_claim_is_sent_before_this_one_is_published() -> None:
    house = await filled(600, rules=replace(RULES, batch_max=250))
    house.claimer._most = 250
    published: list[int] = []

    async def note() -> None:
        published.append(len(house.bodies()))

    at_each_claim(house, note)
    assert await house.claimer.once() == 250
    assert published == [0, 0]
    while await house.deliver():
        pass
    assert house.bodies() == numbers(600)
    assert house.count("delivered") == 600


async def test_a_stop_waits_for_the_claim_that_was_sent_ahead_and_holds_what_it_took() -> None:
    house = await filled(600, rules=replace(RULES, batch_max=250))
    house.claimer._most = 250
    house.sink.answer = HOLD
    asked, go = asyncio.Event(), asyncio.Event()
    first = True

    async def gate() -> None:
        nonlocal first
        if not first:
            asked.set()
            await go.wait()
        first = False

    at_each_claim(house, gate)
    task = asyncio.create_task(house.claimer.run())
    await asyncio.wait_for(asked.wait(), 5)
    await turns()
    house.claimer.stop()
    await turns(20)
    assert not task.done()
    go.set()
    await asyncio.wait_for(task, 5)
    assert len(house.leases.held()) == 500
    assert house.parked() == 100


async def test_a_claim_that_was_sent_ahead_and_failed_leaves_its_messages_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.telemetry.reconnect.FIRST_S", 0.001)
    house = await filled(600, rules=replace(RULES, batch_max=250))
    calls = 0

    async def fail_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("a moment")

    at_each_claim(house, fail_once)
    async with running(house):
        await until(house, 600)
    assert house.bodies() == numbers(600)


async def test_every_message_leaves_once_under_random_answers() -> None:
    house = await filled(300, window=50)
    for _ in range(50):
        house.sink.script(Outcome.CONFIRMED, Outcome.UNKNOWN, HOLD)
    for turn in range(500):
        await house.deliver()
        if turn % 10 == 0:
            house.sink.answer_held()
            await turns()
    house.sink.answer_held()
    await turns()
    await house.settler.once()
    assert house.count("delivered") == 300
    assert set(house.bodies()) == set(numbers(300))
    assert house.parked() == 0


def tamper(house: House, change: bytes) -> bytes:
    """Overwrite the beginning of the first envelope; its id."""
    messages = house.memory.shards[SHARD].messages
    message_id = min(messages)
    messages[message_id] = change + messages[message_id][len(change) :]
    return message_id


async def test_a_damaged_message_is_buried_at_once_logged_once_and_delays_no_other() -> None:
    house = await filled(3)
    message_id = tamper(house, b"\xff\xff")
    with capture_logs() as lines:
        while await house.deliver():
            pass
        house.clock.advance(LEASE_MS + 1)
        await house.store.recover(range(SHARDS), LEASE_MS)
        await house.deliver()
    assert house.bodies() == numbers(3)[1:]
    assert [why.partition(":")[0] for why in house.dead()] == ["damaged"]
    assert [(line["event"], line["ids"]) for line in lines] == [("dead letters", [message_id.decode()])]


async def test_a_message_of_a_newer_version_waits_is_named_once_and_health_says_what_to_do() -> None:
    house = await filled(3)
    message_id = tamper(house, b"\x02")
    with capture_logs() as lines:
        for _ in range(3):
            await house.deliver()
            house.clock.advance(LEASE_MS + 1)
            await house.store.recover(range(SHARDS), LEASE_MS)
    assert house.bodies() == numbers(3)[1:]
    assert [line["ids"] for line in lines if line["event"] != "trouble"] == [[message_id.decode()]]
    assert "start an instance of that version" in house.health.sentence()
    assert house.dead() == []
    house.memory.shards[SHARD].messages[message_id] = b"\x01" + house.memory.shards[SHARD].messages[message_id][1:]
    await house.deliver()
    assert sorted(house.bodies()) == numbers(3)


async def test_leases_are_renewed_and_recovered_while_the_instances_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a Cluster the list is on one node, and the claims are on others."""
    house = House()
    members = house.members()
    await members.once()
    house.publish("held", 0)
    await house.park()
    house.sink.answer = HOLD
    await house.deliver()

    async def away(*_: object) -> None:
        raise StoreUnavailable("one node of the cluster is away")

    monkeypatch.setattr(house.store, "meet", away)
    calls: list[str] = []
    for name in ("renew", "recover"):
        monkeypatch.setattr(house.store, name, _noted(getattr(house.store, name), calls, name))
    for claim in house.leases.held():
        claim.lease_ends = 0
    with pytest.raises(StoreUnavailable):
        await members.once()
    assert calls == ["renew", "recover"]


def _noted(call: Callable[..., Awaitable[int]], calls: list[str], name: str) -> Callable[..., Awaitable[int]]:
    async def noted(*args: object) -> int:
        calls.append(name)
        return await call(*args)

    return noted


async def test_a_shard_is_handed_over_although_the_broker_does_not_confirm_a_message_of_it() -> None:
    """One queue has lost its majority. The other messages of the shard would wait for it, at no instance."""
    house = House()
    other = House(house.memory, "bbbbbb")
    house.sink.script(HOLD)
    house.publish("unconfirmed", 0, order_key="k")
    await house.park()
    await house.deliver()
    house.leases.take_over(frozenset())
    house.publish("another", 0, order_key="k")
    await house.park()
    for waited_s, there in ((0, []), (31, ["unconfirmed", "another"])):
        for claim in house.leases.held():
            claim.sent_s -= waited_s
        await house.leases.hand_over()
        await house.recovery.once()
        for _ in range(SHARDS):
            await other.deliver()
        assert other.bodies() == there
