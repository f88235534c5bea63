"""Redis at its maxmemory: new messages are refused, and what frees memory still works."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.core.ports import DeadBatch, Release
from tests.conformance.redis_rig import RedisRig
from tests.conformance.rig import HOUR_MS, LEASE_MS, claim, park
from tests.devstack.fixtures import StartRedis

pytestmark = pytest.mark.redis


@pytest.fixture
async def rig(start_redis: StartRedis, key_prefix: str) -> AsyncIterator[RedisRig]:
    rig = RedisRig(start_redis().url, key_prefix)
    yield rig
    await rig.close()


async def fill(rig: RedisRig) -> None:
    """Make Redis refuse every command that needs memory."""
    await rig.client.config_set("maxmemory", 1)


async def test_a_full_redis_refuses_new_messages_and_says_why(rig: RedisRig) -> None:
    store = await rig.open()
    await fill(rig)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await park(store, *(await rig.overdue()))
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await store.reject(0, DeadBatch(store.new_token(), [(b"0" * 20, b"", "bad")]))


async def test_a_full_redis_still_delivers(rig: RedisRig) -> None:
    store = await rig.open()
    await park(store, *(await rig.overdue(5)))
    await fill(rig)

    assert (await store.meet(60_000, True, "{}")).able == ["a"]
    claims = (await claim(store)).claims
    assert len(claims) == 5
    assert await store.renew(claims, HOUR_MS) == 5
    assert await store.settle(claims[:1]) == 1
    assert await store.release([Release(claims[1], None, 1, "nacked: full")]) == 1
    assert await store.bury([(claims[2], "unroutable: no queue"), (claims[3], "unroutable: no queue")]) == 2
    await rig.after_leases()
    assert await store.recover([0], LEASE_MS) == 1
    assert await rig.retry(store, claims[2].id)
    assert await rig.reschedule(store, claims[1].id, 0) == "parked"
    assert await store.cancel([claims[3].id, claims[4].id], True) == {claims[3].id: "dead", claims[4].id: "parked"}
    await store.mark_done(0, [(b"orders-0", 7)])
    await store.hand_over([0])
    assert len((await claim(await rig.open("b"))).claims) == 2


async def test_an_instance_that_starts_while_redis_is_full_delivers(rig: RedisRig) -> None:
    await park(await rig.open(), *(await rig.overdue()))
    await rig.client.script_flush()
    await fill(rig)
    store = await rig.open()
    assert await store.settle((await claim(store)).claims) == 1


async def test_a_refused_batch_is_parked_when_there_is_room_again(rig: RedisRig) -> None:
    store = await rig.open()
    messages = await rig.overdue()
    token = store.new_token()
    await fill(rig)
    with pytest.raises(StoreUnavailable):
        await park(store, *messages, token=token)
    await rig.client.config_set("maxmemory", 0)
    await park(store, *messages, token=token)
    assert len((await claim(store)).claims) == 1


async def test_a_claim_reads_little_more_than_its_limit_of_bytes(rig: RedisRig) -> None:
    """A script blocks Redis while it reads: 100 bodies of 1 MB, of which 8 are claimed, would take half a second."""
    store = await rig.open()
    for message in await rig.overdue(60, payload=b"x" * (1 << 20)):
        await park(store, message)
    before = (await rig.client.info("memory"))["used_memory"]
    assert len((await claim(store, bytes_max=8 << 20)).claims) == 7
    peak = (await rig.client.info("memory"))["used_memory_peak"]
    assert peak - before < 40 << 20
