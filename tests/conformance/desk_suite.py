"""The promises of ``bridge.desk.protocol.Desk`` as tests: every store's desk passes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from bridge.core.errors import Refused
from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.core.ports import FIRST_HELD, Batch, DeadBatch, HeldStep, Keyed, Release, Store
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.desk.numbers import RouteStats
from bridge.desk.rows import HEAD_BYTES, Filter, Row
from bridge.parking.envelope import index_field, seal, unseal
from bridge.parking.identity import shard_for, shard_of
from tests.conformance.desk_rig import DeskRig, Feature
from tests.conformance.past_suite import PastSuite
from tests.conformance.rig import HOUR_MS, LEASE_MS, SHARDS

#: After this time without a report an instance counts as dead.
TTL_MS = 300
ADMIN, ANNA = Actor("admin", "api"), Actor("anna", "cli")


async def wait_out(desk_rig: DeskRig) -> None:
    """Let the rig's instance see that no other reports for the time after which it counts as dead."""
    await desk_rig.store.meet(TTL_MS, True, "{}")
    await desk_rig.pass_by(await desk_rig.desk.now_ms() + TTL_MS + 1)
    await desk_rig.store.meet(TTL_MS, True, "{}")


async def lose(desk_rig: DeskRig, other: Store) -> None:
    """Let another instance report beside that of the rig, and then no more."""
    await desk_rig.store.meet(TTL_MS, True, "{}")
    await other.meet(TTL_MS, True, "{}")
    await wait_out(desk_rig)


class List:
    """``rows``: messages in one state, in order, filtered."""

    async def test_messages_of_all_shards_come_in_the_order_of_their_due_moments(self, desk_rig: DeskRig) -> None:
        dues = [HOUR_MS + (place * 7919) % 1000 for place in range(150)]
        await desk_rig.park_many(dues)
        rows = await desk_rig.listed(State.PARKED)
        assert len(rows) == 150
        assert [row.due_ms for row in rows] == sorted(row.due_ms for row in rows)
        assert len({row.id for row in rows}) == 150

    async def test_equal_due_moments_come_in_the_order_of_arrival(self, desk_rig: DeskRig) -> None:
        moment = desk_rig.store.clock.now_ms() + HOUR_MS
        parked = [await desk_rig.park(order_key=str(n).encode(), due_ms=moment) for n in range(30)]
        assert [row.id for row in await desk_rig.listed(State.PARKED)] == sorted(parked)

    async def test_a_list_holds_no_bodies(self, desk_rig: DeskRig) -> None:
        await desk_rig.park(payload=b"\1k" + b"secret" * 10_000)
        (row,) = await desk_rig.listed(State.PARKED)
        assert len(row.payload) <= HEAD_BYTES
        assert row.size == 60_002

    async def test_filters_leave_out_what_does_not_match(self, desk_rig: DeskRig) -> None:
        soon = await desk_rig.park(HOUR_MS, key=b"a")
        later = await desk_rig.park(2 * HOUR_MS, key=b"b")
        other = await desk_rig.park(3 * HOUR_MS, route="payments", key=b"a")
        now_ms = await desk_rig.desk.now_ms()

        async def ids(**wanted: Any) -> list[bytes]:
            return [row.id for row in await desk_rig.listed(State.PARKED, Filter(**wanted))]

        assert await ids() == [soon, later, other]
        assert await ids(route="orders") == [soon, later]
        assert await ids(key=b"a") == [soon, other]
        assert await ids(due_before_ms=now_ms + HOUR_MS * 3 // 2) == [soon]
        assert await ids(due_from_ms=now_ms + HOUR_MS * 3 // 2) == [later, other]
        assert await ids(route="nothing") == []

    async def test_a_filter_on_due_moments_goes_by_the_next_try(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park(0)
        (claim,) = await desk_rig.claim()
        await desk_rig.store.release([Release(claim, HOUR_MS, 1, "unroutable: no queue")])
        now_ms = await desk_rig.desk.now_ms()
        (row,) = await desk_rig.listed(State.PARKED, Filter(due_from_ms=now_ms + HOUR_MS // 2))
        assert (row.id, row.tries) == (message_id, 1)
        assert row.due_ms < now_ms < row.at_ms
        assert await desk_rig.listed(State.PARKED, Filter(due_before_ms=now_ms + HOUR_MS // 2)) == []

    async def test_a_filter_that_matches_few_messages_finds_them_all(self, desk_rig: DeskRig) -> None:
        await desk_rig.park_many([HOUR_MS] * 120)
        last = await desk_rig.park(2 * HOUR_MS, route="rare")
        assert [row.id for row in await desk_rig.listed(State.PARKED, Filter(route="rare"))] == [last]

    async def test_a_list_has_each_message_once_while_others_before_it_come_and_go(self, desk_rig: DeskRig) -> None:
        ids = await desk_rig.park_many([HOUR_MS + place for place in range(120)])
        seen = [row.id async for row in self._while_others_change(desk_rig, ids)]
        assert sorted(set(ids) - set(seen)) == []
        assert len(seen) == len(set(seen))

    async def _while_others_change(self, desk_rig: DeskRig, ids: Sequence[bytes]) -> AsyncIterator[Row]:
        """Yield the rows of a list. Meanwhile those seen leave, and as many come before the others."""
        seen: list[bytes] = []
        async for row in desk_rig.desk.rows(State.PARKED, Filter()):
            yield row
            seen.append(row.id)
            if len(seen) in (5, 40):
                await desk_rig.desk.cancel(seen)
            elif len(seen) == 70:
                await desk_rig.park_many([HOUR_MS // 2] * 60)
        assert len(seen) == len(ids)

    async def test_claimed_and_dead_messages_are_listed_with_lease_and_reason(self, desk_rig: DeskRig) -> None:
        dead = await desk_rig.bury("unroutable: no queue is bound")
        claimed = await desk_rig.park(0)
        assert [claim.id for claim in await desk_rig.claim()] == [claimed]
        (held,) = await desk_rig.listed(State.CLAIMED)
        (buried,) = await desk_rig.listed(State.DEAD)
        assert (held.id, buried.id) == (claimed, dead)
        assert held.at_ms > await desk_rig.desk.now_ms()
        assert buried.reason == "unroutable: no queue is bound"
        assert await desk_rig.listed(State.DEAD, Filter(reason="unroutable")) == [buried]
        assert await desk_rig.listed(State.DEAD, Filter(reason="bad_header")) == []

    @pytest.mark.parametrize(
        ("envelope", "reason"),
        [(b"\x02" + b"whatever" * 10, "newer: "), (b"\x63" + b"whatever" * 10, "damaged: "), (b"", "damaged: ")],
    )
    async def test_an_envelope_that_cannot_be_opened_is_listed_shown_and_cancelled(
        self, desk_rig: DeskRig, envelope: bytes, reason: str
    ) -> None:
        message_id = await desk_rig.park()
        await desk_rig.tamper(message_id, envelope)
        (row,) = await desk_rig.listed(State.PARKED)
        assert (row.id, row.route, row.key, row.broker) == (message_id, "", b"", "")
        assert row.reason.startswith(reason)
        (row,) = await desk_rig.desk.look([message_id], -1)
        assert (row.payload, row.size) == (envelope, len(envelope))
        assert await desk_rig.desk.cancel([message_id]) == {message_id: "parked"}
        assert await desk_rig.listed(State.PARKED) == []


class Show:
    """``look``: messages by id."""

    async def test_a_message_is_shown_with_all_its_payload(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park(key=b"order-1", payload=b"\1k" + bytes(range(256)) * 100)
        (row,) = await desk_rig.desk.look([message_id], -1)
        assert row.payload == b"\1k" + bytes(range(256)) * 100
        assert (row.state, row.route, row.key, row.tries) == (State.PARKED, "orders", b"order-1", 0)

    async def test_claimed_and_dead_messages_are_shown_with_lease_and_reason(self, desk_rig: DeskRig) -> None:
        dead = await desk_rig.bury("unroutable: no queue is bound")
        claimed = await desk_rig.park(0)
        await desk_rig.claim()
        held, buried = await desk_rig.desk.look([claimed, dead], 0)
        assert (held.state, buried.state) == (State.CLAIMED, State.DEAD)
        assert buried.at_ms <= await desk_rig.desk.now_ms() < held.at_ms
        assert buried.reason == "unroutable: no queue is bound"

    async def test_ids_without_a_message_are_left_out(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park()
        nothing, no_shard = message_id[:-2] + b"00", message_id[:-2] + b"vv"
        assert [row.id for row in await desk_rig.desk.look([no_shard, message_id, nothing], 0)] == [message_id]


class Find:
    """``find``: messages by the producer's key."""

    async def test_a_message_is_found_by_its_key_on_its_route_until_it_is_gone(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park(key=b"a")
        other = await desk_rig.park(key=b"a", route="payments", order_key=b"another shard")
        assert (await desk_rig.desk.find("orders", b"a")).ids == [message_id]
        assert (await desk_rig.desk.find("payments", b"a")).ids == [other]
        assert (await desk_rig.desk.find("orders", b"b")).ids == []
        await desk_rig.desk.cancel([message_id])
        assert (await desk_rig.desk.find("orders", b"a")).ids == []

    async def test_many_messages_with_one_message_id_are_counted_and_listed_by_it(self, desk_rig: DeskRig) -> None:
        store = desk_rig.store
        batch, shard, field = Batch(store.new_token()), 0, index_field(b"orders", b"load")
        for _ in range(20):
            message_id = desk_rig.ids.next(store.clock.now_ms(), shard)
            batch.messages.append((message_id, 2**42, seal(2**42, 0, b"orders", b"load", b"", b"\1k")))
            batch.found[field] = batch.found.get(field, b"") + message_id
        await store.park({shard: batch})
        found = await desk_rig.desk.find("orders", b"load")
        assert (found.ids, found.unlisted) == ([], 20)
        assert len(await desk_rig.listed(State.PARKED, Filter(route="orders", key=b"load"))) == 20


class Change:
    """``cancel``, ``reschedule`` (to now: deliver) and ``retry``."""

    async def test_cancel_removes_parked_and_dead_messages_and_leaves_claimed_ones(self, desk_rig: DeskRig) -> None:
        dead = await desk_rig.bury("why: not")
        claimed = await desk_rig.park(0)
        await desk_rig.claim()
        parked = await desk_rig.park(key=b"a")
        nothing, no_shard = parked[:-2] + b"00", parked[:-2] + b"vv"
        answers = await desk_rig.desk.cancel([parked, dead, claimed, nothing, no_shard])
        assert answers == {parked: "parked", dead: "dead", claimed: "claimed", nothing: "none", no_shard: "none"}
        assert await desk_rig.states(parked, dead, claimed) == ["none", "none", "claimed"]
        assert (await desk_rig.desk.find("orders", b"a")).ids == []

    async def test_reschedule_changes_the_due_moment_and_the_next_try(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park(HOUR_MS)
        due_ms = desk_rig.store.clock.now_ms() + 2 * HOUR_MS
        assert await desk_rig.desk.reschedule([message_id], due_ms) == {message_id: "parked"}
        (row,) = await desk_rig.desk.look([message_id], 0)
        assert (row.due_ms, row.at_ms) == (due_ms, due_ms)

    async def test_deliver_makes_a_message_due_now_and_wakes_the_instance_of_its_shard(self, desk_rig: DeskRig) -> None:
        heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        listening = asyncio.create_task(desk_rig.store.listen(lambda shard, ms: heard.put_nowait((shard, ms))))
        try:
            for nearer in range(100):  # until the subscription is in place, and parking is heard too
                message_id = await desk_rig.park(HOUR_MS - nearer * 1000)
                try:
                    await asyncio.wait_for(heard.get(), 0.1)
                    break
                except TimeoutError:
                    pass
            assert await desk_rig.desk.reschedule([message_id], 0) == {message_id: "parked"}
            now_ms = await desk_rig.desk.now_ms()
            while (hint := await asyncio.wait_for(heard.get(), 5))[1] > now_ms:
                pass  # of a message parked before
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        assert hint[0] == shard_for(b"k", SHARDS)
        assert [claim.id for claim in await desk_rig.claim()] == [message_id]

    async def test_only_parked_messages_are_rescheduled(self, desk_rig: DeskRig) -> None:
        dead = await desk_rig.bury("why: not")
        claimed = await desk_rig.park(0)
        await desk_rig.claim()
        nothing = dead[:-2] + b"00"
        answers = await desk_rig.desk.reschedule([dead, claimed, nothing], 0)
        assert answers == {dead: "dead", claimed: "claimed", nothing: "none"}
        assert await desk_rig.states(dead, claimed) == ["dead", "claimed"]

    async def test_retry_makes_dead_letters_due_now_with_0_tries(self, desk_rig: DeskRig) -> None:
        dead, parked = await desk_rig.bury("why: not"), await desk_rig.park(HOUR_MS)
        assert await desk_rig.desk.retry([dead, parked]) == 1
        (row,) = await desk_rig.desk.look([dead], 0)
        assert (row.state, row.tries, row.reason) == (State.PARKED, 0, "")
        assert [claim.id for claim in await desk_rig.claim()] == [dead]
        assert await desk_rig.states(parked) == ["parked"]


class Send:
    """``bridge.operate.send``, which works on every store."""

    async def test_a_message_is_parked_with_everything_it_was_given(self, desk_rig: DeskRig) -> None:
        due_ms = desk_rig.store.clock.now_ms() + HOUR_MS
        message_id = await desk_rig.park(due_ms=due_ms, key=b"order-1", payload=b"\1kbody")
        (row,) = await desk_rig.desk.look([message_id], -1)
        assert (row.due_ms, row.key, row.payload) == (due_ms, b"order-1", b"\1kbody")
        assert (await desk_rig.desk.find("orders", b"order-1")).ids == [message_id]

    async def test_a_due_moment_in_the_past_means_now(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park(-HOUR_MS)
        (row,) = await desk_rig.desk.look([message_id], 0)
        assert abs(await desk_rig.desk.now_ms() - row.due_ms) < 60_000

    @pytest.mark.parametrize("order_key", [b"k", b"another shard"])
    async def test_the_same_key_replaces_the_first_message_in_any_shard(
        self, desk_rig: DeskRig, order_key: bytes
    ) -> None:
        first = await desk_rig.park(key=b"a")
        second = await desk_rig.park(key=b"a", order_key=order_key)
        assert await desk_rig.states(first, second) == ["none", "parked"]

    @pytest.mark.parametrize("mode", ["keep", "reject"])
    @pytest.mark.parametrize("order_key", [b"k", b"another shard"])
    async def test_where_a_key_may_not_be_replaced_the_second_message_is_refused_and_leaves_nothing(
        self, desk_rig: DeskRig, mode: str, order_key: bytes
    ) -> None:
        first = await desk_rig.park(key=b"a")
        with pytest.raises(Refused, match="key a is already parked"):
            await desk_rig.park(key=b"a", order_key=order_key, on_same_key=mode)
        assert [row.id for row in await desk_rig.listed(State.PARKED)] == [first]
        assert await desk_rig.listed(State.DEAD) == []

    async def test_the_shard_follows_from_the_order_of_the_route(self, desk_rig: DeskRig) -> None:
        by_key = await desk_rig.park(order_key=b"some key")
        by_route = await desk_rig.park(order_key=b"some key", order="route")
        assert int(by_key[-2:], 32) == shard_for(b"some key", SHARDS)
        assert int(by_route[-2:], 32) == shard_for(b"orders", SHARDS)


class Count:
    """``stats``."""

    async def test_every_state_is_counted_and_the_oldest_overdue_message_is_known(self, desk_rig: DeskRig) -> None:
        await desk_rig.bury("why: not")
        await desk_rig.park(0)
        await desk_rig.claim()
        await desk_rig.park_many([HOUR_MS] * 10)
        overdue = await desk_rig.park(0)
        (row,) = await desk_rig.desk.look([overdue], 0)
        await desk_rig.desk.cancel([await desk_rig.park()])
        await desk_rig.pass_by(row.due_ms)
        stats = await desk_rig.desk.stats()
        assert (stats.parked, stats.claimed, stats.dead, stats.overdue) == (11, 1, 1, 1)
        assert stats.next_due_ms == row.due_ms < stats.now_ms
        assert stats.ever["parked"] == 14
        assert stats.ever["cancelled"] == 1

    async def test_dead_letters_that_are_brought_back_do_not_count_as_new(self, desk_rig: DeskRig) -> None:
        store, ids = desk_rig.store, [await desk_rig.park() for _ in range(3)]
        rows = {message_id: (await desk_rig.desk.look([message_id], 9))[0] for message_id in ids}
        await desk_rig.desk.cancel(ids)
        for message_id, restored in zip(ids, (True, True, False), strict=True):
            envelope = seal(rows[message_id].due_ms, rows[message_id].arrived_ms, b"orders", b"", b"", b"x")
            row = (message_id, envelope, "unroutable: no queue")
            for known in (), (1,):
                dead = DeadBatch(store.new_token(), [row], (), restored)
                assert await store.reject(shard_of(message_id), dead) == known
        stats = await desk_rig.desk.stats()
        assert (stats.dead, stats.ever["dead"], stats.ever["rejected"], stats.ever["restored"]) == (3, 1, 1, 2)

    async def test_memory_and_the_size_of_a_message_are_told(self, desk_rig: DeskRig) -> None:
        if Feature.SERVER_MEMORY not in desk_rig.features:
            pytest.skip(Feature.SERVER_MEMORY.value)
        await desk_rig.park_many([HOUR_MS] * 10)
        stats = await desk_rig.desk.stats()
        assert stats.bytes_each is not None
        assert 50 < stats.bytes_each < 2000
        assert stats.memory[0].used > 0

    async def test_refused_messages_that_wait_for_another_try_are_counted(self, desk_rig: DeskRig) -> None:
        await desk_rig.bury("why: not")
        await desk_rig.park(0)
        (claim,) = await desk_rig.claim()
        await desk_rig.store.release([Release(claim, 60_000, 1, "unroutable: no queue")])
        due_ms = claim.due_ms
        await desk_rig.pass_by(due_ms + 5)
        stats = await desk_rig.desk.stats()
        assert (stats.parked, stats.overdue, stats.refused) == (1, 1, 1)
        orders = stats.by_route["orders"]
        assert (orders.overdue, orders.refused) == (1, 1)
        assert 5 <= orders.oldest_overdue_ms == stats.oldest_overdue_ms <= stats.now_ms - due_ms
        assert orders.next_due_ms is not None
        assert orders.next_due_ms > stats.now_ms

    @pytest.mark.parametrize("way", ["settled", "bury", "cancel", "reschedule", "held", "replaced", "by hand"])
    async def test_a_refused_message_counts_until_it_waits_for_no_other_try(self, desk_rig: DeskRig, way: str) -> None:
        store, desk = desk_rig.store, desk_rig.desk
        message_id = await desk_rig.park(0, key=b"a key")
        await desk_rig.park(0, key=b"another key")
        await store.release([Release(claim, 0, 1, "unroutable: no queue") for claim in await desk_rig.claim()])
        assert (await desk.stats()).refused == 2
        claims = {} if way in ("cancel", "reschedule", "replaced") else {c.id: c for c in await desk_rig.claim()}
        assert (await desk.stats()).overdue == 2, "refused messages are overdue during a try, and each counts once"
        match way:
            case "settled":
                await store.settle([claims[message_id]])
            case "bury":
                await store.bury([(claims[message_id], "unroutable: no queue")])
            case "held":
                await store.hold([(claims[message_id], "")])
            case "cancel":
                await desk.cancel([message_id])
            case "reschedule":
                await desk.reschedule([message_id], await desk.now_ms() + HOUR_MS)
            case "replaced":
                await desk_rig.park(key=b"a key")
            case "by hand":
                await store.release([Release(claim, 60_000, 1, "") for claim in claims.values()])
                await desk_rig.tamper(message_id, None)
                await store.recover(range(SHARDS), LEASE_MS)
        stats = await desk.stats()
        assert (stats.refused, stats.by_route["orders"].refused) == (1, 1)
        assert stats.overdue == 1

    async def test_a_refused_message_counts_while_it_waits_for_the_turn_that_its_rate_gives(
        self, desk_rig: DeskRig
    ) -> None:
        await desk_rig.park_many([0] * 2)
        refused, other = await desk_rig.claim()
        await desk_rig.store.release([Release(refused, 0, 1, "unroutable: no queue")])
        await desk_rig.store.hold((claim, None) for claim in [other, *await desk_rig.claim()])
        stats = await desk_rig.desk.stats()
        assert (stats.held, stats.refused, stats.overdue, stats.by_route["orders"].refused) == (2, 1, 1, 1)

    async def test_a_refused_message_that_is_due_for_its_next_try_is_overdue_once(self, desk_rig: DeskRig) -> None:
        await desk_rig.park_many([0] * 3)
        claims = await desk_rig.claim()
        oldest_ms = min(claim.due_ms for claim in claims)
        await desk_rig.store.release([Release(claim, 1, 1, "unroutable: no queue") for claim in claims])
        await desk_rig.park(0)
        await desk_rig.pass_by(max(oldest_ms + 50, desk_rig.store.clock.now_ms()))
        stats = await desk_rig.desk.stats()
        assert (stats.overdue, stats.refused, stats.by_route["orders"].overdue) == (4, 3, 4)
        assert stats.oldest_overdue_ms >= 40

    async def test_a_running_instance_is_shown_with_its_report(self, desk_rig: DeskRig) -> None:
        await desk_rig.store.meet(60_000, True, json.dumps({"health": "All well.", "shards": [0, 1]}))
        stats = await desk_rig.desk.stats()
        assert stats.instances == {"tester": {"able": True, "health": "All well.", "shards": [0, 1]}}
        await desk_rig.store.meet(0, False, "{}")
        assert (await desk_rig.desk.stats()).instances == {}

    async def test_an_instance_that_went_silent_is_not_counted(self, desk_rig: DeskRig) -> None:
        await desk_rig.store.meet(60_000, True, "{}")
        assert (await desk_rig.desk.stats()).silent == {}
        await desk_rig.silence()
        stats = await desk_rig.desk.stats()
        assert (stats.instances, list(stats.silent)) == ({}, ["tester"])
        assert stats.silent["tester"] > 0

    async def test_an_instance_that_left_is_not_silent(self, desk_rig: DeskRig) -> None:
        await desk_rig.store.meet(60_000, True, "{}")
        await desk_rig.store.meet(0, False, "{}")
        assert (await desk_rig.desk.stats()).silent == {}

    async def test_an_instance_that_died_before_the_clock_stepped_back_is_not_counted(self, desk_rig: DeskRig) -> None:
        await desk_rig.store.meet(HOUR_MS, True, json.dumps({"takeover_ms": 4000}))
        assert (await desk_rig.desk.stats()).instances == {}

    async def test_a_lost_instance_is_named_and_counted_until_it_reports_again(self, desk_rig: DeskRig) -> None:
        other = await desk_rig.beside("other")
        for losses in (1, 2):
            await lose(desk_rig, other)
            stats = await desk_rig.desk.stats()
            assert stats.instances_lost == losses, "each loss counts, also that of an instance that came back"
            assert stats.all_warnings[0].startswith(
                f"lost instances: other (rabbitmq) at {write_moment(stats.now_ms)[:11]}"
            )
            await other.meet(TTL_MS, True, "{}")
            stats = await desk_rig.desk.stats()
            assert (dict(stats.lost), stats.instances_lost) == ({}, losses), "it has healed"

    async def test_a_lost_instance_is_named_until_another_takes_its_place(self, desk_rig: DeskRig) -> None:
        await lose(desk_rig, await desk_rig.beside("other"))
        await desk_rig.store.meet(TTL_MS, True, "{}")
        assert list((await desk_rig.desk.stats()).lost) == ["other (rabbitmq)"]
        await (await desk_rig.beside("third")).meet(TTL_MS, True, "{}")
        assert (await desk_rig.desk.stats()).lost == {}

    async def test_an_instance_whose_successor_ran_before_it_was_missed_is_not_named(self, desk_rig: DeskRig) -> None:
        dead = await desk_rig.beside("dead")
        await dead.meet(TTL_MS, True, "{}")
        await wait_out(desk_rig)
        stats = await desk_rig.desk.stats()
        assert (dict(stats.lost), stats.instances_lost) == ({}, 1)

    async def test_an_instance_that_left_is_no_loss(self, desk_rig: DeskRig) -> None:
        other = await desk_rig.beside("other")
        await other.meet(TTL_MS, True, "{}")
        await other.meet(0, False, "{}")
        await wait_out(desk_rig)
        stats = await desk_rig.desk.stats()
        assert (dict(stats.lost), stats.instances_lost) == ({}, 0)

    async def test_an_empty_store_has_numbers_too(self, desk_rig: DeskRig) -> None:
        stats = await desk_rig.desk.stats()
        assert (stats.parked, stats.next_due_ms, stats.bytes_each, stats.ever) == (0, None, None, {})


class Lead:
    """``lead``: one instance does something for all."""

    async def test_one_instance_holds_a_lease_and_extends_it(self, desk_rig: DeskRig) -> None:
        desk = desk_rig.desk
        assert await desk.lead("webhook", "a", 60_000)
        assert await desk.lead("webhook", "a", 60_000)
        assert not await desk.lead("webhook", "b", 60_000)
        assert await desk.lead("other work", "b", 60_000)

    async def test_a_lease_that_ends_later_than_any_is_cut(self, desk_rig: DeskRig) -> None:
        desk = desk_rig.desk
        assert await desk.lead("webhook", "a", HOUR_MS)
        assert not await desk.lead("webhook", "b", 20)
        await desk_rig.pass_by(await desk.now_ms() + 25)
        assert await desk.lead("webhook", "b", 60_000)

    async def test_a_lease_is_given_back_by_its_holder_alone(self, desk_rig: DeskRig) -> None:
        desk = desk_rig.desk
        assert await desk.lead("webhook", "a", 60_000)
        assert not await desk.lead("webhook", "b", 0)
        assert not await desk.lead("webhook", "b", 60_000)
        assert await desk.lead("webhook", "a", 0)
        assert await desk.lead("webhook", "b", 60_000)

    async def test_an_expired_lease_is_free(self, desk_rig: DeskRig) -> None:
        desk = desk_rig.desk
        assert await desk.lead("webhook", "a", 20)
        await desk_rig.pass_by(await desk.now_ms() + 25)
        assert await desk.lead("webhook", "b", 60_000)


class CountByRoute:
    """``stats``: the numbers of each route; ``density``."""

    async def counts(self, desk_rig: DeskRig) -> dict[str, tuple[int, int]]:
        routes = (await desk_rig.desk.stats()).by_route
        return {name: (stats.parked, stats.dead) for name, stats in routes.items()}

    async def test_the_messages_of_each_route_are_counted_through_every_move(self, desk_rig: DeskRig) -> None:
        rig, store = desk_rig, desk_rig.store
        first = await rig.park(0, key=b"a")
        bill = await rig.park(0, route="bills", order_key=b"another shard")
        later = await rig.park(HOUR_MS, route="bills", key=b"b")
        assert await self.counts(rig) == {"orders": (1, 0), "bills": (2, 0)}
        taken = {claim.id: claim for claim in await rig.claim()}
        assert await self.counts(rig) == {"orders": (1, 0), "bills": (2, 0)}
        await store.release([Release(taken[first], None, 1, "nacked: full")])
        assert await store.settle([taken[first], taken[bill]]) == 1  # the first one is no longer the caller's
        assert await self.counts(rig) == {"orders": (1, 0), "bills": (1, 0)}
        [again] = await rig.claim()
        await store.bury([(again, "unroutable: no queue")])
        assert await self.counts(rig) == {"orders": (0, 1), "bills": (1, 0)}
        await rig.desk.retry([first])
        assert await self.counts(rig) == {"orders": (1, 0), "bills": (1, 0)}
        heir = await rig.park(HOUR_MS, route="bills", key=b"b")  # replaces the first with this key
        assert await self.counts(rig) == {"orders": (1, 0), "bills": (1, 0)}
        await rig.desk.cancel([first, later, heir])
        assert await self.counts(rig) == {}

    async def test_what_is_not_parked_for_its_key_is_not_counted(self, desk_rig: DeskRig) -> None:
        await desk_rig.park(key=b"a")
        batch, field = Batch(desk_rig.store.new_token()), index_field(b"orders", b"a")
        for position, mode in enumerate(("keep", "reject", "replace", "replace"), 1):
            message_id = desk_rig.ids.next(desk_rig.store.clock.now_ms(), shard_for(b"k", SHARDS))
            batch.messages.append((message_id, 2**42, seal(2**42, 0, b"orders", b"a", b"", b"\1k")))
            batch.keyed.append(Keyed(position, field, mode))
        await desk_rig.store.park({shard_for(b"k", SHARDS): batch})
        assert await self.counts(desk_rig) == {"orders": (1, 0)}

    async def test_messages_deleted_by_hand_make_no_count_negative(self, desk_rig: DeskRig) -> None:
        ghost, whole = await desk_rig.park(0), await desk_rig.park(0, route="bills")
        claims = await desk_rig.claim()
        await desk_rig.tamper(ghost, None)
        await desk_rig.store.recover(range(SHARDS), LEASE_MS)
        assert await desk_rig.store.settle(claims) == 2
        assert await self.counts(desk_rig) == {}
        await desk_rig.tamper(await desk_rig.park(0), None)
        assert await desk_rig.claim() == []
        assert all(parked <= 1 for parked, _ in (await self.counts(desk_rig)).values())
        assert whole not in [row.id for row in await desk_rig.listed(State.PARKED)]

    async def test_overdue_messages_and_the_next_moment_are_known_by_route(self, desk_rig: DeskRig) -> None:
        old = await desk_rig.park(0)
        (row,) = await desk_rig.desk.look([old], 0)
        await desk_rig.park(HOUR_MS)
        bill = await desk_rig.park(HOUR_MS, route="bills")
        (next_bill,) = await desk_rig.desk.look([bill], 0)
        await desk_rig.pass_by(row.due_ms + 5)
        stats = await desk_rig.desk.stats()
        orders, bills = stats.by_route["orders"], stats.by_route["bills"]
        assert (orders.parked, orders.overdue, orders.next_due_ms) == (2, 1, row.due_ms)
        # On a Cluster the shards are counted one after the other.
        assert abs(orders.oldest_overdue_ms - (stats.now_ms - row.due_ms)) < 1000
        assert (bills.overdue, bills.oldest_overdue_ms, bills.next_due_ms) == (0, 0, next_bill.due_ms)

    async def test_density_counts_what_is_due_between_each_two_moments(self, desk_rig: DeskRig) -> None:
        now_ms = await desk_rig.desk.now_ms()
        for minutes in (1, 1, 3, 7):
            await desk_rig.park(order_key=b"%d" % minutes, due_ms=now_ms + minutes * 60_000)
        bounds_ms = [now_ms + minutes * 60_000 for minutes in (0, 1, 3, 5, 10)]
        assert await desk_rig.desk.density(bounds_ms) == [0, 2, 1, 1]
        assert await desk_rig.desk.density(bounds_ms[:1]) == []


class Order:
    """``orders`` and ``order``; held messages as an operator sees them."""

    async def hold(self, desk_rig: DeskRig, reason: str = "", **more: Any) -> Row:
        """Park a message that is due, and hold it as the claim loop does."""
        message_id = await desk_rig.park(0, **more)
        await desk_rig.store.hold((claim, reason) for claim in await desk_rig.claim())
        (row,) = await desk_rig.desk.look([message_id], 0)
        return row

    async def test_an_order_is_kept_until_the_route_runs_again(self, desk_rig: DeskRig) -> None:
        desk = desk_rig.desk
        assert await desk.orders() == {}
        before_ms = await desk.now_ms()
        await desk.order("orders", RouteState.PAUSED, ADMIN, 'the bank said "stop" – ü')
        await desk.order("bills", RouteState.DRAINING, ANNA, "")
        orders = await desk.orders()
        since_ms = orders["orders"].since_ms
        assert before_ms <= since_ms <= await desk.now_ms()
        assert orders["orders"] == RouteOrder(RouteState.PAUSED, since_ms, ADMIN, 'the bank said "stop" – ü')
        assert (orders["bills"].state, orders["bills"].by) == (RouteState.DRAINING, ANNA)
        assert (await desk_rig.store.meet(60_000, True, "{}")).orders == await desk_rig.store.orders() == orders
        await desk.order("orders", RouteState.RUNNING, ADMIN, "")
        assert (await desk.orders()).keys() == {"bills"}

    async def test_an_order_that_is_repeated_keeps_its_moment(self, desk_rig: DeskRig) -> None:
        desk = desk_rig.desk
        await desk.order("orders", RouteState.PAUSED, ADMIN, "first")
        first = (await desk.orders())["orders"]
        await desk_rig.pass_by(first.since_ms)
        await desk.order("orders", RouteState.PAUSED, ANNA, "second")
        again = (await desk.orders())["orders"]
        assert again == RouteOrder(RouteState.PAUSED, first.since_ms, ANNA, "second")
        await desk.order("orders", RouteState.DRAINING, ANNA, "third")
        assert (await desk.orders())["orders"].since_ms > first.since_ms

    async def test_a_held_message_is_shown_and_listed_at_its_due_moment(self, desk_rig: DeskRig) -> None:
        row = await self.hold(desk_rig)
        assert (row.state, row.held, row.at_ms) == (State.PARKED, True, row.due_ms)
        later = await desk_rig.park(HOUR_MS)
        assert [(row.id, row.held) for row in await desk_rig.listed(State.PARKED)] == [(row.id, True), (later, False)]
        due = Filter(due_from_ms=row.due_ms, due_before_ms=row.due_ms + 1)
        assert [row.id for row in await desk_rig.listed(State.PARKED, due)] == [row.id]
        assert await desk_rig.listed(State.PARKED, Filter(due_before_ms=row.due_ms)) == []
        after = Filter(due_from_ms=row.due_ms + 1)
        assert [row.id for row in await desk_rig.listed(State.PARKED, after)] == [later]

    async def test_a_held_message_is_counted_as_held_and_is_not_overdue(self, desk_rig: DeskRig) -> None:
        row = await self.hold(desk_rig)
        await desk_rig.park(HOUR_MS, route="bills")
        await desk_rig.pass_by(row.due_ms + 5)
        stats = await desk_rig.desk.stats()
        assert (stats.parked, stats.held, stats.overdue) == (2, 1, 0)
        assert stats.next_due_ms is not None
        assert stats.next_due_ms > stats.now_ms
        orders = stats.by_route["orders"]
        assert 5 <= orders.oldest_held_ms <= stats.now_ms - row.due_ms
        assert orders == RouteStats(parked=1, held=1, oldest_held_ms=orders.oldest_held_ms)
        assert await desk_rig.desk.density([0, row.due_ms + HOUR_MS * 2]) == [1]

    async def test_the_oldest_held_message_of_a_route_is_known_behind_many_older_ones_of_another(
        self, desk_rig: DeskRig
    ) -> None:
        desk, store = desk_rig.desk, desk_rig.store

        async def oldest(route: str) -> int:
            """Return the place among ``rows`` of the oldest held message. Shards are asked some milliseconds apart."""
            stats = await desk.stats()
            due_ms = stats.now_ms - stats.by_route[route].oldest_held_ms
            return max(place for place, row in enumerate(rows) if row.due_ms <= due_ms)

        rows = [[await self.hold(desk_rig, route="bills") for _ in range(20)][-1]]
        for _ in range(3):
            await desk_rig.pass_by(rows[-1].due_ms + 200)
            rows.append(await self.hold(desk_rig))
        await desk_rig.pass_by(rows[-1].due_ms)
        shard = shard_of(rows[0].id)
        assert {shard_of(row.id) for row in rows} == {shard}
        assert await oldest("orders") == 1
        await store.let_go({shard: HeldStep(FIRST_HELD, {"orders": 1}, False)}, 100)
        assert await oldest("orders") in {1, 2}
        await desk.cancel([rows[2].id])
        await store.let_go({shard: HeldStep(FIRST_HELD, {"orders": 0}, True)}, 100)
        assert await oldest("orders") == 3
        await desk.reschedule([rows[3].id], rows[1].due_ms)
        assert await oldest("orders") == 1
        assert {route for route, counts in (await desk.stats()).by_route.items() if counts.oldest_held_ms} == {"orders"}

    async def test_a_message_that_is_held_because_no_instance_has_its_route_is_refused_and_overdue(
        self, desk_rig: DeskRig
    ) -> None:
        row = await self.hold(desk_rig, "no_route: a reason")
        assert (row.held, row.reason) == (True, "no_route: a reason")
        await desk_rig.pass_by(row.due_ms + 5)
        stats = await desk_rig.desk.stats()
        assert (stats.held, stats.refused, stats.overdue) == (1, 1, 1)
        orders = stats.by_route["orders"]
        assert (orders.held, orders.refused, orders.overdue, orders.oldest_overdue_ms > 4) == (1, 1, 1, True)
        await desk_rig.desk.cancel([row.id])
        assert (await desk_rig.desk.stats()).by_route == {}

    async def test_what_is_due_on_a_paused_route_is_held_and_overdue_only_from_the_resume_on(
        self, desk_rig: DeskRig
    ) -> None:
        desk = desk_rig.desk
        await desk.order("orders", RouteState.PAUSED, ADMIN, "")
        await self.hold(desk_rig)
        await desk_rig.park(0)
        await desk_rig.store.release([Release(claim, 60_000, 1, "a reason") for claim in await desk_rig.claim()])
        last = await desk_rig.park(0)
        (row,) = await desk.look([last], 0)
        await desk_rig.pass_by(row.due_ms + 300)
        stats = await desk.stats()
        assert (stats.held, stats.overdue, stats.oldest_overdue_ms, stats.refused) == (2, 0, 0, 1)
        await desk.order("orders", RouteState.RUNNING, ADMIN, "")
        let_go_ms = (await desk_rig.store.orders())["orders"].let_go_ms
        assert let_go_ms > row.due_ms + 300
        await desk_rig.pass_by(let_go_ms + 5)
        stats = await desk.stats()
        assert (stats.held, stats.overdue) == (1, 2)
        assert 0 < stats.oldest_overdue_ms <= stats.now_ms - let_go_ms
        assert await desk.orders() == {}

    async def test_a_message_that_was_overdue_before_a_pause_is_overdue_since_then_without_the_pause(
        self, desk_rig: DeskRig
    ) -> None:
        desk = desk_rig.desk
        (row,) = await desk.look([await desk_rig.park(0)], 0)
        await desk_rig.pass_by(row.due_ms + 400)
        for _ in range(2):
            await desk.order("orders", RouteState.PAUSED, ADMIN, "")
            await desk_rig.pass_by(await desk.now_ms() + 300)
            await desk.order("orders", RouteState.RUNNING, ADMIN, "")
        stats = await desk.stats()
        paused_ms = sum(end_ms - begin_ms for begin_ms, end_ms in (await desk_rig.store.orders())["orders"].pauses)
        assert paused_ms >= 600
        assert 400 <= stats.by_route["orders"].oldest_overdue_ms <= stats.now_ms - row.due_ms - paused_ms

    async def test_a_held_message_that_is_rescheduled_stays_held_and_a_cancelled_one_is_gone(
        self, desk_rig: DeskRig
    ) -> None:
        row = await self.hold(desk_rig)
        assert await desk_rig.desk.reschedule([row.id], row.due_ms + HOUR_MS) == {row.id: "parked"}
        (moved,) = await desk_rig.desk.look([row.id], 0)
        assert (moved.held, moved.at_ms, moved.due_ms) == (True, row.due_ms + HOUR_MS, row.due_ms + HOUR_MS)
        assert await desk_rig.desk.cancel([row.id]) == {row.id: "parked"}
        assert (await desk_rig.desk.stats()).by_route == {}


class Everything(Order):
    """``stored``: every message whole, in any state, once where nothing moves."""

    async def test_every_message_comes_with_its_envelope_and_its_state(self, desk_rig: DeskRig) -> None:
        held = await self.hold(desk_rig)
        body = b"\1k" + bytes(range(256)) * 8192
        parked = [await desk_rig.park(order_key=str(n).encode(), payload=body) for n in range(5)]
        dead = await desk_rig.bury("unroutable: no queue")
        await desk_rig.park(0)
        (claimed,) = [claim.id for claim in await desk_rig.claim()]
        found = {stored.row.id: stored async for stored in desk_rig.desk.stored()}
        assert found.keys() == {held.id, *parked, dead, claimed}
        states = {message_id: (stored.row.state, stored.row.held) for message_id, stored in found.items()}
        assert states[held.id] == (State.PARKED, True)
        assert states[dead] == (State.DEAD, False)
        assert states[claimed] == (State.CLAIMED, False)
        assert {states[message_id] for message_id in parked} == {(State.PARKED, False)}
        assert found[dead].row.reason == "unroutable: no queue"
        assert {found[message_id].row.payload for message_id in parked} == {body}
        assert all(unseal(stored.envelope).payload == stored.row.payload for stored in found.values())

    async def test_a_message_that_moves_on_the_way_is_not_missed(self, desk_rig: DeskRig) -> None:
        ids = [await desk_rig.park(order_key=str(n).encode()) for n in range(300)]
        found = set[bytes]()
        async for stored in desk_rig.desk.stored():
            if not found:
                await desk_rig.desk.reschedule(ids, 0)
                claims = await desk_rig.claim()
                await desk_rig.store.release([Release(claim, HOUR_MS, 1, "unroutable: no queue") for claim in claims])
            found.add(stored.row.id)
        assert found == set(ids)


class DeskSuite(List, Show, Find, Change, Send, Count, CountByRoute, Everything, Lead, PastSuite):
    """Every promise of a desk. A subclass has a fixture ``desk_rig``."""
