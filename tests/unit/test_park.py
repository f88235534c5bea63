"""The way in: what becomes of each delivery, and that it is accepted when it is durable and not before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from bridge.core.message import Delivery, HeaderValue, Origin
from bridge.core.reasons import bad_headers
from bridge.delay.header import HeaderRules
from bridge.delay.trust import Trust
from bridge.parking.identity import shard_for, shard_of
from bridge.pipeline.decide import SAME_KEY, Cancellation, Parking, Rejection, Step, decide
from bridge.pipeline.round import next_run, urgent
from bridge.telemetry import reconnect
from bridge.telemetry.subject import STORE_AWAY, STORE_FULL, STORE_PARK
from tests.unit.house import ORDERS, SHARDS, House, turns

pytestmark = pytest.mark.usefixtures("without_waiting")

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
#: Routing keys of different shards.
KEY_OF = {shard_for(key, SHARDS): key.decode() for key in (b"%d" % number for number in range(50))}


def delivery(headers: dict[str, HeaderValue], **changes: Any) -> Delivery:
    return replace(Delivery(1, "orders", b"body", b"key", headers, NOW_MS), **changes)


# -- decide ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "rules", "decision"),
    [
        (delivery({"x-delay": 5000}), {}, Parking(NOW_MS + 5000, b"", False, relative=True)),
        (delivery({"x-delay": -5}), {}, Parking(NOW_MS, b"", False, relative=True)),
        (delivery({"x-deliver-at": NOW_MS + 9}), {}, Parking(NOW_MS + 9, b"", False)),
        (delivery({}), {}, Parking(NOW_MS, b"", False)),
        (delivery({"x-delay": 5, "x-delay-key": "k"}), {}, Parking(NOW_MS + 5, b"k", True, relative=True)),
        (delivery({"x-delay": 5}, message_id=b"m"), {}, Parking(NOW_MS + 5, b"\0m", False, relative=True)),
        (
            delivery({"x-delay": 5}, message_id=b"m"),
            {"message_id": "key"},
            Parking(NOW_MS + 5, b"m", True, relative=True),
        ),
        (
            delivery({"x-delay": 5}, message_id=b"m"),
            {"message_id": "ignore"},
            Parking(NOW_MS + 5, b"", False, relative=True),
        ),
        (
            delivery({"x-delay": 5, "x-delay-key": "k"}, message_id=b"m"),
            {},
            Parking(NOW_MS + 5, b"k", True, relative=True),
        ),
        (delivery({"x-delay-cancel": "k"}), {}, Cancellation(b"k")),
        (delivery({}, message_id=b"m"), {}, Parking(NOW_MS, b"", False)),
        (delivery({}, message_id=b"m"), {"message_id": "key"}, Parking(NOW_MS, b"", False)),
        (delivery({}, message_id=b"m", tombstone=True), {}, Cancellation(b"m")),
        (delivery({"x-delay-key": "k"}, message_id=b"m", tombstone=True), {}, Cancellation(b"m")),
        (delivery({"x-delay": 5}, message_id=b"m", tombstone=True), {}, Parking(NOW_MS + 5, b"\0m", False, True)),
        (delivery({"x-delay-cancel": "k"}, message_id=b"m", tombstone=True), {}, Cancellation(b"k")),
        (delivery({}, tombstone=True), {}, Parking(NOW_MS, b"", False)),
        (delivery({}, message_id=b"", tombstone=True), {}, Parking(NOW_MS, b"", False)),
        (
            delivery({"x-delay-to": b"b", "x-delay": 5}),
            {"allow_to": frozenset("b")},
            Parking(NOW_MS + 5, b"", False, True),
        ),
        (delivery({"x-delay-to": b"b"}), {}, Parking(NOW_MS, b"", False)),
        (delivery({"x-delay": "soon"}), {"on_bad": "deliver"}, Parking(NOW_MS, b"", False)),
        (delivery({"x-delay-cancel": "k"}), {"trust": Trust(queues=frozenset({b""}))}, Cancellation(b"k")),
        (delivery({}, order_key=b"a"), {"trust": Trust(False, frozenset({b"a"}))}, Parking(NOW_MS, b"", False)),
    ],
)
def test_what_becomes_of_a_delivery(given: Delivery, rules: dict[str, Any], decision: object) -> None:
    assert decide(given, replace(ORDERS, **rules)) == decision


@pytest.mark.parametrize(
    ("given", "rules", "reason"),
    [
        (delivery({"x-delay": "soon"}), {}, "bad_header: header x-delay: "),
        (delivery({"x-delay": 400 * 86_400_000}), {}, "bad_header: header x-delay: "),
        (delivery({}, fault="its header table ends early"), {}, "bad_header: its header table ends early"),
        (delivery({}, fault="its header table ends early"), {"on_bad": "deliver"}, "bad_header: its header"),
        (delivery({"x-delay-cancel": ""}), {}, "bad_header: header x-delay-cancel: "),
        (delivery({}, message_id=b"m" * 255, tombstone=True), {}, "long_key: a key of 255 bytes cannot be looked up"),
        (delivery({"x-delay-to": b"b"}), {"allow_to": frozenset()}, "not_allowed: header x-delay-to says 'b', and the"),
        (
            delivery({"x-delay-to": b"c"}),
            {"allow_to": frozenset("b"), "on_bad": "deliver"},
            "not_allowed: header x-delay-to says 'c', which is not in",
        ),
        (delivery({"x-delay-to": None}), {"allow_to": frozenset("b")}, "not_allowed: header x-delay-to says no name"),
        (delivery({"x-delay-to": b"\xff"}), {"allow_to": frozenset("b")}, "not_allowed: header x-delay-to says '"),
        (delivery({"x-delay-cancel": "k"}), {"trust": Trust(cancel=False)}, "not_allowed: header x-delay-cancel"),
        (
            delivery({"x-delay-cancel": ""}),
            {"trust": Trust(cancel=False), "on_bad": "deliver"},
            "not_allowed: header x-delay-cancel cancels nothing here, the route's cancel is false",
        ),
        (
            delivery({"x-delay": 5}, order_key=b"b\xff"),
            {"trust": Trust(queues=frozenset({b"a"}))},
            "not_allowed: the routing key 'b\\xff' is not in the route's allow_to",
        ),
        (
            delivery({"x-delay": 5}, payload=b"x" * 11),
            {"body_max": 10},
            "too_large: it has 11 bytes and limits.max_body",
        ),
    ],
)
def test_what_cannot_be_parked_is_rejected_with_a_reason(given: Delivery, rules: dict[str, Any], reason: str) -> None:
    decision = decide(given, replace(ORDERS, **rules))
    assert isinstance(decision, Rejection)
    assert str(decision.reason).startswith(reason)


# -- runs and urgent ------------------------------------------------------------------------------------------------


def step(name: str, due_ms: int, origin: Origin | None = None) -> Step:
    """ "k0" is key k in shard 0, "!" a cancellation of k, "!1" that in shard 1, "-" a message without a key, "x" a
    rejection; "f" is found by k, which it has for its message id."""
    arrival = delivery({}, origin=origin)
    if name[0] in "!x":
        shard = int(name[1:] or 0)
        return Step(arrival, Cancellation(b"k") if name[0] == "!" else Rejection(bad_headers("bad")), shard)
    if name == "f":
        return Step(arrival, Parking(due_ms, b"\0k", False), 0)
    key = b"" if name == "-" else name[0].encode()
    return Step(arrival, Parking(due_ms, key, bool(key)), int(name[1:] or 0))


def pieces(
    names: str, mode: str = "replace", due_in_ms: int = 0, heavy_max: int = 100, origin: Origin | None = None
) -> list[str]:
    """The runs of a route, as the names of their steps; those that are superseded in brackets."""
    steps = [(step(name, NOW_MS + due_in_ms, origin), name) for name in names.split()]
    given = {id(step.delivery): name for step, name in steps}
    waiting, found = deque(step for step, _ in steps), []
    while waiting:
        run = next_run(waiting, mode == "replace", NOW_MS, heavy_max)
        away = [f"({given[id(step)]})" for step, _ in run.superseded]
        found.append(" ".join([*away, *(given[id(step.delivery)] for step in run.steps)]))
    return found


@pytest.mark.parametrize("mode", ["replace", "keep", "reject"])
@pytest.mark.parametrize(
    ("names", "runs"),
    [
        ("", []),
        ("- - x -", ["- - x -"]),
        ("k0 k0 k0", ["k0 k0 k0"]),
        ("k0 m1 k0 m1", ["k0 m1 k0 m1"]),
        ("k0 k1", ["k0", "k1"]),
        ("k0 - k1 - k0", ["k0 -", "k1 -", "k0"]),
        ("k0 k1 k1 m0 m0", ["k0", "k1 k1 m0 m0"]),
        ("- ! -", ["- ! -"]),
        ("! !", ["! !"]),
        ("! k0 k0", ["! k0 k0"]),
        ("k0 ! k1", ["k0", "! k1"]),
        ("f - ! f !", ["f -", "! f", "!"]),
        ("m0 ! - f", ["m0 ! - f"]),
    ],
)
def test_a_route_goes_in_as_few_runs_as_its_order_allows(names: str, runs: list[str], mode: str) -> None:
    assert pieces(names, mode) == runs


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        ("k0 k1", ["(k0) k1"]),
        ("k0 k0 k1", ["(k0) (k0) k1"]),
        ("k0 - k1 m0 k0 k0", ["(k0) (k1) - m0 k0 k0"]),
        ("! k0 m1 m0 k1", ["(m1) (k0) ! m0 k1"]),
        ("k0 ! k1", ["k0", "! k1"]),
    ],
)
def test_what_is_replaced_at_once_and_not_due_yet_is_not_parked(names: str, runs: list[str]) -> None:
    assert pieces(names, due_in_ms=1000) == runs
    for mode in ("keep", "reject"):
        assert "(" not in "".join(pieces(names, mode, 1000))


@pytest.mark.parametrize(("due_in_ms", "runs"), [(99, ["k0", "k1"]), (100, ["(k0) k1"])])
def test_what_a_consumer_might_get_before_it_is_replaced_is_parked(due_in_ms: int, runs: list[str]) -> None:
    assert pieces("k0 k1", due_in_ms=due_in_ms) == runs


def test_a_record_waits_until_every_shard_has_marked_the_cancellations_before_it() -> None:
    """After a crash in between, a cancellation without its mark would cancel the record."""
    assert pieces("! !1 k0", origin=(b"log", 1)) == ["! !1", "k0"]
    assert pieces("!1 ! k0", origin=(b"log", 1)) == ["!1 !", "k0"]
    assert pieces("! ! k0", origin=(b"log", 1)) == ["! ! k0"]


def test_a_record_of_a_log_is_parked_although_a_later_one_replaces_it() -> None:
    assert pieces("k0 k1", due_in_ms=1000, origin=(b"log", 1)) == ["k0", "k1"]


def test_a_run_bounds_keys_cancellations_and_dead_letters_and_nothing_else() -> None:
    assert pieces("- k0 - ! - m0 - x - f f", heavy_max=1) == ["- k0 -", "! -", "m0 -", "x - f f"]
    assert pieces("k0 ! x m0 m0", heavy_max=2) == ["k0", "! x", "m0 m0"]


@pytest.mark.parametrize(
    ("given", "soon"),
    [
        ([delivery({"x-delay": HOUR_MS})], False),
        ([delivery({"x-delay": HOUR_MS}), delivery({"x-delay": 0})], True),
        ([delivery({"x-delay-cancel": "k"})], True),
        ([delivery({"x-delay": "soon"})], False),
    ],
)
def test_what_is_due_soon_is_not_kept_waiting_for_more(given: list[Delivery], soon: bool) -> None:
    assert urgent([Step(delivery, decide(delivery, ORDERS), 0) for delivery in given], NOW_MS) is soon


# -- the loop -------------------------------------------------------------------------------------------------------


async def test_what_is_parked_is_accepted_and_waits_for_its_moment() -> None:
    house = House()
    for number in range(10):
        house.publish(f"body {number}", 1000, order_key=f"key {number}")
    await house.park()
    assert house.source.left() == 0
    assert house.parked() == 10
    assert await house.deliver() == 0
    house.clock.advance(1000)
    await house.deliver()
    assert sorted(house.bodies()) == [f"body {number}" for number in range(10)]


async def test_a_bad_header_is_a_dead_letter_and_delays_no_other() -> None:
    house = House()
    house.publish("a", 0)
    house.publish("b", "soon")
    house.publish("c", 0)
    await house.park()
    assert house.source.left() == 0
    assert [reason.partition(":")[0] for reason in house.dead()] == ["bad_header"]
    await house.deliver()
    assert house.bodies() == ["a", "c"]


async def test_a_cancellation_acts_on_what_came_before_it_and_not_on_what_comes_after() -> None:
    house = House()
    house.source.feed(b"before", {"x-delay": HOUR_MS, "x-delay-key": "k"}, order_key=b"one")
    house.source.feed(b"", {"x-delay-cancel": "k"}, order_key=b"another")
    house.source.feed(b"after", {"x-delay": HOUR_MS, "x-delay-key": "k"}, order_key=b"one")
    await house.park()
    assert house.source.left() == 0
    assert house.count("cancelled") == 1
    house.clock.advance(HOUR_MS)
    await house.deliver()
    assert house.bodies() == ["after"]


async def test_a_cancellation_of_nothing_is_accepted() -> None:
    house = House()
    house.source.feed(b"", {"x-delay-cancel": "nobody"})
    await house.park()
    assert house.source.left() == 0
    assert house.dead() == []


async def test_a_cancellation_by_a_message_id_that_many_share_is_a_dead_letter_with_a_reason() -> None:
    house = House()
    for number in range(17):
        house.publish(f"{number}", HOUR_MS, message_id=b"load")
    house.source.feed(b"", {"x-delay-cancel": "load"})
    await house.park()
    assert house.parked() == 17
    assert [reason.partition(":")[0] for reason in house.dead()] == ["not_unique"]
    assert house.source.left() == 0


@pytest.mark.parametrize(("older", "younger"), [(0, 0), (0, 1), (3, 2)])
@pytest.mark.parametrize("together", [True, False])
async def test_a_key_is_replaced_in_whichever_shard_it_is(older: int, younger: int, together: bool) -> None:
    house = House()
    house.source.feed(b"older", {"x-delay": 1000, "x-delay-key": "k"}, order_key=KEY_OF[older].encode())
    if not together:
        await house.park()
    house.source.feed(b"younger", {"x-delay": 1000, "x-delay-key": "k"}, order_key=KEY_OF[younger].encode())
    await house.park()
    house.clock.advance(1000)
    await house.deliver()
    assert house.bodies() == ["younger"]


@pytest.mark.parametrize("younger", [0, 1])
@pytest.mark.parametrize("together", [True, False])
async def test_keep_keeps_the_older_one_in_whichever_shard_it_is(younger: int, together: bool) -> None:
    house = House(on_same_key="keep")
    house.source.feed(b"older", {"x-delay": 1000, "x-delay-key": "k"}, order_key=KEY_OF[0].encode())
    if not together:
        await house.park()
    house.source.feed(b"younger", {"x-delay": 500, "x-delay-key": "k"}, order_key=KEY_OF[younger].encode())
    await house.park()
    assert house.source.left() == 0
    house.clock.advance(1000)
    await house.deliver()
    assert house.bodies() == ["older"]


@pytest.mark.parametrize("younger", [0, 1])
async def test_reject_makes_the_younger_one_a_dead_letter_in_whichever_shard_it_is(younger: int) -> None:
    house = House(on_same_key="reject")
    house.source.feed(b"older", {"x-delay": 1000, "x-delay-key": "k"}, order_key=KEY_OF[0].encode())
    house.source.feed(b"younger", {"x-delay": 500, "x-delay-key": "k"}, order_key=KEY_OF[younger].encode())
    await house.park()
    assert house.source.left() == 0
    assert house.dead() == [str(SAME_KEY)]
    house.clock.advance(1000)
    await house.deliver()
    assert house.bodies() == ["older"]


async def test_while_the_store_is_away_nothing_is_accepted_and_afterwards_everything_is_parked_once() -> None:
    house = House()
    house.memory.away = "the store is away"
    for number in range(5):
        house.publish(f"{number}", HOUR_MS, order_key=str(number))
    parking = asyncio.create_task(house.park())
    await turns(20)
    assert house.source.left() == 5
    assert "the store is away" in house.health.troubles()[STORE_PARK]
    house.memory.away = ""
    await parking
    assert (house.source.left(), house.count("parked"), house.parked()) == (0, 5, 5)
    assert house.health.troubles() == {}


async def test_a_lost_reply_parks_nothing_twice() -> None:
    house = House()
    house.publish("a", HOUR_MS)
    house.publish("bad", "soon")
    house.store.lose_reply()
    await house.park()
    assert (house.source.left(), house.count("parked"), house.count("dead")) == (0, 1, 1)


async def test_a_lost_reply_rejects_nothing_twice() -> None:
    house = House()
    house.publish("bad", "soon")
    house.store.lose_reply()
    await house.park()
    assert (house.source.left(), len(house.dead()), house.count("dead")) == (0, 1, 1)


async def test_a_full_store_accepts_nothing_and_takes_all_when_there_is_room() -> None:
    house = House()
    house.memory.full = True
    house.publish("a", 0)
    house.publish("bad", "soon")
    parking = asyncio.create_task(house.park())
    await turns(20)
    assert house.source.left() == 2
    troubles = house.health.troubles()
    assert STORE_FULL in troubles
    assert STORE_AWAY.isdisjoint(troubles), "it answers"
    house.memory.full = False
    await parking
    troubles = house.health.troubles()
    assert STORE_AWAY.isdisjoint(troubles)
    assert troubles[STORE_FULL].startswith("only some messages are parked: "), "it may be full again"
    assert (house.source.left(), house.parked(), len(house.dead())) == (0, 1, 1)


@pytest.mark.usefixtures("leaping_time")
async def test_a_store_at_its_limit_is_one_trouble_until_it_has_refused_nothing_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_S", 0.1)  # without a wait, time would not leap
    house = House()
    running = asyncio.create_task(house.parker.run())
    seen = set()
    for turn in range(6):
        house.memory.full = turn % 2 == 0
        house.publish(f"{turn}")
        await asyncio.sleep(1.5)
        seen.add(house.health.troubles().get(STORE_FULL, "").partition(":")[0])
    assert seen == {"nothing is parked", "only some messages are parked"}
    for turn in range(4):
        house.publish(f"room {turn}")
        await asyncio.sleep(1.5)
    assert house.health.troubles() == {}
    running.cancel()


@pytest.mark.usefixtures("leaping_time")
async def test_a_store_is_called_full_for_some_seconds_after_the_broker_took_its_messages_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_S", 0.1)
    house = House()
    house.memory.full = True
    house.publish("a", 0)
    parking = asyncio.create_task(house.park())
    await asyncio.sleep(9)
    house.source.lose_connection()
    await parking
    assert STORE_FULL in house.health.troubles()
    monkeypatch.setattr(house.health, "_now", lambda: time.monotonic() + 6)
    assert house.health.troubles() == {}


@pytest.mark.usefixtures("leaping_time")
async def test_a_store_that_was_full_for_long_takes_all_within_a_second_of_having_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_S", 0.1)
    monkeypatch.setattr("bridge.telemetry.reconnect.random.random", lambda: 0.0)
    house = House()
    house.memory.full = True
    house.publish("a", 0)
    parking = asyncio.create_task(house.park())
    await asyncio.sleep(57.5)
    house.memory.full, room_s = False, time.monotonic()
    await parking
    assert time.monotonic() - room_s < 3, "it would be 3.8 s after a wait of 5 s, and the machine may stand still"
    await asyncio.sleep(6)
    house.publish("b", 0)
    await house.park()
    assert (house.health.troubles(), house.parked()) == ({}, 2)


async def test_deliveries_of_a_lost_connection_are_dropped_once_and_parked_when_they_come_again() -> None:
    house = House()
    house.memory.away = "the store is away"
    for number in range(3):
        house.publish(f"{number}", HOUR_MS, order_key=str(number))
    parking = asyncio.create_task(house.park())
    await turns(20)
    assert STORE_PARK in house.health.troubles()
    house.source.lose_connection()
    await asyncio.wait_for(parking, 5)
    assert house.parked() == 0
    assert house.health.troubles() == {}, "nothing is to be parked now, and other loops ask the store"
    house.memory.away = ""
    await house.park()
    assert (house.source.left(), house.parked()) == (0, 3)


async def test_a_connection_lost_halfway_drops_only_what_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    for shard in (0, 1):
        house.publish(f"{shard}", HOUR_MS, order_key=KEY_OF[shard])
    park = house.store.park

    async def one_shard_fails(batches: Any) -> Any:
        replies = await park({0: batches[0]}) if 0 in batches else {}
        house.memory.away = "the store is away"
        return {shard: replies[shard] if shard in replies else (await park({1: batches[1]}))[1] for shard in batches}

    monkeypatch.setattr(house.store, "park", one_shard_fails)
    parking = asyncio.create_task(house.park())
    await turns(20)
    assert len(house.source.accepted) == 1
    house.source.lose_connection()  # the fake says if anything is dropped that was accepted
    await asyncio.wait_for(parking, 5)
    assert house.source.left() == 1


@pytest.mark.parametrize("order", ["key", "route", "none"])
async def test_a_redelivered_copy_carries_the_id_of_the_first(order: str) -> None:
    """A crash between parking and accepting, as the broker sees it: no acknowledgement ever came."""
    house = House(order=order)
    house.publish("before", 0)
    await house.park()
    house.source.hears = False
    for number in range(40):
        house.publish(f"{number}", 0, order_key=str(number))
    await house.park()
    house.source.hears = True
    house.source.lose_connection()
    house.parker._spread = 250  # with order = none the copies go to other shards
    await house.park()
    assert (house.source.left(), house.parked()) == (0, 81)

    while await house.deliver():
        pass
    copies: dict[bytes, list[bytes]] = {}
    for claim in house.sink.published:
        copies.setdefault(claim.payload, []).append(claim.public_id)
    assert [len(copies[b"%d" % number]) for number in range(40)] == [2] * 40
    assert all(len(set(ids)) == 1 for ids in copies.values())
    assert len({ids[0] for ids in copies.values()}) == 41


async def test_a_message_seen_for_the_first_time_keeps_its_own_id() -> None:
    house = House()
    house.publish("a", 0)
    house.source.lose_connection()  # it comes marked as redelivered, but was never parked
    await house.park()
    await house.deliver()
    [claim] = house.claims()
    assert claim.public_id == claim.id


@pytest.mark.parametrize("order", ["key", "route"])
async def test_messages_of_one_order_key_and_moment_leave_in_the_order_they_came(order: str) -> None:
    house = House(order=order)
    for number in range(60):
        house.publish(f"{number % 3}:{number}", 1000, order_key=f"customer {number % 3}")
    await house.park()
    house.clock.advance(1000)
    while await house.deliver():
        pass
    for customer in "012":
        mine = [body for body in house.bodies() if body.startswith(customer)]
        assert mine == sorted(mine, key=lambda body: int(body.partition(":")[2]))
        assert len(mine) == 20
    if order == "route":
        assert len({shard_of(claim.id) for claim in house.claims()}) == 1


async def test_without_an_order_the_shards_share_the_work() -> None:
    house = House(order="none")
    for number in range(800):
        house.publish(f"{number}", HOUR_MS)
    while house.source.left():
        await house.park()
    assert all(len(shard.due) >= 100 for shard in house.memory.shards)


async def test_parking_reports_the_earliest_due_moment() -> None:
    house = House()
    house.wake.watch(range(SHARDS))
    for shard in range(SHARDS):
        house.wake.learnt(shard, None)
    for delay_ms in (9000, 3000, 5000):
        house.publish(f"{delay_ms}", delay_ms)
    await house.park()
    assert house.wake.known()[shard_for(b"", SHARDS)] == house.clock.now_ms() + 3000


async def test_the_loop_gathers_what_can_wait_and_hurries_with_what_cannot() -> None:
    house = House()
    running = asyncio.create_task(house.parker.run())
    try:
        house.publish("now", 0)
        async with asyncio.timeout(5):
            while house.source.left():  # noqa: ASYNC110 (the loop decides when)
                await asyncio.sleep(0)
        house.publish("later", HOUR_MS)
        await turns()
        assert house.parker.busy
        house.publish("later too", HOUR_MS)
        async with asyncio.timeout(5):
            while house.source.left():  # noqa: ASYNC110 (the loop decides when)
                await asyncio.sleep(0.001)
        assert house.parker.received == 3
        assert house.parked() == 3
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_levels_and_dialects_reach_the_decision() -> None:
    rules = replace(ORDERS, headers=HeaderRules(dialects=("eta",), levels_ms=(7,)))
    assert decide(delivery({"x-delay-level": 1}), rules) == Parking(NOW_MS + 7, b"", False, relative=True)
    assert decide(delivery({"eta": None}), rules) == Parking(NOW_MS, b"", False)


async def test_a_key_replaces_no_message_that_only_has_the_same_message_id() -> None:
    house = House()
    for body in (b"one", b"two"):
        house.source.feed(body, {"x-delay": 1000}, message_id=b"order-1")
    house.source.feed(b"three", {"x-delay": 1000, "x-delay-key": "order-1"})
    await house.park()
    house.clock.advance(1000)
    await house.deliver()
    assert house.bodies() == ["one", "two", "three"]


async def test_a_cancellation_reaches_a_key_and_a_message_id_of_the_same_name() -> None:
    house = House()
    house.source.feed(b"one", {"x-delay": 1000}, message_id=b"order-1")
    house.source.feed(b"two", {"x-delay": 1000, "x-delay-key": "order-1"})
    house.source.feed(b"", {"x-delay-cancel": "order-1"})
    await house.park()
    house.clock.advance(1000)
    await house.deliver()
    assert house.bodies() == []


async def test_a_tombstone_cancels_what_waits_under_its_key_and_under_no_other() -> None:
    house = House()
    for key in (b"a", b"a", b"\0a", b"b"):
        house.publish(f"of {key!r}", HOUR_MS, message_id=key)
    house.source.feed(b"", {}, message_id=b"a", tombstone=True)
    house.publish("later", HOUR_MS, message_id=b"a")
    await house.park()
    house.clock.advance(HOUR_MS)
    await house.deliver()
    assert sorted(house.bodies()) == ["later", "of b'\\x00a'", "of b'b'"]
    assert house.count("cancelled") == 2
    assert house.dead() == []


async def test_a_tombstone_of_a_key_that_begins_with_a_nul_leaves_the_key_without_it() -> None:
    house = House()
    house.publish("kept", HOUR_MS, message_id=b"a")
    house.source.feed(b"", {}, message_id=b"\0a", tombstone=True)
    await house.park()
    assert (house.parked(), house.count("cancelled")) == (1, 0)
