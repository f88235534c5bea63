"""What a step of the store's clock must not do: keep what a dead instance held, or remove a living one."""

from __future__ import annotations

from tests.conformance.rig import HOUR_MS, LEASE_MS, Rig, claim, park


class ClockSteps:
    """The clock steps by an hour, while leases and drains last a minute at most."""

    async def test_an_instance_whose_time_is_an_hour_ahead_is_gone_and_one_that_speaks_again_is_there(
        self, rig: Rig
    ) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await store.meet(60_000, True, "{}")
        await rig.stretch(HOUR_MS)
        assert (await other.meet(60_000, True, "{}")).able == ["b"]
        assert (await store.meet(60_000, True, "{}")).able == ["a", "b"]
        assert (await other.meet(60_000, True, "{}")).able == ["a", "b"]

    async def test_an_instance_that_was_met_stays_when_the_clock_steps_forward(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await store.meet(60_000, True, "{}")
        await other.meet(60_000, True, "{}")
        await rig.stretch(-HOUR_MS)
        assert (await other.meet(60_000, True, "{}")).able == ["a", "b"]

    async def test_a_drain_that_lasts_an_hour_longer_than_any_is_free(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await park(store, *await rig.overdue(2))
        await claim(store, limit=1)
        assert (await claim(other)).owner == "a"
        await rig.stretch(HOUR_MS)
        await other.recover([0], LEASE_MS)
        assert (await claim(other)).owner is None

    async def test_a_lease_that_ends_an_hour_too_late_is_cut_to_its_length(self, rig: Rig) -> None:
        store = await rig.open()
        await park(store, *await rig.overdue(2))
        await claim(store)
        await rig.stretch(HOUR_MS)
        assert await store.recover([0], LEASE_MS) == 0
        await rig.stretch(-LEASE_MS)
        assert await store.recover([0], LEASE_MS) == 2
