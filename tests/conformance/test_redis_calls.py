"""What the store on Redis leaves out of its calls, because nothing needs it, and what it keeps of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adapters.redis.store import _ranges
from bridge.core.ports import Batch
from tests.conformance.redis_rig import RedisRig
from tests.conformance.rig import DRAIN_MS, HOUR_MS, claim, park

CALL = b"\1call\1"


@pytest.fixture
async def rig(redis_url: str, key_prefix: str) -> AsyncIterator[RedisRig]:
    rig = RedisRig(redis_url, key_prefix)
    yield rig
    await rig.close()


@pytest.mark.redis
async def test_a_hint_is_sent_unless_the_caller_drains_the_shard(rig: RedisRig) -> None:
    store, other = await rig.open("a"), await rig.open("b")
    heard: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    listening = asyncio.create_task(other.listen(lambda shard, due_ms: heard.put_nowait((shard, due_ms))))
    far_ms = await rig.now_ms() + HOUR_MS
    while await rig.client.pubsub_numsub(rig._keys.shards[0].wake) != [(rig._keys.shards[0].wake.encode(), 1)]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await claim(store)
    await park(store, rig.message(far_ms))
    await park(other, rig.message(far_ms - 1))
    assert await asyncio.wait_for(heard.get(), 5) == (0, far_ms - 1)
    await store.hand_over([0])
    assert await asyncio.wait_for(heard.get(), 5) == (0, 0)
    await park(store, rig.message(far_ms - 2))
    assert await asyncio.wait_for(heard.get(), 5) == (0, far_ms - 2)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)


@pytest.mark.redis
async def test_a_shard_is_drained_for_nearly_the_whole_time_after_each_claim(rig: RedisRig) -> None:
    store, drain = await rig.open(), rig._keys.shards[0].drain
    await claim(store)
    await rig.client.pexpire(drain, DRAIN_MS // 2)
    await claim(store)
    assert await rig.client.pttl(drain) <= DRAIN_MS // 2, "it was extended a moment ago"
    store._drained[0] -= DRAIN_MS / 1000 / 8
    await claim(store)
    assert await rig.client.pttl(drain) > DRAIN_MS * 7 / 8
    await rig.client.delete(drain)
    await claim(store)
    assert await rig.client.pttl(drain) > DRAIN_MS * 7 / 8


@pytest.mark.redis
async def test_calls_of_instances_that_are_long_gone_are_forgotten(rig: RedisRig) -> None:
    counts, now_s = rig._keys.shards[0].counts, await rig.now_ms() // 1000
    old, recent = (b"12345678" + at_s.to_bytes(4, "big") for at_s in (now_s - 3700, now_s - 3500))
    await rig.client.hset(counts, mapping={CALL + b"old": old, CALL + b"recent": recent})
    store = await rig.open("new")
    await store.look_at_clock()
    await park(store, rig.message(await rig.now_ms() + HOUR_MS))
    fields = await rig.client.hkeys(counts)
    assert {field for field in fields if field.startswith(CALL)} == {CALL + b"recent", CALL + b"new"}


@pytest.mark.redis
async def test_the_recent_list_of_format_1_goes_on_with_its_numbers(rig: RedisRig) -> None:
    store, keys = await rig.open(), rig._keys.shards[0]
    await rig.client.rpush(keys.recent, (40).to_bytes(8, "big") + bytes(56))
    for _ in range(2):
        await park(store, rig.message(await rig.now_ms() + HOUR_MS), recent=bytes(28), recent_max=100)
    entries = await rig.client.lrange(keys.recent, 0, -1)
    assert [int.from_bytes(entry[:8], "big") for entry in entries] == [40, 42, 43]


def test_records_that_follow_each_other_are_one_range() -> None:
    messages = [(b"", 0, b"")] * 6
    origins = [(b"a", 4), (b"a", 5), (b"b", 6), (b"a", 6), (b"a", 8), (b"a", 8)]
    batch = Batch(b"12345678", messages, origins=origins, owed=[(b"a", 9), (b"a", 10)])
    assert _ranges(batch) == [b"a", 4, 2, b"b", 6, 1, b"a", 6, 1, b"a", 8, 1, b"a", 8, 1, b"a", 9, 2]
    with pytest.raises(ValueError, match="for each message"):
        _ranges(Batch(b"12345678", messages, owed=[(b"a", 9)]))
