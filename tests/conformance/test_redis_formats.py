"""A store that an older postdate made is read as it is, while messages wait in it."""

from __future__ import annotations

import pytest

from adapters.redis import guard
from adapters.redis.keys import StoreKeys
from bridge.core.errors import StoreUnfit
from tests.conformance.redis_rig import RedisRig
from tests.conformance.rig import HOUR_MS, LEASE_MS, SHARDS, claim, ids, park

pytestmark = pytest.mark.redis


async def test_what_format_1_holds_is_delivered_and_its_leases_end(
    redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Format 1 had a lease for each message: a sorted set of id and claim token."""
    monkeypatch.setattr(guard, "_STOPPED_S", 0.0)
    rig = RedisRig(redis_url, key_prefix)
    store, keys = await rig.open(), StoreKeys(key_prefix, SHARDS, "")
    messages = await rig.overdue(5)
    await park(store, *messages)
    await rig.client.hset(keys.store, "format", 1)
    claimed, now_ms = messages[:3], await rig.now_ms()
    await rig.client.zrem(keys.shards[0].due, *(message[0] for message in claimed))
    leases = {message[0] + b"old_tokn": now_ms - 1 for message in claimed[:2]} | {
        claimed[2][0] + b"old_tokn": now_ms + HOUR_MS
    }
    await rig.client.zadd(keys.shards[0].claimed, leases)

    store = await rig.open("b")
    assert await rig.client.hget(keys.store, "format") == b"2"
    waiting = await claim(store)
    assert ids(waiting) == [message[0] for message in messages[3:]]
    assert await store.recover([0], LEASE_MS) == 2
    assert await store.settle([*waiting.claims, *(await claim(store)).claims]) == 4
    assert await rig.word(claimed[0][0]) == await rig.word(claimed[1][0]) == "none"
    left = await rig.client.zrange(keys.shards[0].claimed, 0, -1)
    assert left == [claimed[2][0] + b"old_tokn"], "its old holder may still settle it, but not for an hour"
    assert await rig.client.zscore(keys.shards[0].claimed, left[0]) < now_ms + HOUR_MS
    await rig.close()


async def test_a_store_of_a_newer_format_is_refused(redis_url: str, key_prefix: str) -> None:
    rig = RedisRig(redis_url, key_prefix)
    await rig.open()
    await rig.client.hset(StoreKeys(key_prefix, SHARDS, "").store, "format", 3)
    with pytest.raises(StoreUnfit, match="format 3, and this postdate reads formats up to 2"):
        await rig.open("b")
    await rig.close()


async def test_a_log_of_parked_messages_that_nobody_reads_any_more_ends_within_an_hour(
    redis_url: str, key_prefix: str
) -> None:
    """A journal that wrote its rows behind writes them before now: the log would fill Redis."""
    rig = RedisRig(redis_url, key_prefix)
    store, key = await rig.open(), StoreKeys(key_prefix, SHARDS, "").shards[0].parks
    await store.moves.let_parks_end([0])
    assert not await rig.client.exists(key)
    await store.moves.read([0], 1, parks=True)
    await store.moves.read([0], 1, parks=True)
    assert await rig.client.pttl(key) > HOUR_MS
    await store.moves.let_parks_end([0])
    assert 0 < await rig.client.pttl(key) <= HOUR_MS
    await store.moves.read([0], 1, parks=True)
    assert await rig.client.pttl(key) > HOUR_MS, "another instance reads it"
    await rig.close()
