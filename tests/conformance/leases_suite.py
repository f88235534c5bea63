"""What every store promises of the messages of one claim: each of them ends on its own, and none twice."""

from __future__ import annotations

from bridge.core.ports import Found, Release
from bridge.parking.envelope import index_field
from tests.conformance.rig import HOUR_MS, LEASE_MS, Rig, claim, ids, park

#: More than Lua's unpack takes at once.
MANY = 9_000


class Leases:
    """A claim of several messages, of which each is settled, released, held, buried, renewed or recovered."""

    async def test_a_claim_ends_message_by_message(self, rig: Rig) -> None:
        store = await rig.open()
        settled, released, buried, held, left, *more = await rig.claimed(store, 7)
        assert await store.settle([settled, *more]) == 3
        assert await store.release([Release(released, HOUR_MS, 1, "nacked: full")]) == 1
        assert await store.bury([(buried, "unroutable: no queue")]) == 1
        assert await store.hold([(held, "")]) == 1
        words = [await rig.word(message.id) for message in (settled, released, buried, held, left, *more)]
        assert words == ["none", "parked", "dead", "parked", "claimed", "none", "none"]
        again = [settled, released, buried, held, *more]
        assert await store.hold((claim, "") for claim in again) == 0
        assert await store.settle(again) == await store.renew(again, HOUR_MS) == 0
        assert await store.settle([left]) == 1

    async def test_a_renewal_extends_the_leases_of_the_messages_that_it_names_alone(self, rig: Rig) -> None:
        store = await rig.open()
        claims = await rig.claimed(store, 5)
        await rig.after_leases()
        assert await store.renew(claims[1:3], HOUR_MS) == 2
        assert await store.renew(claims[2:4], HOUR_MS) == 2
        assert await store.recover([0], LEASE_MS) == 2
        assert await store.settle(claims) == 3
        assert ids(await claim(store)) == [claims[0].id, claims[4].id]

    async def test_a_message_that_no_renewal_names_can_be_settled_until_it_is_recovered(self, rig: Rig) -> None:
        store = await rig.open()
        claims = await rig.claimed(store, 3)
        await rig.after_leases()
        assert await store.renew(claims[:1], HOUR_MS) == 1
        assert await store.settle(claims[1:]) == 2
        assert await store.recover([0], LEASE_MS) == 0
        assert await store.renew(claims, HOUR_MS) == 1

    async def test_a_message_under_an_old_and_a_new_claim_is_settled_once(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3, key=b"k")
        field = index_field(b"orders", b"k")
        await park(store, *messages, found={field: b"".join(message[0] for message in messages)})
        old = (await claim(store)).claims
        await rig.after_leases()
        await store.recover([0], LEASE_MS)
        new = (await claim(store, limit=2)).claims
        assert await store.settle([*old, *new]) == 2
        assert (await store.find([field]))[field] == Found([old[2].id], 0)
        assert await store.parked_by_route(["orders"]) == {"orders": 1}

    async def test_messages_of_several_routes_in_one_claim_are_counted_out_by_route(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        await park(store, *(rig.message(due_ms, route=route) for route in (b"orders", b"bills", b"orders")))
        claims = (await claim(store)).claims
        assert await store.settle(claims[:2]) == 2
        assert await store.parked_by_route(["orders", "bills"]) == {"orders": 1, "bills": 0}

    async def test_thousands_of_messages_of_one_claim_are_settled_released_and_recovered(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(MANY, payload=b"")
        await park(store, *messages)
        claims = (await claim(store, limit=MANY)).claims
        assert await store.release(Release(message, None, 0, "") for message in claims[::3]) == MANY / 3
        assert await store.settle(claims[1::3]) == MANY / 3
        await rig.after_leases()
        recovered = 0
        while taken := await store.recover([0], LEASE_MS):
            recovered += taken
        assert recovered == MANY / 3
        again = (await claim(store, limit=MANY)).claims
        assert [message.id for message in again] == [message.id for n, message in enumerate(claims) if n % 3 != 1]
        assert await store.settle(again) == MANY * 2 / 3
