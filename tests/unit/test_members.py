"""Several instances at one store: by load, by turns where their routes differ, and beside an old version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from adapters.memory import Memory
from adapters.memory.memory_sink import HOLD
from bridge.core.errors import StoreUnavailable
from bridge.core.message import no_route
from bridge.process.members import BEAT_S, Loads, Members, PeerReport, candidates, read_deal, read_peer
from bridge.telemetry.subject import STORE
from tests.unit.house import DRAIN_MS, LEASE_MS, SHARDS, House, turns

ALL = frozenset(range(SHARDS))


def pair() -> tuple[House, House]:
    memory = Memory(SHARDS, House().clock)
    return House(memory, "aaaaaa"), House(memory, "bbbbbb")


async def beats(*houses: House, routes: tuple[tuple[str, ...], ...] = (), number: int = 3) -> None:
    """So many beats of each, in turn."""
    await beats_of([house.members(*(routes[n] if routes else ())) for n, house in enumerate(houses)], number)


async def beats_of(members: Sequence[Members], number: int = 3) -> None:
    """The same of members that are kept."""
    for _ in range(number):
        for instance in members:
            await instance.once()


@pytest.mark.usefixtures("leaping_time")
async def test_an_instance_reports_its_first_shards_at_once_and_then_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, reported = House(), list[frozenset[int]]()
    house.leases.take_over(frozenset())

    def report() -> dict[str, object]:
        reported.append(house.leases.shards())
        return {}

    members = house.members()
    monkeypatch.setattr(members, "_report", report)
    beating = asyncio.create_task(members.run())
    await asyncio.sleep(BEAT_S / 2)
    assert reported == [frozenset(), ALL]
    await asyncio.sleep(2 * BEAT_S)
    beating.cancel()
    assert reported == [frozenset(), ALL, ALL, ALL]


@pytest.mark.usefixtures("leaping_time")
async def test_an_instance_reports_soon_again_after_a_report_that_said_that_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, reported = House(), list[bool]()
    meet = house.store.meet

    async def away(*_: object) -> object:
        raise StoreUnavailable("Redis does not answer")

    def report() -> dict[str, object]:
        reported.append(STORE in house.health.troubles())
        return {}

    members = house.members()
    monkeypatch.setattr(members, "_report", report)
    monkeypatch.setattr(house.store, "meet", away)
    beating = asyncio.create_task(members.run())
    await asyncio.sleep(BEAT_S / 2)
    monkeypatch.setattr(house.store, "meet", meet)
    await asyncio.sleep(BEAT_S)
    beating.cancel()
    assert reported == [False, True, False]


# -- by load --------------------------------------------------------------------------------------------------------


async def test_an_instance_with_all_the_load_gives_half_of_it_away() -> None:
    house, other = pair()
    members = [house.members(), other.members()]
    for _ in range(3):
        for each in members:
            await each.once()
    hot = sorted(house.leases.shards())
    house.leases._taken = dict.fromkeys(hot, 1000)
    for _ in range(3):
        for each in members:
            await each.once()
    assert house.leases.shards() | other.leases.shards() == ALL
    assert len(house.leases.shards() & set(hot)) == 1
    assert not house.leases.shards() & other.leases.shards()


async def test_a_shard_stays_with_its_holder_until_the_next_one_has_heard_of_it() -> None:
    house, other = pair()
    first, second = house.members(), other.members()
    await first.once()
    await second.once()
    new = other.leases.shards()
    assert new
    await first.once()
    assert house.leases.shards() == ALL
    await first.once()
    assert house.leases.shards() == ALL - new


@pytest.mark.parametrize(("turn_s", "moves"), [(0.0, 1), (10.0, 0)])
async def test_the_third_of_three_busy_shards_changes_sides_when_its_time_has_come(
    monkeypatch: pytest.MonkeyPatch, turn_s: float, moves: int
) -> None:
    house, other = pair()
    members = [house.members(), other.members()]
    house.leases._taken = {0: 9000, 1: 9000, 2: 9000}
    for _ in range(2):
        for each in members:
            await each.once()
    before = read_deal((await house.store.deal("", "")).deal, SHARDS)
    monkeypatch.setattr("bridge.process.members.TURN_S", turn_s)
    await members[0].once()
    after = read_deal((await house.store.deal("", "")).deal, SHARDS)
    assert sorted(before[:3].count(name) for name in ("aaaaaa", "bbbbbb")) == [1, 2]
    assert sum(old != new for old, new in zip(before, after, strict=True)) == moves


async def test_two_that_write_a_deal_at_once_follow_the_one_that_was_first() -> None:
    house, other = pair()
    await beats(house, other)
    before = (await house.store.deal("", "")).deal
    assert (await house.store.deal(before, json.dumps(["aaaaaa"] * SHARDS))).deal != before
    late = json.dumps(["bbbbbb"] * SHARDS)
    assert (await other.store.deal(before, late)).deal == json.dumps(["aaaaaa"] * SHARDS)


@pytest.mark.parametrize("text", ["", "no json", "{}", '["a"]', "[1, 2, 3, 4]", "null"])
def test_a_text_that_is_not_a_deal_counts_as_none(text: str) -> None:
    assert read_deal(text, SHARDS) == [""] * SHARDS


async def test_a_lost_deal_or_one_of_another_number_of_shards_is_replaced() -> None:
    house, other = pair()
    await beats(house, other)
    house.memory.deal = ""
    await beats(house, other)
    assert house.leases.shards() | other.leases.shards() == ALL
    assert len(house.leases.shards()) == len(other.leases.shards()) == SHARDS // 2


async def test_an_instance_whose_parent_died_stays_listed() -> None:
    house, other = pair()
    members = [house.members(), other.members()]
    await beats_of(members)
    await members[0].leave(orphaned=True)
    await members[1].leave()
    assert list(house.memory.instances) == ["aaaaaa"]


async def test_an_instance_that_becomes_able_says_so_before_its_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.process.members.BEAT_S", 60.0)
    monkeypatch.setattr("bridge.process.members._LOOKS", 60_000)
    house = House()
    house.sink.connected = False
    beating = asyncio.create_task(house.members().run())
    try:
        await turns(20)
        assert [able for _, able, _ in house.memory.instances.values()] == [False]
        house.sink.connect()
        for _ in range(5000):
            await asyncio.sleep(0.001)
            if house.leases.shards() == ALL and all(able for _, able, _ in house.memory.instances.values()):
                break
        assert [able for _, able, _ in house.memory.instances.values()] == [True]
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


def test_a_load_stays_the_same_in_sum_while_its_shard_changes_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bridge.process.members.time.monotonic", lambda: now[0])
    old, new = Loads(), Loads()
    for second in range(120):
        now[0] += 1.0
        old.add({3: 100} if second < 60 else {})
        new.add({} if second < 60 else {3: 100})
        if second > 50:
            assert old.as_json().get("3", 0.0) + new.as_json().get("3", 0.0) == pytest.approx(100, rel=0.01)
    assert new.as_json() == {"3": pytest.approx(100, rel=0.01)}


# -- steps of the store's clock ----------------------------------------------------------------------------------------


async def test_after_a_step_forward_leases_of_living_instances_are_renewed_before_any_is_recovered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("bridge.pipeline.leases.time.monotonic", lambda: now[0])
    house, other = pair()
    members = [house.members(), other.members()]
    for _ in range(3):
        for each in members:
            await each.once()
    house.sink.answer = other.sink.answer = HOLD
    for number in range(40):
        house.publish(f"{number}", order_key=f"{number}")
    await house.park()
    assert await house.deliver() + await other.deliver() == 40
    house.clock.step(3_600_000)
    for each in members:
        await each.once()
    now[0] += 4.0
    for each in members:
        await each.once()
    assert len(house.leases) + len(other.leases) == 40
    assert house.metrics.recovered + other.metrics.recovered == 0


async def test_the_leases_of_a_dead_instance_are_recovered_after_a_step_forward_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("bridge.pipeline.leases.time.monotonic", lambda: now[0])
    dead, living = pair()
    dead.sink.answer = HOLD
    dead.publish("a")
    await dead.park()
    assert await dead.deliver() == 1
    members = living.members()
    living.clock.step(3_600_000)
    for _ in range(2):  # a clock that steps all the time postpones it once only
        await members.once()
        now[0] += 3.0
        living.clock.step(3_600_000)
    await members.once()
    assert living.metrics.recovered == 1


# -- reports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", ["{}", "[]", "no json", '{"routes": 3, "loads": {}}', '{"loads": {}}'])
def test_a_report_that_cannot_be_read_announces_nothing(report: str) -> None:
    assert read_peer(report) == PeerReport(frozenset(), {})


async def test_an_instance_without_a_readable_report_gets_no_shard() -> None:
    house, other = pair()
    await other.store.meet(DRAIN_MS, True, '{"shards": [1, 3]}')
    await beats(house)
    assert house.leases.shards() == ALL


# -- routes that differ ---------------------------------------------------------------------------------------------


def test_those_that_have_all_routes_come_first() -> None:
    said = {
        "a": read_peer('{"routes": ["orders"], "loads": {}}'),
        "b": read_peer('{"routes": ["orders", "refunds"], "loads": {"0": 1.5}}'),
    }
    assert candidates(said) == ["b"]
    assert said["b"].loads == {0: 1.5}


async def test_the_one_that_has_every_route_drains_every_shard() -> None:
    house, other = pair()
    await beats(house, other, routes=(("orders",), ("orders", "refunds")))
    assert (house.leases.shards(), other.leases.shards()) == (frozenset(), ALL)


async def test_a_reload_that_reaches_instances_one_after_the_other_moves_no_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, other = pair()
    first, second = members = [house.members(), other.members()]
    await beats_of(members)
    before = house.leases.shards()
    first._sharing.follow(["orders", "refunds"])
    await beats_of(members)
    assert (house.leases.shards(), other.leases.shards()) == (before, ALL - before)
    second._sharing.follow(["orders", "refunds"])
    await beats_of(members)
    assert (house.leases.shards(), other.leases.shards()) == (before, ALL - before)
    first._sharing.follow(["orders"])
    monkeypatch.setattr("bridge.process.members.DIFFER_S", 0.0)
    await beats_of(members)
    assert (house.leases.shards(), other.leases.shards()) == (frozenset(), ALL), "it was no reload"


async def test_where_none_has_every_route_a_message_goes_to_the_one_that_has_its_route_untouched_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house, other = pair()
    await beats(house, other, routes=(("refunds",), ("orders",)))
    assert house.leases.shards() == other.leases.shards() == ALL
    for number in range(5):
        house.publish(f"{number}")
    await house.park()
    house.sink.answer = no_route("orders")
    assert await house.deliver() == 5
    assert house.parked() == 5
    assert all(shard.why == {} for shard in house.memory.shards)
    await house.leases.hand_over()
    assert await house.deliver() == 0, "it leaves the shard to the other for a moment"
    assert await other.deliver() == 5
    assert other.bodies() == [f"{number}" for number in range(5)]
    assert {claim.tries for claim in other.claims()} == {0}


async def test_an_instance_takes_a_shard_back_if_no_other_took_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pipeline.leases._AWAY_S", 0.0)
    house, other = pair()
    await beats(house, other, routes=(("refunds",), ("orders",)))
    house.publish("a")
    await house.park()
    house.sink.script(no_route("orders"))
    assert await house.deliver() == 1
    await house.leases.hand_over()
    await turns(20)
    assert await house.deliver() == 1
    assert house.bodies() == ["a", "a"]


async def test_while_they_take_turns_no_claim_takes_much_that_must_be_given_back() -> None:
    house, other = pair()
    await beats(house, other, routes=(("refunds",), ("orders",)))
    for number in range(300):
        house.publish(f"{number}")
    await house.park()
    house.sink.answer = no_route("orders")
    assert await house.deliver() == 64
    assert await other.deliver() == 0, "the first one has not handed over"
    await house.leases.hand_over()
    house.leases._take_back(house.leases._given_way.copy().pop())
    assert await house.deliver() == 64


async def test_a_holder_that_freezes_loses_its_shards_within_the_takeover_time() -> None:
    house, other = pair()
    await beats(house, other)
    shards = house.leases.shards()
    claimed = await house.store.claim(sorted(shards), 1, 1, LEASE_MS, DRAIN_MS)
    assert all(not isinstance(reply, Exception) for reply in claimed.values())
    for _ in range(DRAIN_MS // 1000):
        house.clock.advance(1000)
        await beats(other, number=1)
    assert other.leases.shards() == ALL
    replies = await other.store.claim(sorted(shards), 1, 1, LEASE_MS, DRAIN_MS)
    assert [getattr(reply, "owner", "failed") for reply in replies.values()] == [None] * len(shards)
    await beats(house, other)
    assert house.leases.shards() == shards
