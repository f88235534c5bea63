"""What every store promises of messages whose route is paused."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core.ports import FIRST_HELD, HeldStep, LetGo, Store
from tests.conformance.rig import HOUR_MS, Message, Rig, claim, ids, park, park_keyed

#: Lets everything go.
ALL = HeldStep(FIRST_HELD, {}, True)


class Holding:
    """Messages of routes that are paused, at their rate or missing: ``hold`` and ``let_go``."""

    async def held(self, rig: Rig, store: Store, *messages: Message) -> list[bytes]:
        """Park messages of the past in the first shard, claim them and give them back as held. Return their ids."""
        await park(store, *messages)
        claims = (await claim(store, limit=10_000)).claims
        assert await store.hold((claim, "") for claim in claims) == len(claims)
        return [claim.id for claim in claims]

    async def step(self, store: Store, step: HeldStep = ALL, limit: int = 100, gap_us: int = 0) -> LetGo:
        """Make one step in the first shard."""
        reply = (await store.let_go({0: step}, limit, gap_us))[0]
        assert isinstance(reply, LetGo)
        return reply

    async def let_go(self, store: Store, limit: int = 100, paused: Sequence[str] = ()) -> list[frozenset[str]]:
        """Go through the held messages of the first shard. Return the routes that had some after each step."""
        after, rests = FIRST_HELD, []
        while True:
            reply = await self.step(store, HeldStep(after, dict.fromkeys(paused, 0), True), limit)
            assert reply.owned
            rests.append(reply.rest)
            if reply.ended:
                return rests
            after = reply.last

    async def test_a_held_message_is_not_claimed_until_it_is_let_go_and_keeps_its_moment(self, rig: Rig) -> None:
        store = await rig.open()
        [message_id] = await rig.overdue()
        await self.held(rig, store, message_id)
        claimed = await claim(store)
        assert (claimed.claims, claimed.next_due_ms) == ([], None)
        assert await rig.word(message_id[0]) == "parked"
        assert await self.step(store) == LetGo(
            True, 1, message_id[1], (message_id[1], message_id[0]), True, frozenset()
        )
        [again] = (await claim(store)).claims
        assert (again.id, again.due_ms, again.tries, again.payload) == (message_id[0], message_id[1], 0, b"body")

    async def test_held_messages_are_let_go_in_their_order_and_other_routes_stay(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        messages = [rig.message(now_ms - 9 + n // 4, route=(b"orders", b"bills")[n % 2]) for n in range(30)]
        order = [message for message, _, _ in sorted(messages, key=lambda message: (message[1], message[0]))]
        assert await self.held(rig, store, *messages) == order
        orders = [
            message_id
            for message_id in order
            if messages[[m[0] for m in messages].index(message_id)][2][20:26] == b"orders"
        ]
        rests = await self.let_go(store, 7, ["bills"])
        assert len(rests) > 3
        assert {frozenset({"orders", "bills"})} <= set(rests) <= {frozenset({"orders", "bills"}), frozenset({"bills"})}
        assert rests[-1] == {"bills"}
        assert ids(await claim(store)) == orders
        await self.let_go(store, 7)
        assert ids(await claim(store)) == [message_id for message_id in order if message_id not in orders]

    async def test_many_held_messages_of_one_moment_are_let_go_in_steps_past_those_that_stay(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        stay = [rig.message(due_ms, route=b"bills") for _ in range(50)]
        go = [rig.message(due_ms) for _ in range(20)]
        await self.held(rig, store, *stay, *go)
        await self.let_go(store, 6, ["bills"])
        assert ids(await claim(store)) == [message[0] for message in go]

    async def test_a_shard_that_another_instance_drains_is_left_alone(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        [message] = await rig.overdue()
        await self.held(rig, store, message)
        assert await self.step(other) == LetGo(False, 0, None, FIRST_HELD, False, frozenset())
        assert (await claim(store)).claims == []
        await store.hand_over([0])
        assert (await self.step(other)).first_ms == message[1]

    async def test_a_held_message_is_cancelled_rescheduled_and_replaced_like_any_parked_one(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        keyed = rig.message(due_ms, key=b"k")
        await park_keyed(store, keyed, b"k", "replace")
        cancelled, moved = await self.held(rig, store, rig.message(due_ms), rig.message(due_ms)), []
        cancelled.remove(keyed[0])
        moved.append(cancelled.pop())
        assert await store.cancel(cancelled, False) == {cancelled[0]: "parked"}
        assert await rig.reschedule(store, moved[0], due_ms - 7) == "parked"
        await park_keyed(store, rig.message(due_ms + HOUR_MS, key=b"k"), b"k", "replace")
        assert (await claim(store)).claims == []
        await self.let_go(store)
        [left] = (await claim(store)).claims
        assert (left.id, left.due_ms) == (moved[0], due_ms - 7)

    async def test_some_messages_of_one_route_are_let_go_in_their_order_from_now_on(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        messages = [rig.message(now_ms - 900 + n, route=(b"orders", b"bills")[n % 2]) for n in range(12)]
        await self.held(rig, store, *messages)
        orders = [message for message, _, envelope in messages if envelope[20:26] == b"orders"]
        reply = await self.step(store, HeldStep(FIRST_HELD, {"orders": 2}, False), gap_us=1000)
        assert (reply.owned, reply.moved, reply.ended, reply.rest) == (True, 2, False, frozenset({"orders", "bills"}))
        assert reply.last >= (now_ms - 898, orders[1])
        assert reply.first_ms is not None
        assert reply.first_ms >= now_ms
        await rig.after_ms(10)
        assert ids(await claim(store)) == orders[:2]
        reply = await self.step(store, HeldStep(reply.last, {"orders": 100}, False))
        assert (reply.moved, reply.ended, reply.rest) == (4, True, frozenset({"bills"}))
        assert ids(await claim(store)) == orders[2:]
        reply = await self.step(store, HeldStep(FIRST_HELD, {"orders": 5}, False))
        assert (reply.moved, reply.first_ms, reply.rest) == (0, None, frozenset({"bills"}))

    async def test_a_step_without_a_message_to_let_go_tells_which_routes_are_held(self, rig: Rig) -> None:
        store = await rig.open()
        await self.held(rig, store, *await rig.overdue(3))
        reply = await self.step(store, HeldStep(FIRST_HELD, {"orders": 0}, False))
        assert reply == LetGo(True, 0, None, FIRST_HELD, False, frozenset({"orders"}))
        assert (await claim(store)).claims == []

    async def test_a_held_message_with_a_later_moment_is_let_go_for_that_moment(self, rig: Rig) -> None:
        store = await rig.open()
        [message_id] = await self.held(rig, store, *await rig.overdue())
        later_ms = await rig.now_ms() + HOUR_MS
        assert await rig.reschedule(store, message_id, later_ms) == "parked"
        assert (await self.step(store, HeldStep(FIRST_HELD, {"orders": 5}, False))).first_ms == later_ms
        claimed = await claim(store)
        assert (claimed.claims, claimed.next_due_ms) == ([], later_ms)

    async def test_what_is_let_go_with_an_older_id_after_a_younger_one_still_comes_after_it(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        older, younger = rig.message(now_ms - 1), rig.message(now_ms - 5)
        assert older[0] < younger[0]
        await self.held(rig, store, older, younger)
        await self.step(store, HeldStep(FIRST_HELD, {"orders": 2}, False))
        await rig.after_ms(10)
        assert ids(await claim(store)) == [younger[0], older[0]]

    async def test_parked_messages_are_counted_by_route_with_held_and_claimed_ones(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        await self.held(rig, store, *(rig.message(now_ms - 9, route=b"orders") for _ in range(3)))
        await park(store, *(rig.message(now_ms - 5, route=b"bills") for _ in range(2)))
        await claim(store, limit=1)
        assert await store.parked_by_route(["orders", "bills", "none"]) == {"orders": 3, "bills": 2, "none": 0}

    async def test_a_bucket_gives_at_once_what_it_holds_and_then_what_flows_in(self, rig: Rig) -> None:
        store = await rig.open()
        assert await store.tokens("orders", 100.0, 10, 4) == 4
        assert await store.tokens("orders", 100.0, 10, 40) in (6, 7, 8)
        await rig.after_ms(50)
        assert 4 <= await store.tokens("orders", 100.0, 10, 40) <= 10
        assert await store.tokens("bills", 1.0, 1, 5) == 1
        assert await store.tokens("bills", 1.0, 1, 5) == 0
