"""What every store promises of messages whose route is paused."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core.ports import FIRST_HELD, Release, Store, Unheld
from tests.conformance.rig import HOUR_MS, Message, Rig, claim, ids, park, park_keyed


class Holding:
    """Messages of paused routes: ``release`` as held, and ``unhold``."""

    async def held(self, rig: Rig, store: Store, *messages: Message) -> list[bytes]:
        """Park messages of the past in the first shard, claim them and give them back as held. Return their ids."""
        await park(store, *messages)
        claims = (await claim(store, limit=10_000)).claims
        await store.release([Release(one, None, one.tries, "", held=True) for one in claims])
        return [one.id for one in claims]

    async def let_go(self, store: Store, limit: int = 100, paused: Sequence[str] = ()) -> list[frozenset[str]]:
        """Go through the held messages of the first shard. Return the routes with more after each step."""
        after, rests = FIRST_HELD, []
        while True:
            reply = (await store.unhold({0: after}, paused, limit))[0]
            assert isinstance(reply, Unheld)
            assert reply.owned
            rests.append(reply.rest)
            if not reply.rest:
                return rests
            after = reply.last

    async def test_a_held_message_is_not_claimed_until_it_is_let_go_and_keeps_its_moment(self, rig: Rig) -> None:
        store = await rig.open()
        [one] = await rig.overdue()
        await self.held(rig, store, one)
        claimed = await claim(store)
        assert (claimed.claims, claimed.next_due_ms) == ([], None)
        assert await rig.word(one[0]) == "parked"
        reply = (await store.unhold({0: FIRST_HELD}, (), 10))[0]
        assert reply == Unheld(True, one[1], (one[1], one[0]), frozenset())
        [again] = (await claim(store)).claims
        assert (again.id, again.due_ms, again.tries, again.payload) == (one[0], one[1], 0, b"body")

    async def test_held_messages_are_let_go_in_their_order_and_other_routes_stay(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        messages = [rig.message(now_ms - 9 + n // 4, route=(b"orders", b"bills")[n % 2]) for n in range(30)]
        order = [one for one, _, _ in sorted(messages, key=lambda one: (one[1], one[0]))]
        assert await self.held(rig, store, *messages) == order
        orders = [one for one in order if messages[[m[0] for m in messages].index(one)][2][20:26] == b"orders"]
        rests = await self.let_go(store, 7, ["bills"])
        assert len(rests) > 3
        assert set(rests[:-1]) == {frozenset({"orders"})}
        assert ids(await claim(store)) == orders
        await self.let_go(store, 7)
        assert ids(await claim(store)) == [one for one in order if one not in orders]

    async def test_many_held_messages_of_one_moment_are_let_go_in_steps_past_those_that_stay(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        stay = [rig.message(due_ms, route=b"bills") for _ in range(50)]
        go = [rig.message(due_ms) for _ in range(20)]
        await self.held(rig, store, *stay, *go)
        await self.let_go(store, 6, ["bills"])
        assert ids(await claim(store)) == [one[0] for one in go]

    async def test_a_shard_that_another_instance_drains_is_left_alone(self, rig: Rig) -> None:
        one, other = await rig.open("a"), await rig.open("b")
        [message] = await rig.overdue()
        await self.held(rig, one, message)
        assert (await other.unhold({0: FIRST_HELD}, (), 10))[0] == Unheld(False, None, FIRST_HELD, frozenset())
        assert (await claim(one)).claims == []
        await one.hand_over([0])
        assert (await other.unhold({0: FIRST_HELD}, (), 10))[0] == Unheld(
            True, message[1], (message[1], message[0]), frozenset()
        )

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
