"""After the broker's answer: gone, later, or dead; and nothing is forgotten while the store is away."""

from __future__ import annotations

import asyncio

import pytest

from bridge.core.errors import ShardsUnavailable, StoreUnavailable
from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.reasons import Reason, ReasonKind
from bridge.pipeline.settle import RetryRules, Verdict, verdict
from bridge.telemetry.subject import Subject
from tests.unit.house import LEASE_MS, House, turns

RULES = RetryRules(first_ms=1000, factor=2, max_ms=60_000, attempts=3)
FULL = Refusal(Reason(ReasonKind.NACKED, "a queue is full"))
TOO_LARGE = Refusal(Reason(ReasonKind.TOO_LARGE, "its body has {size} bytes", {"size": 9}), lasting=True)
AWAY = Refusal(Reason(ReasonKind.NO_LEADER, "a partition has no leader"), again_ms=5)


def tries(house: House) -> list[int]:
    """The tries that each published claim had failed before."""
    return [claim.tries for claim in house.claims()]


@pytest.mark.parametrize(
    ("tries", "refusal", "spread", "decided"),
    [
        (0, FULL, 0, Verdict(1000, 1)),
        (1, FULL, 0, Verdict(2000, 2)),
        (1, FULL, 1, Verdict(1600, 2)),
        (2, FULL, 0, Verdict(None, 3)),
        (9, FULL, 0, Verdict(None, 10)),
        (0, TOO_LARGE, 0, Verdict(None, 1)),
        (9, AWAY, 0, Verdict(5, 9)),
    ],
)
def test_what_a_refusal_means(tries: int, refusal: Refusal, spread: float, decided: Verdict) -> None:
    assert verdict(tries, refusal, RULES, spread) == decided


async def test_a_confirmed_message_is_gone_and_its_lateness_counted() -> None:
    house = House()
    house.publish("a", 1000)
    await house.park()
    house.clock.advance(1007)
    assert await house.deliver() == 1
    assert house.parked() == 0
    assert house.count("delivered") == house.settler.delivered == 1
    assert house.lateness.max_ms == pytest.approx(7)
    assert house.leases.held() == []


async def test_a_refused_message_comes_again_later_with_one_try_more() -> None:
    house = House()
    house.sink.script(FULL)
    house.publish("a")
    await house.park()
    await house.deliver()
    assert await house.deliver() == 0
    assert house.parked() == 1
    assert house.health.sentence().startswith("messages of route orders are refused")
    house.clock.advance(501)
    assert await house.deliver() == 1
    assert tries(house) == [0, 1]
    assert house.parked() == 0
    assert "are refused" not in house.health.sentence()


async def test_each_call_to_the_store_is_measured_as_what_it_is() -> None:
    house = House()
    house.sink.script(FULL, TOO_LARGE)
    house.publish("released")
    house.publish("buried")
    await house.park()
    await house.deliver()
    measured = {call: sum(times.counts) for call, times in house.metrics.store_s.items()}
    assert measured == {"park": 1, "claim": 1, "settle": 0, "release": 1, "bury": 1}


async def test_a_message_that_is_refused_for_the_last_time_is_dead_with_its_reason() -> None:
    house = House()
    house.sink.script(FULL, FULL, FULL)
    house.publish("a")
    await house.park()
    for _ in range(4):
        await house.deliver()
        house.clock.advance(60_000)
    assert house.bodies() == ["a"] * 3
    assert house.dead() == ["nacked: a queue is full"]


async def test_what_can_never_be_taken_is_dead_at_once() -> None:
    house = House()
    house.sink.script(TOO_LARGE)
    house.publish("a")
    await house.park()
    await house.deliver()
    assert house.dead() == ["too_large: its body has 9 bytes"]
    assert house.bodies() == ["a"]


async def test_an_unknown_outcome_is_tried_again_at_once_under_the_same_id_and_counts_no_try() -> None:
    house = House()
    house.sink.script(Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.UNKNOWN)
    house.publish("a")
    await house.park()
    for _ in range(5):
        await house.deliver()
    assert house.bodies() == ["a"] * 5
    assert len({claim.public_id for claim in house.sink.published}) == 1
    assert set(tries(house)) == {0}
    assert house.count("delivered") == 1


async def test_results_are_recorded_when_the_store_is_back() -> None:
    house = House()
    house.sink.script(Outcome.CONFIRMED, FULL, TOO_LARGE)
    for body in "abc":
        house.publish(body)
    await house.park()
    await house.claimer.once()
    house.memory.away = "the store is away"
    with pytest.raises(StoreUnavailable):
        await house.deliver()
    with pytest.raises(StoreUnavailable):
        await house.settler.once()
    assert house.settler.pending() == 3
    assert len(house.leases.held()) == 3

    house.memory.away = ""
    await house.settler.once()
    assert house.settler.pending() == 0
    assert house.leases.held() == []
    assert (house.count("delivered"), house.parked(), house.dead()) == (1, 1, ["too_large: its body has 9 bytes"])


async def test_a_settle_after_the_lease_was_recovered_settles_nothing() -> None:
    house = House()
    house.publish("a")
    await house.park()
    await house.claimer.once()
    house.clock.advance(LEASE_MS)
    neighbour = House(house.memory, "bbbbbb")
    assert await neighbour.store.recover([0, 1, 2, 3], LEASE_MS) == 1
    await turns()
    await house.settler.once()
    assert house.parked() == 1
    assert house.leases.held() == []  # it has no say any more, so it does not renew either


async def test_a_route_that_delivers_after_a_refusal_is_well_again_though_nothing_more_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.telemetry.health._CALM_S", 0.05)
    house = House()
    house.sink.script(FULL)
    house.publish("a")
    await house.park()
    await house.deliver()
    assert Subject("route", "orders") in house.health.troubles()
    house.clock.advance(501)
    await house.deliver()
    assert house.count("delivered") == 1
    async with asyncio.timeout(5):
        while house.health.troubles():  # noqa: ASYNC110 (time alone ends it)
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("leaping_time")
async def test_a_shard_that_cannot_record_results_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    for key in "abcdefgh":
        house.publish(key, 1000, key)
    await house.park()
    house.clock.advance(1007)
    settle, away = house.store.settle, 1

    async def half(claims: list[Claim]) -> int:
        worked = await settle([claim for claim in claims if claim.shard != away])
        if worked < len(claims):
            raise ShardsUnavailable("this node is away", frozenset({away}), worked)
        return worked

    monkeypatch.setattr(house.store, "settle", half)
    assert await house.deliver() == 8
    left = house.leases.held()
    assert {claim.shard for claim in left} == {away}
    assert house.settler.pending() == len(left)
    monkeypatch.setattr(house.store, "settle", settle)
    async with asyncio.timeout(10):
        while house.settler.pending():
            await asyncio.sleep(0.05)
            await house.settler.once()
    assert house.leases.held() == []
    assert house.count("delivered") == 8


async def test_after_a_stop_results_are_settled_without_gathering() -> None:
    house = House()
    house.publish("a")
    await house.park()
    settling = asyncio.create_task(house.settler.run())
    house.settler.stop()
    await house.claimer.once()
    await turns(20)
    assert house.count("delivered") == 1
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
