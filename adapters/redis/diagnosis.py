"""What a Redis server tells of itself that concerns postdate, for `postdate doctor`. Nothing is written."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from redis.exceptions import RedisError, ResponseError

from adapters.redis.connect import close, connect
from adapters.redis.durability import Server, ask
from adapters.redis.errors import store_errors
from adapters.redis.guard import memory_of, persistence_of, refuses_writes
from adapters.redis.keys import StoreKeys
from adapters.redis.scripts import scripts
from adapters.redis.servers import observe
from bridge.core.clock import CLOCK_OFF_S, StoreClock
from bridge.desk.numbers import ServerMemory
from bridge.desk.severity import CheckResult, fail, ok, warn
from bridge.settings import Redis

_ROUND_TRIPS = 5
#: A round trip beyond this (s) delays every message.
_SLOW_S = 0.02
_CALLED = re.compile(r"redis\.call\('([A-Z]+)'")
#: What the client calls itself, with arguments where a command wants special ones.
_DIRECT = ("TIME", "INFO", "HMGET", "HGETALL", "LRANGE", "ZMSCORE", "ZCARD", "ZCOUNT", "SUBSCRIBE", "WAIT")


async def examine(settings: Redis) -> list[CheckResult]:
    """Return version, persistence, memory, clock, round trip and permissions. Raises ``StoreUnavailable``."""
    client: Any = connect(settings)
    try:
        servers = await ask(client)
        with store_errors():
            memory = await memory_of(client)
            rtt_s, offset_s = await _clock(client)
            persistence = await persistence_of(client)
            lacking = await _lacking(client, settings)
        found = [ok("store", described(server)) for server in servers]
        return [*found, *map(room, memory), *written(persistence), *clock(rtt_s, offset_s), permissions(lacking)]
    finally:
        await close(client)


def described(server: Server) -> str:
    """Return version and durability of a server for people. Pure."""
    product = "Valkey" if server.valkey else "Redis"
    fsync = f"append-only file, appendfsync {server.fsync or 'not disclosed'}"
    aof = "persistence not disclosed" if server.aof is None else fsync if server.aof else "no append-only file"
    version = ".".join(map(str, server.version))
    return f"{server.name}: {product} {version}, {aof}, maxmemory-policy {server.policy or 'not disclosed'}"


def room(memory: ServerMemory) -> CheckResult:
    """Return how much memory a server uses. `check` warns where it is nearly full. Pure."""
    used = memory.used // (1024 * 1024)
    if not memory.most:
        return ok("store", f"{memory.server} uses {used} MiB, and maxmemory is not set")
    percent = memory.used * 100 // memory.most
    return ok("store", f"{memory.server} uses {used} MiB, {percent}% of its maxmemory")


def written(persistence: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Yield what is wrong with a server's files. Pure."""
    fact, _, advice = refuses_writes(persistence).partition(". ")
    if fact:
        yield fail("store", fact, advice=advice)
    if persistence.get("aof_last_bgrewrite_status", "ok") != "ok":
        advice = "Look at Redis's log: it lacks disk space or memory to fork (vm.overcommit_memory = 1)"
        yield warn("store", "Redis could not rewrite its append-only file, so the file grows", advice)


def clock(rtt_s: float, offset_s: float) -> Iterator[CheckResult]:
    """Judge the round trip and the offset between this machine's clock and the store's (s). Pure."""
    took = f"one round trip takes {rtt_s * 1000:.1f} ms"
    if rtt_s > _SLOW_S:
        yield warn("store", took, "Run postdate closer to Redis: each delivery waits for one round trip")
    else:
        yield ok("store", took)
    text = f"this machine's clock differs from the store's by {offset_s:+.3f} s"
    if abs(offset_s) > CLOCK_OFF_S:
        yield warn("clock", text, "Synchronize both clocks (chrony, systemd-timesyncd)")
    else:
        yield ok("clock", text)


def permissions(lacking: list[str] | None) -> CheckResult:
    """Judge the commands that the Redis user may not call; None where Redis does not tell. Pure."""
    if lacking is None:
        return ok("store", "Redis does not tell which commands its user may call, so that is not checked")
    if not lacking:
        return ok("store", "its user may call every command that postdate needs")
    named = ", ".join(lacking)
    advice = f"Grant them, for example: ACL SETUSER name {' '.join('+' + command.lower() for command in lacking)}"
    return fail("store", f"its user may not call: {named}", advice=advice)


async def _clock(client: Any) -> tuple[float, float]:
    """Return the shortest round trip (s), and how far this machine's clock is ahead of the store's (s)."""
    best_s, store_clock = float("inf"), StoreClock()
    for _ in range(_ROUND_TRIPS):
        started = time.monotonic()
        await observe(client, store_clock)
        best_s = min(best_s, time.monotonic() - started)
    return best_s, -store_clock.offset_s()


async def _lacking(client: Any, settings: Redis) -> list[str] | None:
    """Return the commands that the user may not call, by ACL DRYRUN; None where that is not allowed."""
    if hasattr(client, "get_primaries"):
        return None
    key = StoreKeys(settings.key_prefix, settings.shards, "").shards[0].due
    called = {name for script in scripts().values() for name in _CALLED.findall(script.text)} | set(_DIRECT)
    try:
        user = await client.execute_command("ACL", "WHOAMI")
        known = await client.execute_command("COMMAND", "INFO", *sorted(called))
        arity = {name.upper(): abs(facts["arity"]) - 1 for name, facts in known.items()}
        lacking = [name for name in sorted(arity) if not await _may(client, user, name, *[key] * arity[name])]
        if not await _may(client, user, "EVALSHA", "0" * 40, "1", key):
            lacking.append("EVALSHA")
    except RedisError:
        return None
    return lacking


async def _may(client: Any, user: bytes, *command: str) -> bool:
    try:
        answer = await client.execute_command("ACL", "DRYRUN", user, *command)
    except ResponseError as error:
        if "NOPERM" in str(error):
            raise
        return True  # a complaint about the arguments: the command itself is allowed
    return bool(answer in (b"OK", "OK", True))
