"""What only the admin desk on Redis has: pages, and an agreement. The rest is in tests/conformance/desk_suite.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.redis import desk as desk_module
from adapters.redis.desk import RedisDesk
from bridge.core.errors import StoreUnfit
from bridge.core.state import State
from bridge.operate.describe import message_of, open_payload
from tests.conformance.desk_rig import RedisDeskRig
from tests.conformance.rig import HOUR_MS, SHARDS

pytestmark = pytest.mark.redis


@pytest.fixture
async def rig(redis_url: str, key_prefix: str) -> AsyncIterator[RedisDeskRig]:
    rig = RedisDeskRig(redis_url, key_prefix)
    await rig.open()
    yield rig
    await rig.close()


async def test_no_more_is_read_than_the_limit_needs(rig: RedisDeskRig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.park_many([HOUR_MS + n for n in range(200)])
    monkeypatch.setattr(desk_module, "_PAGE_FIRST", 5)
    rows_read: list[int] = []
    ask = rig.redis_desk._runner.many

    async def count(calls: Any, wait: Any = None) -> Any:
        replies = await ask(calls, wait)
        rows_read.extend((len(reply) - 2) // 5 for reply in replies)
        return replies

    monkeypatch.setattr(rig.redis_desk._runner, "many", count)
    assert len(await rig.listed(State.PARKED, most=4)) == 4
    assert sum(rows_read) <= SHARDS * 20 + 10


async def test_large_messages_are_read_in_several_calls_and_all_found(
    rig: RedisDeskRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "_PAGE_BYTES", 3000)
    for n in range(10):
        await rig.park(HOUR_MS + n, payload=b"\1k" + b"x" * 2000)
    assert len(await rig.listed(State.PARKED)) == 10


async def test_commands_show_an_envelope_that_cannot_be_opened(rig: RedisDeskRig) -> None:
    message_id, envelope = await rig.park(), b"\x63" + b"whatever" * 10
    await rig.tamper(message_id, envelope)
    (row,) = await rig.desk.look([message_id], -1)
    assert message_of(row).reason == row.reason
    assert row.reason.startswith("damaged: ")
    assert open_payload(row)[3:] == (envelope, len(envelope))


async def test_reading_changes_no_key(rig: RedisDeskRig) -> None:
    async def dump() -> list[bytes]:
        return [await rig.client.dump(key) for key in sorted(await rig.client.keys(f"*{rig.prefix}*"))]

    await rig.park(key=b"a")
    await rig.bury("why: not")
    await rig.claim()
    before = await dump()
    for state in (State.PARKED, State.CLAIMED, State.DEAD):
        await rig.listed(state)
    await rig.desk.stats()
    assert before == await dump()


async def test_a_desk_with_another_number_of_shards_is_refused(rig: RedisDeskRig) -> None:
    with pytest.raises(StoreUnfit, match=r"redis\.shards = 4"):
        await RedisDesk(rig.client, rig.prefix, 8, rig.redis_store).open()


async def test_a_store_that_was_never_used_is_opened_and_nothing_is_written(rig: RedisDeskRig) -> None:
    await RedisDesk(rig.client, f"{rig.prefix}new", 8, rig.redis_store).open()
    assert await rig.client.keys(f"*{rig.prefix}new*") == []


async def test_stats_name_every_node_of_a_cluster(redis_cluster_url: str, key_prefix: str) -> None:
    rig = RedisDeskRig(redis_cluster_url, key_prefix)
    await rig.open()
    try:
        assert len((await rig.desk.stats()).memory) == 3
    finally:
        await rig.close()
