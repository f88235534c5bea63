"""What "parked" means: reads how the server keeps its data, and says in words where that is less than was asked for.

``always``    on disk before the source is accepted: appendfsync always, or WAITAOF on Redis 8 and later
``everysec``  in the append-only file, which reaches the disk within a second or two (a killed server loses nothing, a
              machine that loses power may lose that second)
``replicas``  received by so many replicas (WAIT)
``none``      in the server's memory
An evicting ``maxmemory-policy`` would delete parked messages, so it is refused whatever the durability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from redis.asyncio import RedisCluster
from redis.exceptions import RedisError, ResponseError

from adapters.redis.call import Wait
from adapters.redis.connect import Client, store_errors
from adapters.redis.sentinel import FollowingPool
from bridge.core.errors import StoreUnfit

#: Scripts that may write when memory is full (flags=allow-oom), ZMSCORE and PEXPIRE within scripts: Redis 7.0.
OLDEST = (7, 0)
#: Earlier ones answer WAITAOF before the disk has it: Redis 7.2.2 to 7.4.2 (redis/redis pull request 13793), and every
#: Valkey, which parted from Redis in between (seen on 9.1: 3000 answers in 0.2 s and one fdatasync).
WAITAOF_SINCE = (8, 0)


#: What a wait for replicas says after the number that answered.
_FEW_REPLICAS = (
    ". After a failover this lasts until the old master is back as a replica. To park meanwhile, run one replica more "
    "than redis.replicas"
)


class Server(NamedTuple):
    """What one server says of itself; a setting that it will not tell (managed services forbid CONFIG) is None."""

    name: str
    version: tuple[int, int]
    aof: bool | None
    fsync: str | None
    policy: str | None
    valkey: bool = False
    replicas: int | None = None
    sentinel: bool = False
    min_replicas: int | None = None


class Durability(NamedTuple):
    """What to wait for after parking, and what to say at start, a sentence each."""

    wait: Wait | None
    words: tuple[str, ...]


def judge(server: Server, wanted: str, replicas: int, timeout_ms: int) -> Durability:
    """Pure. Raises ``StoreUnfit`` with one sentence for a server under which messages can be lost."""
    if server.version < OLDEST:
        raise StoreUnfit(
            f"{server.name} is version {'.'.join(map(str, server.version))}, and postdate needs Redis 7.0 or Valkey 7.2"
        )
    words: list[str] = []
    if server.policy is None:
        words.append(
            f"{server.name} does not tell its maxmemory-policy: make sure that it is noeviction, "
            "any other policy deletes parked messages when memory is full"
        )
    elif server.policy != "noeviction":
        raise StoreUnfit(
            f"{server.name} has maxmemory-policy {server.policy}, which deletes parked messages when memory is full: "
            "set it to noeviction"
        )
    wait = _wait(server, wanted, replicas, timeout_ms, words)
    if server.sentinel and wanted in ("everysec", "always") and server.min_replicas == 0:
        words.append(
            f'{server.name} has min-replicas-to-write 0. With redis.durability = "{wanted}", a failover by Sentinel '
            "can lose what was parked just before it. Set min-replicas-to-write 1 on the master and on its replicas, "
            'or redis.durability = "replicas"'
        )
    return Durability(wait, tuple(words))


def _wait(server: Server, wanted: str, replicas: int, timeout_ms: int, words: list[str]) -> Wait | None:
    if wanted == "none":
        words.append(f'redis.durability is "none": what is parked on {server.name} is lost when that server stops')
        return None
    if wanted == "replicas":
        if server.replicas is not None and server.replicas < replicas:
            words.append(too_few_replicas(server, replicas))
        return Wait(("WAIT", replicas, timeout_ms), replicas, "waiting for replicas of Redis", _FEW_REPLICAS)
    if server.aof is False:
        raise StoreUnfit(
            f'{server.name} keeps no append-only file, so redis.durability = "{wanted}" cannot be had: '
            'set "appendonly yes" there, or redis.durability = "none" if losing parked messages is acceptable'
        )
    if server.aof is None or server.fsync is None:
        words.append(
            f"{server.name} does not tell how it writes its append-only file: "
            f'redis.durability = "{wanted}" is not checked'
        )
    if wanted == "always" and server.fsync != "always":
        if server.version >= WAITAOF_SINCE and not server.valkey and server.fsync != "no":
            return Wait(("WAITAOF", 1, 0, timeout_ms), 1, "waiting for Redis to write its append-only file to disk")
        told = f"has appendfsync {server.fsync}" if server.fsync else "does not tell its appendfsync"
        raise StoreUnfit(
            f'{server.name} {told}, so redis.durability = "always" cannot be had: '
            'set "appendfsync always" there, or use Redis 8 with "appendfsync everysec"'
        )
    if server.fsync == "no":
        raise StoreUnfit(
            f'{server.name} has appendfsync no, so redis.durability = "everysec" cannot be had: '
            'set "appendfsync everysec" there'
        )
    return None


def too_few_replicas(server: Server, wanted: int) -> str:
    """A word and no refusal: a replica may come back."""
    return (
        f'{server.name} has {server.replicas} connected replicas, and redis.durability = "replicas" waits for '
        f"{wanted}: nothing is parked until so many are there (redis.replicas)"
    )


async def ask(client: Client) -> list[Server]:
    """Every server that holds data: the one, or the cluster's primaries."""
    with store_errors():
        if not isinstance(client, RedisCluster):
            server = await _ask_one(client, "Redis", {})
            if not isinstance(client.connection_pool, FollowingPool):
                return [server]
            kept = await _config(client, "min-replicas-to-write", {})
            return [server._replace(sentinel=True, min_replicas=None if kept is None else int(kept))]
        await client.initialize()
        return [
            await _ask_one(client, f"the Redis Cluster node {node.name}", {"target_nodes": node})
            for node in client.get_primaries()
        ]


async def _ask_one(client: Any, name: str, where: Mapping[str, Any]) -> Server:
    info = _single(await client.info("everything", **where) if not where else await client.info(**where))
    major, minor, *_ = (*(int(part) for part in str(info["redis_version"]).split(".")), 0)
    if "valkey_version" in info:
        major, minor, *_ = (*(int(part) for part in str(info["valkey_version"]).split(".")), 0)
    aof = info.get("aof_enabled")
    return Server(
        name,
        (major, minor),
        None if aof is None else bool(aof),
        await _config(client, "appendfsync", where),
        await _config(client, "maxmemory-policy", where) or info.get("maxmemory_policy"),
        "valkey_version" in info,
        None if info.get("connected_slaves") is None else int(info["connected_slaves"]),
    )


async def _config(client: Any, name: str, where: Mapping[str, Any]) -> str | None:
    try:
        answer = _single(await client.config_get(name, **where))
    except ResponseError:
        return None
    except RedisError:
        raise
    value = answer.get(name)
    return value.decode() if isinstance(value, bytes) else cast("str | None", value)


def _single(answer: Any) -> dict[str, Any]:
    """A cluster client answers {node: reply} for some calls, the plain reply for others."""
    values = list(answer.values()) if isinstance(answer, dict) else []
    if len(values) == 1 and isinstance(values[0], dict) and "redis_version" not in answer:
        return cast("dict[str, Any]", values[0])
    return {key.decode() if isinstance(key, bytes) else key: value for key, value in answer.items()}
