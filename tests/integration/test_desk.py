"""The desk on a real Redis: what people see of the messages that wait, and what they can do with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.redis import desk as desk_module
from adapters.redis.connect import connect
from adapters.redis.desk import RedisDesk
from adapters.redis.keys import StoreKeys
from adapters.redis.store import RedisStore
from bridge.admin.desk import Filter, Row
from bridge.admin.send import Message, send
from bridge.app.open_desk import open_payload
from bridge.cli.output import as_dict
from bridge.core.clock import StoreClock
from bridge.core.errors import Refused, StoreUnfit
from bridge.core.message import Claim
from bridge.core.ports import Batch, Release
from bridge.core.state import State
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids, shard_for
from bridge.settings import Redis as RedisSettings

pytestmark = pytest.mark.redis

SHARDS = 4
HOUR_MS = 3_600_000
ALL = Filter()


class House:
    """A store with a desk in it."""

    def __init__(self, url: str, prefix: str) -> None:
        self.settings = RedisSettings.model_validate({"url": url})
        self.prefix = prefix
        self.client: Any = connect(self.settings)
        self.store = RedisStore(self.client, prefix, SHARDS, "tester", StoreClock())
        self.desk = RedisDesk(self.client, prefix, SHARDS, self.store)
        self.keys = StoreKeys(prefix, SHARDS, "tester")
        self.ids = Ids("tester")

    async def park(self, due_in_ms: int = HOUR_MS, order_key: bytes = b"k", key: bytes = b"", **more: Any) -> bytes:
        """Park one through ``send``; its id."""
        message = Message(
            route="orders",
            order="key",
            on_same_key="replace",
            order_key=order_key,
            payload=b"\1k" + b"p" * 10,
            due_ms=self.store.clock.now_ms() + due_in_ms,
            key=key,
        )
        return await send(self.store, self.ids, replace(message, **more))

    async def claim(self) -> list[Claim]:
        """Take everything that is due by now."""
        await self.pass_by(self.store.clock.now_ms())
        claimed = await self.store.claim(range(SHARDS), 1000, 2**30, 60_000, 60_000)
        return [claim for one in claimed.values() for claim in one.claims]  # type: ignore[union-attr]

    async def pass_by(self, moment_ms: int) -> None:
        """Until the store's clock is beyond a moment that is now, give or take a millisecond."""
        while await self.desk.now_ms() <= moment_ms:
            pass

    async def bury(self, reason: str, **more: Any) -> bytes:
        """Park one, and make it a dead letter."""
        one = await self.park(0, **more)
        (claim,) = [claim for claim in await self.claim() if claim.id == one]
        await self.store.bury([(claim, reason)])
        return one

    async def states(self, *ids: bytes) -> list[str]:
        found = {row.id: row.state.value for row in await self.desk.look(ids, 0)}
        return [found.get(one, "none") for one in ids]

    async def listed(self, state: State, wanted: Filter = ALL, most: int = 10**6) -> list[Row]:
        rows: list[Row] = []
        async for row in self.desk.rows(state, wanted):
            if len(rows) == most:
                break
            rows.append(row)
        return rows


@pytest.fixture
async def house(redis_url: str, key_prefix: str) -> AsyncIterator[House]:
    house = House(redis_url, key_prefix)
    await house.store.open("none", 1, 5000)
    yield house
    await house.store.close()


async def park_many(house: House, dues_ms: Sequence[int]) -> list[bytes]:
    """Spread over all shards, one after the other."""
    return [await house.park(due_ms, str(place).encode()) for place, due_ms in enumerate(dues_ms)]


class TestList:
    async def test_messages_of_all_shards_come_in_the_order_of_their_due_moments(self, house: House) -> None:
        dues = [HOUR_MS + (place * 7919) % 1000 for place in range(150)]
        await park_many(house, dues)
        rows = await house.listed(State.PARKED)
        assert len(rows) == 150
        assert [row.due_ms for row in rows] == sorted(row.due_ms for row in rows)
        assert len({row.id for row in rows}) == 150

    async def test_equal_due_moments_come_in_the_order_of_arrival(self, house: House) -> None:
        moment = house.store.clock.now_ms() + HOUR_MS
        parked = [await house.park(order_key=str(n).encode(), due_ms=moment) for n in range(30)]
        assert [row.id for row in await house.listed(State.PARKED)] == sorted(parked)

    async def test_no_more_is_read_than_the_limit_needs(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        await park_many(house, [HOUR_MS + n for n in range(200)])
        monkeypatch.setattr(desk_module, "_PAGE_FIRST", 5)
        calls: list[int] = []
        ask = house.desk._ask

        async def count(asked: Any) -> Any:
            replies = await ask(asked)
            calls.extend((len(reply) - 2) // 5 for reply in replies)
            return replies

        monkeypatch.setattr(house.desk, "_ask", count)
        assert len(await house.listed(State.PARKED, most=4)) == 4
        assert sum(calls) <= SHARDS * 20 + 10

    async def test_a_list_holds_no_bodies(self, house: House) -> None:
        await house.park(payload=b"\1k" + b"secret" * 10_000)
        (row,) = await house.listed(State.PARKED)
        assert len(row.payload) <= desk_module.HEAD_BYTES
        assert row.size == 60_002

    async def test_the_filters_leave_out_what_they_do_not_take(self, house: House) -> None:
        soon = await house.park(HOUR_MS, key=b"a")
        later = await house.park(2 * HOUR_MS, key=b"b")
        other = await house.park(3 * HOUR_MS, route="payments", key=b"a")
        now_ms = await house.desk.now_ms()

        async def ids(**wanted: Any) -> list[bytes]:
            return [row.id for row in await house.listed(State.PARKED, Filter(**wanted))]

        assert await ids() == [soon, later, other]
        assert await ids(route="orders") == [soon, later]
        assert await ids(key=b"a") == [soon, other]
        assert await ids(due_before_ms=now_ms + HOUR_MS * 3 // 2) == [soon]
        assert await ids(due_from_ms=now_ms + HOUR_MS * 3 // 2) == [later, other]
        assert await ids(route="nothing") == []

    async def test_a_filter_that_takes_few_looks_through_all_pages(self, house: House) -> None:
        await park_many(house, [HOUR_MS] * 120)
        last = await house.park(2 * HOUR_MS, route="rare")
        assert [row.id for row in await house.listed(State.PARKED, Filter(route="rare"))] == [last]

    async def test_claimed_and_dead_ones_are_listed_with_lease_and_reason(self, house: House) -> None:
        dead = await house.bury("unroutable: nobody is bound")
        claimed = await house.park(0)
        assert [claim.id for claim in await house.claim()] == [claimed]
        (held,) = await house.listed(State.CLAIMED)
        (buried,) = await house.listed(State.DEAD)
        assert (held.id, buried.id) == (claimed, dead)
        assert held.at_ms > await house.desk.now_ms()
        assert buried.reason == "unroutable: nobody is bound"
        assert await house.listed(State.DEAD, Filter(reason="unroutable")) == [buried]
        assert await house.listed(State.DEAD, Filter(reason="bad_header")) == []

    @pytest.mark.parametrize(
        ("envelope", "reason"),
        [(b"\x02" + b"whatever" * 10, "newer: "), (b"\x63" + b"whatever" * 10, "damaged: "), (b"", "damaged: ")],
    )
    async def test_an_envelope_that_cannot_be_opened_is_listed_shown_and_cancelled(
        self, house: House, envelope: bytes, reason: str
    ) -> None:
        one = await house.park()
        keys = house.keys.shards[shard_for(b"k", SHARDS)]
        await house.client.hset(keys.msg, one, envelope)
        (row,) = await house.listed(State.PARKED)
        assert (row.id, row.route, row.key, row.broker) == (one, "", b"", "")
        assert row.reason.startswith(reason)
        assert as_dict(row)["reason"] == row.reason
        (row,) = await house.desk.look([one], -1)
        assert (row.payload, row.size) == (envelope, len(envelope))
        assert open_payload(row)[3:] == (envelope, len(envelope))
        assert await house.desk.cancel([one]) == {one: "parked"}
        assert await house.listed(State.PARKED) == []

    async def test_large_messages_are_read_in_several_calls_and_all_found(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(desk_module, "_PAGE_BYTES", 3000)
        for n in range(10):
            await house.park(HOUR_MS + n, payload=b"\1k" + b"x" * 2000)
        assert len(await house.listed(State.PARKED)) == 10


class TestLook:
    async def test_a_message_is_shown_with_all_its_payload(self, house: House) -> None:
        one = await house.park(key=b"order-1", payload=b"\1k" + bytes(range(256)) * 100)
        (row,) = await house.desk.look([one], -1)
        assert row.payload == b"\1k" + bytes(range(256)) * 100
        assert (row.state, row.route, row.key, row.tries) == (State.PARKED, "orders", b"order-1", 0)

    async def test_ids_that_name_nothing_are_left_out(self, house: House) -> None:
        one = await house.park()
        nothing, elsewhere = one[:-2] + b"00", one[:-2] + b"vv"
        assert [row.id for row in await house.desk.look([elsewhere, one, nothing], 0)] == [one]

    async def test_reading_changes_nothing(self, house: House) -> None:
        await house.park(key=b"a")
        await house.bury("why: not")
        await house.claim()
        before = [await house.client.dump(key) for key in sorted(await house.client.keys(f"*{house.prefix}*"))]
        for state in (State.PARKED, State.CLAIMED, State.DEAD):
            await house.listed(state)
        await house.desk.stats()
        after = [await house.client.dump(key) for key in sorted(await house.client.keys(f"*{house.prefix}*"))]
        assert before == after


class TestVerbs:
    async def test_cancel_removes_parked_and_dead_and_leaves_what_is_on_its_way(self, house: House) -> None:
        dead = await house.bury("why: not")
        claimed = await house.park(0)
        await house.claim()
        parked = await house.park(key=b"a")
        nothing = parked[:-2] + b"00"
        words = await house.desk.cancel([parked, dead, claimed, nothing])
        assert words == {parked: "parked", dead: "dead", claimed: "claimed", nothing: "none"}
        assert await house.states(parked, dead, claimed) == ["none", "none", "claimed"]
        assert (await house.desk.find("orders", b"a")).ids == []

    async def test_reschedule_moves_the_one_due_moment_there_is(self, house: House) -> None:
        one = await house.park(HOUR_MS)
        due_ms = house.store.clock.now_ms() + 2 * HOUR_MS
        assert await house.desk.reschedule([one], due_ms) == {one: "parked"}
        (row,) = await house.desk.look([one], 0)
        assert (row.due_ms, row.at_ms) == (due_ms, due_ms)

    async def test_deliver_makes_it_due_and_wakes_who_drains_the_shard(self, house: House) -> None:
        one = await house.park(HOUR_MS)
        async with house.client.pubsub(ignore_subscribe_messages=False) as pubsub:
            await pubsub.subscribe(house.keys.shards[shard_for(b"k", SHARDS)].wake)
            await pubsub.get_message(timeout=5)
            await house.desk.reschedule([one], 0)
            hint = await pubsub.get_message(timeout=5)
        assert int(hint["data"]) <= await house.desk.now_ms()
        assert [claim.id for claim in await house.claim()] == [one]

    async def test_a_message_that_is_not_parked_is_not_moved(self, house: House) -> None:
        dead = await house.bury("why: not")
        claimed = await house.park(0)
        await house.claim()
        assert await house.desk.reschedule([dead, claimed], 0) == {dead: "dead", claimed: "claimed"}
        assert await house.states(dead, claimed) == ["dead", "claimed"]

    async def test_retry_makes_dead_letters_due_now_with_all_tries_before_them(self, house: House) -> None:
        dead, parked = await house.bury("why: not"), await house.park(HOUR_MS)
        assert await house.desk.retry([dead, parked]) == 1
        (row,) = await house.desk.look([dead], 0)
        assert (row.state, row.tries, row.reason) == (State.PARKED, 0, "")
        assert [claim.id for claim in await house.claim()] == [dead]
        assert await house.states(parked) == ["parked"]


class TestSend:
    async def test_a_message_is_parked_with_everything_it_was_given(self, house: House) -> None:
        due_ms = house.store.clock.now_ms() + HOUR_MS
        one = await house.park(due_ms=due_ms, key=b"order-1", payload=b"\1kbody")
        (row,) = await house.desk.look([one], -1)
        assert (row.due_ms, row.key, row.payload) == (due_ms, b"order-1", b"\1kbody")
        assert (await house.desk.find("orders", b"order-1")).ids == [one]

    async def test_a_moment_that_has_passed_means_now(self, house: House) -> None:
        one = await house.park(-HOUR_MS)
        (row,) = await house.desk.look([one], 0)
        assert abs(await house.desk.now_ms() - row.due_ms) < 60_000

    @pytest.mark.parametrize("order_key", [b"k", b"another shard"])
    async def test_the_same_key_replaces_the_first_in_whichever_shard_it_is(
        self, house: House, order_key: bytes
    ) -> None:
        first = await house.park(key=b"a")
        second = await house.park(key=b"a", order_key=order_key)
        assert await house.states(first, second) == ["none", "parked"]

    @pytest.mark.parametrize("mode", ["keep", "reject"])
    @pytest.mark.parametrize("order_key", [b"k", b"another shard"])
    async def test_where_a_key_may_not_be_replaced_the_second_is_refused_and_leaves_nothing(
        self, house: House, mode: str, order_key: bytes
    ) -> None:
        first = await house.park(key=b"a")
        with pytest.raises(Refused, match="key a is parked"):
            await house.park(key=b"a", order_key=order_key, on_same_key=mode)
        assert [row.id for row in await house.listed(State.PARKED)] == [first]
        assert await house.listed(State.DEAD) == []

    async def test_the_shard_follows_from_the_order_of_the_route(self, house: House) -> None:
        by_key = await house.park(order_key=b"some key")
        by_route = await house.park(order_key=b"some key", order="route")
        assert int(by_key[-2:], 32) == shard_for(b"some key", SHARDS)
        assert int(by_route[-2:], 32) == shard_for(b"orders", SHARDS)


class TestStats:
    async def test_every_state_is_counted_and_the_oldest_overdue_is_known(self, house: House) -> None:
        await house.bury("why: not")
        await house.park(0)
        await house.claim()
        await park_many(house, [HOUR_MS] * 10)
        overdue = await house.park(0)
        (row,) = await house.desk.look([overdue], 0)
        await house.desk.cancel([await house.park()])
        await house.pass_by(row.due_ms)
        stats = await house.desk.stats()
        assert (stats.parked, stats.claimed, stats.dead, stats.overdue) == (11, 1, 1, 1)
        assert stats.next_due_ms == row.due_ms < stats.now_ms
        assert stats.ever["parked"] == 14
        assert stats.ever["cancelled"] == 1
        assert stats.bytes_each is not None
        assert 50 < stats.bytes_each < 2000
        assert stats.memory[0].used > 0

    async def test_what_was_refused_and_waits_for_another_try_is_counted(self, house: House) -> None:
        await house.bury("why: not")
        await house.park(0)
        (claim,) = await house.claim()
        await house.store.release([Release(claim, 60_000, 1, "unroutable: nobody")])
        stats = await house.desk.stats()
        assert (stats.parked, stats.overdue, stats.refused) == (1, 0, 1)

    async def test_an_instance_is_there_with_what_it_says_of_itself(self, house: House) -> None:
        await house.store.meet(60_000, True, json.dumps({"health": "All well.", "shards": [0, 1]}))
        stats = await house.desk.stats()
        assert stats.instances == {"tester": {"able": True, "health": "All well.", "shards": [0, 1]}}
        await house.store.meet(0, False, "{}")
        assert (await house.desk.stats()).instances == {}

    async def test_an_instance_that_went_silent_is_not_counted(self, house: House) -> None:
        await house.store.meet(60_000, True, "{}")
        await house.client.zadd(house.keys.instances, {"tester": 1})
        assert (await house.desk.stats()).instances == {}

    async def test_an_empty_store_has_numbers_too(self, house: House) -> None:
        stats = await house.desk.stats()
        assert (stats.parked, stats.next_due_ms, stats.bytes_each, stats.ever) == (0, None, None, {})


class TestAgreement:
    async def test_a_desk_with_another_number_of_shards_is_refused(self, house: House) -> None:
        with pytest.raises(StoreUnfit, match=r"redis\.shards = 4"):
            await RedisDesk(house.client, house.prefix, 8, house.store).open()

    async def test_a_store_that_was_never_used_is_opened_and_nothing_is_written(self, house: House) -> None:
        await RedisDesk(house.client, f"{house.prefix}new", 8, house.store).open()
        assert await house.client.keys(f"*{house.prefix}new*") == []


async def test_many_messages_under_one_message_id_are_not_listed_by_it(house: House) -> None:
    batch = Batch(house.store.new_token())
    shard, field = 0, index_field(b"orders", b"load")
    for _ in range(20):
        one = house.ids.next(house.store.clock.now_ms(), shard)
        batch.messages.append((one, 2**42, seal(2**42, 0, b"orders", b"load", b"", b"\1k")))
        batch.found[field] = batch.found.get(field, b"") + one
    await house.store.park({shard: batch})
    assert (await house.desk.find("orders", b"load")).unlisted == 20
    assert len(await house.listed(State.PARKED, Filter(route="orders", key=b"load"))) == 20


async def test_the_desk_works_on_a_cluster(redis_cluster_url: str, key_prefix: str) -> None:
    house = House(redis_cluster_url, key_prefix)
    await house.store.open("none", 1, 5000)
    try:
        parked = await park_many(house, [HOUR_MS + n for n in range(20)])
        assert [row.id for row in await house.listed(State.PARKED)] == parked
        assert set((await house.desk.reschedule(parked, 0)).values()) == {"parked"}
        stats = await house.desk.stats()
        assert (stats.parked, len(stats.memory)) == (20, 3)
        assert set((await house.desk.cancel(parked)).values()) == {"parked"}
    finally:
        await house.store.close()
