"""What "parked" means: reads how a server keeps its data, and refuses one that keeps less than was configured.

``always``    on disk before the source is accepted: appendfsync always, or WAITAOF on Redis 8 and later
``everysec``  in the append-only file, which reaches the disk within about two seconds. A killed server loses nothing; a
              power failure loses those seconds
``replicas``  received by ``redis.replicas`` replicas (WAIT)
``none``      in the server's memory
An evicting ``maxmemory-policy`` would delete parked messages, so it is refused with every durability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from redis.exceptions import ResponseError

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.scripts import Wait
from adapters.redis.sentinel import FollowingPool
from adapters.redis.servers import servers
from bridge.core.errors import StoreUnavailable, StoreUnfit

#: Redis 7.0 has what the scripts need: flags=allow-oom, ZMSCORE, and PEXPIRE within scripts.
OLDEST = (7, 0)
#: Earlier servers answer WAITAOF before the data is on disk: Redis 7.2.2 to 7.4.2 (redis/redis pull request 13793), and
#: every Valkey, which forked in between (measured on 9.1: 3000 answers in 0.2 s with one fdatasync).
WAITAOF_SINCE = (8, 0)

_FEW_REPLICAS = (
    "After a failover this lasts until the old master is back as a replica. To park meanwhile, run one replica more "
    "than redis.replicas"
)


class Server(NamedTuple):
    """How one server is set up. None for a setting that it does not disclose (managed services forbid CONFIG)."""

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
    """What to wait for after parking, and warnings for the start, without full stops."""

    wait: Wait | None
    warnings: tuple[str, ...]


def judge(server: Server, wanted: str, replicas: int, timeout_ms: int) -> Durability:
    """Decide what to wait for. Raises ``StoreUnfit`` for a server that can lose messages. Pure."""
    if server.version < OLDEST:
        raise StoreUnfit(
            f"{server.name} has version {'.'.join(map(str, server.version))}. postdate needs Redis 7.0 or Valkey 7.2"
        )
    warnings: list[str] = []
    if server.policy is None:
        warnings.append(
            f"{server.name} does not disclose its maxmemory-policy. Make sure that it is noeviction: "
            "any other policy deletes parked messages when memory is full"
        )
    elif server.policy != "noeviction":
        raise StoreUnfit(
            f"{server.name} has maxmemory-policy {server.policy}, which deletes parked messages when memory is full. "
            "Set it to noeviction"
        )
    wait = _wait(server, wanted, replicas, timeout_ms, warnings)
    if server.sentinel and wanted in ("everysec", "always") and server.min_replicas == 0:
        warnings.append(
            f'{server.name} has min-replicas-to-write 0. With redis.durability = "{wanted}", a failover by Sentinel '
            "can lose what was parked just before it. Set min-replicas-to-write 1 on the master and on its replicas, "
            'or redis.durability = "replicas"'
        )
    return Durability(wait, tuple(warnings))


def _wait(server: Server, wanted: str, replicas: int, timeout_ms: int, warnings: list[str]) -> Wait | None:
    if wanted == "none":
        warnings.append(f'redis.durability is "none". Parked messages are lost when {server.name} stops')
        return None
    if wanted == "replicas":
        if server.replicas is not None and server.replicas < replicas:
            warnings.append(too_few_replicas(server, replicas))
        return Wait(("WAIT", replicas, timeout_ms), replicas, "waiting for replicas of Redis", _FEW_REPLICAS)
    if server.aof is False:
        raise StoreUnfit(
            f'{server.name} keeps no append-only file, which redis.durability = "{wanted}" requires. '
            'Set "appendonly yes" there, or redis.durability = "none" if losing parked messages is acceptable'
        )
    if server.aof is None or server.fsync is None:
        warnings.append(
            f"{server.name} does not disclose how it writes its append-only file, "
            f'so redis.durability = "{wanted}" is not checked'
        )
    if wanted == "always" and server.fsync != "always":
        if server.version >= WAITAOF_SINCE and not server.valkey and server.fsync != "no":
            return Wait(("WAITAOF", 1, 0, timeout_ms), 1, "waiting for Redis to write its append-only file to disk")
        found = f"has appendfsync {server.fsync}" if server.fsync else "does not disclose its appendfsync"
        raise StoreUnfit(
            f'{server.name} {found}, which is not enough for redis.durability = "always". '
            'Set "appendfsync always" there, or use Redis 8 with "appendfsync everysec"'
        )
    if server.fsync == "no":
        raise StoreUnfit(
            f'{server.name} has appendfsync no, which is not enough for redis.durability = "everysec". '
            'Set "appendfsync everysec" there'
        )
    return None


def too_few_replicas(server: Server, wanted: int) -> str:
    """Return the warning for missing replicas. It is no refusal, because a replica may come back."""
    return (
        f"{server.name} has too few connected replicas: {server.replicas} of {wanted}. Nothing is parked until "
        "redis.replicas of them are connected"
    )


async def ask(client: Client) -> list[Server]:
    """Ask every server that holds data: the single one, or the cluster's primaries."""
    with store_errors():
        found = [
            await _ask_one(client, f"the Redis Cluster node {name}" if name else "Redis", where)
            for name, where in (await servers(client)).items()
        ]
        if isinstance(getattr(client, "connection_pool", None), FollowingPool):
            minimum = await _config(client, "min-replicas-to-write", {})
            found = [found[0]._replace(sentinel=True, min_replicas=None if minimum is None else int(minimum))]
        return found


async def _ask_one(client: Any, name: str, where: Mapping[str, Any]) -> Server:
    info = await client.info("everything", **where)
    if info.get("loading"):  # and meanwhile it reports no append-only file
        raise StoreUnavailable(f"{name} is loading its data")
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
        answer = await client.config_get(name, **where)
    except ResponseError:
        return None
    value = answer.get(name.encode(), answer.get(name))
    return value.decode() if isinstance(value, bytes) else cast("str | None", value)
