"""The store and the admin desk on a real Redis: standalone, Cluster and Sentinel keep the same promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.conformance.cold_rig import ColdRedisDeskRig
from tests.conformance.desk_rig import RedisDeskRig
from tests.conformance.desk_suite import DeskSuite
from tests.conformance.redis_rig import RedisRig
from tests.conformance.rig import HOUR_MS
from tests.conformance.store_suite import StoreSuite
from tests.devstack import redis as redis_servers
from tests.devstack.fixtures import need
from tests.devstack.redis import RedisSentinel

pytestmark = pytest.mark.redis


class TestStandalone(StoreSuite):
    @pytest.fixture
    async def rig(self, redis_url: str, key_prefix: str) -> AsyncIterator[RedisRig]:
        rig = RedisRig(redis_url, key_prefix)
        yield rig
        await rig.close()

    async def test_what_is_parked_after_a_step_back_of_the_clock_is_told_from_what_was_there(
        self, rig: RedisRig
    ) -> None:
        """Redis gives it the moment of the last entry before the step."""
        before = {"m": "start", "i": "", "v": ""}
        await rig.client.xadd(rig.keys_of(rig.message(HOUR_MS)[0]).parks, before, f"{await rig.now_ms() + HOUR_MS}-7")
        await self.test_a_reading_may_end_where_the_log_ended_before(rig)


class TestStandaloneDesk(DeskSuite):
    @pytest.fixture
    async def desk_rig(self, redis_url: str, key_prefix: str) -> AsyncIterator[RedisDeskRig]:
        rig = RedisDeskRig(redis_url, key_prefix)
        await rig.open()
        yield rig
        await rig.close()

    async def test_the_history_begins_where_the_store_was_emptied(self, desk_rig: RedisDeskRig) -> None:
        """An older copy of the store has its history."""
        lost_ms, hash_of_store = await desk_rig.desk.now_ms() - 5000, desk_rig.keys.store
        await desk_rig.client.hset(hash_of_store, mapping={"lost_ms": lost_ms, "lost": 0})
        assert await desk_rig.desk.history_since_ms() < lost_ms
        await desk_rig.client.hset(hash_of_store, "emptied", 1)
        assert await desk_rig.desk.history_since_ms() == lost_ms

    async def test_a_restore_of_everything_ends_the_loss_and_the_history_begins_where_it_began(
        self, desk_rig: RedisDeskRig
    ) -> None:
        lost_ms = await desk_rig.desk.now_ms() - 5000
        await desk_rig.client.hset(desk_rig.keys.store, mapping={"lost_ms": lost_ms, "lost": 3, "emptied": 1})
        assert not (await desk_rig.desk.stats()).restoring
        await desk_rig.desk.note_restored(2)
        stats = await desk_rig.desk.stats()
        assert (stats.lost_ms, stats.still_lost, stats.restoring) == (lost_ms, 1, True)
        await desk_rig.client.hset(desk_rig.keys.store, "restoring_ms", stats.now_ms - 11_000)
        assert not (await desk_rig.desk.stats()).restoring, "it was interrupted"
        await desk_rig.desk.note_restored()
        stats = await desk_rig.desk.stats()
        assert (stats.lost_ms, stats.loss) == (0, "")
        assert await desk_rig.desk.history_since_ms() == lost_ms


class TestColdDesk(DeskSuite):
    """All that is parked for later waits in a journal alone."""

    test_overdue_messages_and_the_next_moment_are_known_by_route = None  # type: ignore[assignment]  # of cold ones it is not

    @pytest.fixture
    async def desk_rig(self, redis_url: str, key_prefix: str) -> AsyncIterator[ColdRedisDeskRig]:
        rig = ColdRedisDeskRig(redis_url, key_prefix)
        await rig.open()
        yield rig
        await rig.close()


class TestClusterDesk(DeskSuite):
    @pytest.fixture
    async def desk_rig(self, redis_cluster_url: str, key_prefix: str) -> AsyncIterator[RedisDeskRig]:
        rig = RedisDeskRig(redis_cluster_url, key_prefix)
        await rig.open()
        yield rig
        await rig.close()


class TestCluster(StoreSuite):
    @pytest.fixture
    async def rig(self, redis_cluster_url: str, key_prefix: str) -> AsyncIterator[RedisRig]:
        rig = RedisRig(redis_cluster_url, key_prefix)
        yield rig
        await rig.close()


@pytest.fixture(scope="module")
def sentinel_group() -> Iterator[RedisSentinel]:
    """One for the whole suite, unlike `redis_sentinel`: nothing here makes it fail over."""
    with need(redis_servers.launch_sentinel) as group:
        yield group


class TestSentinel(StoreSuite):
    @pytest.fixture
    async def rig(self, sentinel_group: RedisSentinel, key_prefix: str) -> AsyncIterator[RedisRig]:
        rig = RedisRig(sentinel_group.url, key_prefix)
        yield rig
        await rig.close()
