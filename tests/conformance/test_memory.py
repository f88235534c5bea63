"""The memory store keeps the promises of a store, and those of its own."""

from __future__ import annotations

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.core.ports import DeadBatch
from bridge.core.state import MOVES
from tests.conformance.cold_rig import ColdDeskRig
from tests.conformance.desk_rig import DeskRig, JoinedDeskRig, MemoryDeskRig
from tests.conformance.desk_suite import DeskSuite
from tests.conformance.memory_rig import MemoryRig
from tests.conformance.rig import HOUR_MS, LEASE_MS, claim, ids, park
from tests.conformance.store_suite import StoreSuite


@pytest.fixture
def rig() -> MemoryRig:
    return MemoryRig()


class TestMemoryStore(StoreSuite):
    pass


class TestMemoryDesk(DeskSuite):
    @pytest.fixture
    def desk_rig(self) -> MemoryDeskRig:
        return MemoryDeskRig()


class TestJoinedDesks(DeskSuite):
    @pytest.fixture
    def desk_rig(self) -> JoinedDeskRig:
        return JoinedDeskRig()


class TestColdDesk(DeskSuite):
    @pytest.fixture
    def desk_rig(self) -> ColdDeskRig:
        return ColdDeskRig()

    async def test_overdue_messages_and_the_next_moment_are_known_by_route(self, desk_rig: DeskRig) -> None:
        """The next moment of a route is not known where all of its messages are cold."""
        await desk_rig.park(route="bills")
        stats = await desk_rig.desk.stats()
        assert (stats.parked, stats.cold, stats.next_due_ms) == (1, 1, desk_rig.store.clock.now_ms() + HOUR_MS)
        assert (stats.by_route["bills"].parked, stats.by_route["bills"].next_due_ms) == (1, None)


def test_it_makes_every_move_there_is(rig: MemoryRig) -> None:
    assert [move.name for move in MOVES if not hasattr(rig.memory.shards[0], move.name)] == []


async def test_a_message_is_due_in_its_millisecond_and_not_before(rig: MemoryRig) -> None:
    store = await rig.open()
    message = rig.message(await rig.now_ms() + 1)
    await park(store, message)
    rig.clock.advance(0.999)
    assert ids(await claim(store)) == []
    rig.clock.advance(0.001)
    assert ids(await claim(store)) == [message[0]]


async def test_a_lease_ends_in_its_millisecond_and_not_before(rig: MemoryRig) -> None:
    store = await rig.open()
    await rig.claimed(store)
    rig.clock.advance(LEASE_MS - 1)
    assert await store.recover([0], LEASE_MS) == 0
    rig.clock.advance(1)
    assert await store.recover([0], LEASE_MS) == 1


async def test_a_store_that_is_away_fails_every_call_and_changes_nothing(rig: MemoryRig) -> None:
    store = await rig.open()
    await park(store, *(await rig.overdue()))
    rig.memory.away = "the machine is off"
    with pytest.raises(StoreUnavailable, match="the machine is off"):
        await park(store, *(await rig.overdue()))
    with pytest.raises(StoreUnavailable, match="the machine is off"):
        await claim(store)
    with pytest.raises(StoreUnavailable, match="the machine is off"):
        await store.recover([0], LEASE_MS)
    rig.memory.away = ""
    assert len((await claim(store)).claims) == 1


async def test_a_full_store_refuses_what_is_new_and_delivers_what_is_due(rig: MemoryRig) -> None:
    store = await rig.open()
    await park(store, *(await rig.overdue()))
    rig.memory.full = True
    with pytest.raises(StoreUnavailable, match="full"):
        await park(store, *(await rig.overdue()))
    with pytest.raises(StoreUnavailable, match="full"):
        await store.reject(0, DeadBatch(store.new_token(), []))
    assert await store.settle((await claim(store)).claims) == 1
