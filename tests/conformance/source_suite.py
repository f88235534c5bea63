"""The promises of ``bridge.core.ports.Source`` as tests. Every source passes them."""

from __future__ import annotations

import asyncio

from bridge.core.message import Delivery
from bridge.core.ports import Source
from tests.conformance.ends_rig import BYTES_MAX, DEADLINE_S, EndFeature, SourceRig, bodies, until

ALL = (1000, BYTES_MAX)
#: What has not come after this time does not come.
QUIET_S = 0.3


def numbered(number: int, first: int = 0) -> list[bytes]:
    """Return bodies that name their place."""
    return [b"%d" % place for place in range(first, first + number)]


async def take(source: Source, number: int) -> list[Delivery]:
    """Return the next deliveries; fail if more come."""
    taken: list[Delivery] = []
    while len(taken) < number:
        taken += await asyncio.wait_for(source.take(number - len(taken), BYTES_MAX), DEADLINE_S)
    assert len(taken) == number
    return taken


async def nothing_comes(source: Source) -> None:
    """Fail if another delivery comes."""
    await asyncio.sleep(QUIET_S)
    assert source.more(*ALL) == []


class Take:
    """``take`` and ``more``: batches, their bounds and their order."""

    async def test_take_waits_and_more_does_not(self, source_rig: SourceRig) -> None:
        source = await source_rig.open()
        taking = asyncio.create_task(source.take(*ALL))
        await asyncio.sleep(QUIET_S)
        assert not taking.done()
        assert source.more(*ALL) == []
        await source_rig.feed(b"a")
        assert bodies(source_rig, await asyncio.wait_for(taking, DEADLINE_S)) == [b"a"]
        assert source.more(*ALL) == []

    async def test_a_batch_keeps_both_bounds_and_a_larger_delivery_comes_alone(self, source_rig: SourceRig) -> None:
        source = await source_rig.open()
        sent = [b"%d" % number * (500 if number % 10 == 7 else 20) for number in range(40)]
        await source_rig.feed(*sent)
        taken: list[Delivery] = []
        while len(taken) < len(sent):
            batch = await asyncio.wait_for(source.take(3, 400), DEADLINE_S)
            for more in (batch, source.more(3, 400)):
                assert len(more) <= 3
                assert len(more) <= 1 or sum(len(delivery.payload) for delivery in more) <= 400
                taken += more
            assert batch
        assert bodies(source_rig, taken) == sent

    async def test_each_route_keeps_its_order_and_routes_share_a_batch(self, source_rig: SourceRig) -> None:
        source = await source_rig.open()
        for start in range(0, 60, 20):
            for route in (0, 1):
                await source_rig.feed(*numbered(20, start), route=route)
        taken: list[Delivery] = []
        for wanted, other in (source_rig.routes, source_rig.routes[::-1]):

            def one_came(wanted: str = wanted, other: str = other) -> bool:
                batch = source.more(1, BYTES_MAX, without={other})
                assert all(delivery.route == wanted for delivery in batch)
                taken.extend(batch)
                return bool(batch)

            await until(one_came, f"nothing of route {wanted} comes")
        await asyncio.sleep(QUIET_S)
        batch = await source.take(10, BYTES_MAX)
        assert {delivery.route for delivery in batch} == set(source_rig.routes)
        taken += batch
        taken += await take(source, 120 - len(taken))
        for name in source_rig.routes:
            assert bodies(source_rig, [delivery for delivery in taken if delivery.route == name]) == numbered(60)

    async def test_more_leaves_routes_out_and_they_lose_nothing(self, source_rig: SourceRig) -> None:
        source = await source_rig.open()
        left_out, wanted = source_rig.routes
        await source_rig.feed(*numbered(5))
        await source_rig.feed(*numbered(5), route=1)
        found: list[Delivery] = []

        def five() -> bool:
            found.extend(source.more(*ALL, without={left_out}))
            return len(found) == 5

        await until(five, "a route does not come")
        assert {delivery.route for delivery in found} == {wanted}
        rest = await take(source, 5)
        assert {delivery.route for delivery in rest} == {left_out}
        assert bodies(source_rig, rest) == bodies(source_rig, found) == numbered(5)

    async def test_at_its_limit_it_stops_reading_until_deliveries_are_accepted(self, source_rig: SourceRig) -> None:
        source = await source_rig.open(window=20)
        await source_rig.feed(*numbered(60))
        taken: list[Delivery] = []
        while len(taken) < 60:
            held = await asyncio.wait_for(source.take(*ALL), DEADLINE_S)
            await asyncio.sleep(QUIET_S / 3)
            held += source.more(*ALL)
            assert len(held) <= 20
            source.accept(held)
            taken += held
        assert bodies(source_rig, taken) == numbered(60)


class Accept:
    """``accept``, ``drop``, ``alive`` and ``place``: what becomes of a delivery."""

    async def test_accepted_deliveries_are_final_and_the_others_come_again_in_order(
        self, source_rig: SourceRig
    ) -> None:
        source = await source_rig.open()
        await source_rig.feed(*numbered(10))
        first = await take(source, 10)
        assert all(map(source.alive, first))
        source.accept(first[:4])
        source = await source_rig.again()
        second = await take(source, 6)
        assert bodies(source_rig, second) == numbered(6, 4)
        for before, after in zip(first[4:], second, strict=True):  # by which the store recognizes it
            assert after.origin == before.origin
            assert after.redelivered == (after.origin is None)
            assert after.origin is not None or after.digest == before.digest
        source.accept(second)
        source = await source_rig.again()
        await source_rig.feed(b"new")
        assert bodies(source_rig, await take(source, 1)) == [b"new"]

    async def test_nothing_is_lost_if_a_younger_delivery_is_accepted_first(self, source_rig: SourceRig) -> None:
        source = await source_rig.open()
        await source_rig.feed(*numbered(10))
        taken = await take(source, 10)
        source.accept(taken[7:])
        source.accept(taken[:4])
        source = await source_rig.again()
        singly = EndFeature.ACCEPTS_SINGLY in source_rig.features
        assert bodies(source_rig, await take(source, 3 if singly else 6)) == numbered(3 if singly else 6, 4)
        await nothing_comes(source)

    async def test_deliveries_of_an_ended_source_are_not_alive_and_accepting_them_does_nothing(
        self, source_rig: SourceRig
    ) -> None:
        old = await source_rig.open()
        await source_rig.feed(*numbered(4))
        taken = await take(old, 4)
        source = await source_rig.again()
        assert not any(map(old.alive, taken))
        old.accept(taken[:2])
        old.drop(taken[2:])
        assert bodies(source_rig, await take(source, 4)) == numbered(4)

    async def test_a_source_that_lost_its_connection_delivers_again_what_was_not_accepted(
        self, source_rig: SourceRig
    ) -> None:
        source_rig.need(EndFeature.DELIVERIES_DIE_WITH_THE_CONNECTION)
        source = await source_rig.open(window=5)
        await source_rig.feed(*numbered(5))
        taken = await take(source, 5)
        await source_rig.lose_connection()
        await until(lambda: not any(map(source.alive, taken)), "the deliveries stay alive")
        source.accept(taken[:2])
        source.drop(taken[2:])
        again = await take(source, 5)
        assert bodies(source_rig, again) == numbered(5)
        assert all(map(source.alive, again))
        source.accept(again)
        await nothing_comes(source)

    async def test_a_delivery_tells_its_place_and_origin_if_the_broker_numbers_messages(
        self, source_rig: SourceRig
    ) -> None:
        source = await source_rig.open()
        await source_rig.feed(*numbered(3))
        taken = await take(source, 3)
        if EndFeature.HAS_ORIGIN not in source_rig.features:
            assert [source.place(delivery) for delivery in taken] == [{}] * 3
            assert {delivery.origin for delivery in taken} == {None}
            return
        assert [source.place(delivery) for delivery in taken] == [source_rig.place_of(offset) for offset in range(3)]
        assert [delivery.origin[1] for delivery in taken if delivery.origin] == [0, 1, 2]
        assert len({(delivery.origin[0], delivery.order_key) for delivery in taken if delivery.origin}) == 1


class Stop:
    """``stop`` and ``emptied``."""

    async def test_after_stop_nothing_new_comes_and_taken_deliveries_are_accepted(self, source_rig: SourceRig) -> None:
        source = await source_rig.open()
        await source_rig.feed(*numbered(10))
        taken = await take(source, 5)
        await asyncio.sleep(QUIET_S)  # the others are in the buffer
        source.stop()
        if EndFeature.KEEPS_HANDED_OUT_AT_STOP in source_rig.features:
            assert not source.emptied()
            taken += await take(source, 5)
        await until(source.emptied, "it never says that it is empty")
        await source_rig.feed(b"new")
        await nothing_comes(source)
        assert source.emptied()
        assert all(map(source.alive, taken))
        source.accept(taken)
        source = await source_rig.again()
        rest = [*numbered(10)[len(taken) :], b"new"]
        assert bodies(source_rig, await take(source, len(rest))) == rest
        await nothing_comes(source)


class Hold:
    """``hold``: routes of which nothing is taken in."""

    async def test_nothing_of_a_held_route_comes_until_it_is_let_go_and_others_go_on(
        self, source_rig: SourceRig
    ) -> None:
        source = await source_rig.open()
        held, other = source_rig.routes
        await source_rig.feed(b"first")
        source.accept(await take(source, 1))
        source.close_intakes([held])
        await asyncio.sleep(QUIET_S)
        await source_rig.feed(*numbered(20))
        await source_rig.feed(b"other", route=1)
        [delivery] = await take(source, 1)
        assert delivery.route == other
        source.accept([delivery])
        await nothing_comes(source)
        source.close_intakes([])
        taken = await take(source, 20)
        assert bodies(source_rig, taken) == numbered(20)
        source.accept(taken)
        await nothing_comes(source)

    async def test_what_was_taken_before_a_hold_is_accepted_and_comes_no_second_time(
        self, source_rig: SourceRig
    ) -> None:
        source = await source_rig.open()
        await source_rig.feed(*numbered(5))
        taken = await take(source, 5)
        source.close_intakes(source_rig.routes)
        await asyncio.sleep(QUIET_S)
        assert all(map(source.alive, taken))
        source.accept(taken)
        source.close_intakes([])
        await source_rig.feed(b"next")
        assert bodies(source_rig, await take(source, 1)) == [b"next"]
        await nothing_comes(source)

    async def test_a_held_route_stays_held_when_the_connection_is_lost(self, source_rig: SourceRig) -> None:
        source_rig.need(EndFeature.DELIVERIES_DIE_WITH_THE_CONNECTION)
        source = await source_rig.open()
        source.close_intakes(source_rig.routes)
        await source_rig.lose_connection()
        await source_rig.feed(b"later")
        await nothing_comes(source)
        source.close_intakes([])
        assert bodies(source_rig, await take(source, 1)) == [b"later"]


class SourceSuite(Take, Accept, Hold, Stop):
    """Every promise of a source. A subclass has a fixture ``source_rig``."""
