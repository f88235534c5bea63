"""The ground the other tests stand on: what the devstack promises."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pika
import psutil
import pytest
import redis

from tests.devstack import debian, rabbitmq4
from tests.devstack import redis as redis_servers
from tests.devstack.fixtures import StartProxy, StartRedis, need
from tests.devstack.keeper import create_time, is_same
from tests.devstack.process import Launch, ProcessRunner, end_recorded
from tests.devstack.proxy import Proxy, ThreadedProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis, RedisCluster, RedisSentinel
from tests.devstack.service import (
    PORTS,
    NotOurs,
    StartFailed,
    Unavailable,
    clean_env,
    find_or_start,
    free_ports,
    new_folder,
    wait_for,
)

pytestmark = pytest.mark.long

PROJECT = Path(__file__).parents[1]


# --- the proxy -------------------------------------------------------------------------------------------------------


class Echo:
    """Sends back what it gets, and counts it."""

    def __init__(self) -> None:
        self.got = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                self.got += len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


class Link:
    """An echo server, a proxy in front of it, and a client that is connected."""

    def __init__(self, echo: Echo, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.echo, self.proxy, self.reader, self.writer = echo, proxy, reader, writer

    async def say(self, text: bytes) -> bytes:
        self.writer.write(text)
        return await asyncio.wait_for(self.reader.readexactly(len(text)), 5)

    async def is_silent(self, for_s: float = 0.2) -> bool:
        try:
            return not await asyncio.wait_for(self.reader.read(1), for_s)
        except TimeoutError:
            return True


@asynccontextmanager
async def link() -> AsyncIterator[Link]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    proxy = await Proxy.start("127.0.0.1", server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Link(echo, proxy, reader, writer)
    finally:
        writer.close()
        await proxy.stop()
        server.close()
        await server.wait_closed()


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is a counter elsewhere, which sets no event
            await asyncio.sleep(0.005)
    assert condition(), what


async def test_the_proxy_hands_bytes_through_unchanged() -> None:
    async with link() as to:
        body = os.urandom(3_000_000)
        to.writer.write(body)
        assert await asyncio.wait_for(to.reader.readexactly(len(body)), 10) == body
        assert to.proxy.forwarded_bytes("up") == to.proxy.forwarded_bytes("down") == len(body)


async def test_a_cut_resets_the_connection_and_refuses_new_ones_until_healed() -> None:
    async with link() as to:
        assert await to.say(b"hello") == b"hello"
        to.proxy.cut()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(to.reader.read(1), 5)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", to.proxy.port)
        to.proxy.heal()
        reader, writer = await asyncio.open_connection("127.0.0.1", to.proxy.port)
        again = Link(to.echo, to.proxy, reader, writer)
        assert await again.say(b"back") == b"back"
        writer.close()


async def test_a_drop_resets_what_is_open_and_welcomes_the_next() -> None:
    async with link() as to:
        await to.say(b"hello")
        to.proxy.drop()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(to.reader.read(1), 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", to.proxy.port)
        assert await Link(to.echo, to.proxy, reader, writer).say(b"next") == b"next"
        writer.close()


async def test_a_stall_reads_nothing_and_delivers_everything_when_healed() -> None:
    async with link() as to:
        await to.say(b"hello")
        to.proxy.stall()
        to.writer.write(b"later")
        assert await to.is_silent()
        assert to.proxy.read_bytes("up") == 5
        to.proxy.heal()
        assert await asyncio.wait_for(to.reader.readexactly(5), 5) == b"later"


async def test_a_stall_one_way_lets_the_request_through_and_holds_the_reply() -> None:
    async with link() as to:
        to.proxy.stall("down")
        to.writer.write(b"ping")
        await until(lambda: to.echo.got == 4, "the request arrives")
        assert await to.is_silent()
        to.proxy.heal()
        assert await asyncio.wait_for(to.reader.readexactly(4), 5) == b"ping"


async def test_swallowed_bytes_are_read_and_never_arrive() -> None:
    async with link() as to:
        to.proxy.swallow("down")
        to.writer.write(b"lost")
        await until(lambda: to.proxy.read_bytes("down") == 4, "the proxy reads the reply")
        assert to.echo.got == 4
        to.proxy.heal()
        assert await to.say(b"kept") == b"kept"


async def test_a_limit_lets_so_many_bytes_through_and_loses_the_rest_of_the_reply() -> None:
    async with link() as to:
        to.proxy.limit("down", 3)
        to.writer.write(b"abcdef")
        assert await asyncio.wait_for(to.reader.read(), 5) == b"abc"
        assert to.echo.got == 6
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", to.proxy.port)


async def test_a_slow_link_is_late_by_its_latency_and_keeps_to_its_rate() -> None:
    async with link() as to:
        to.proxy.slow(latency_s=0.1)
        began = time.monotonic()
        await to.say(b"x")
        assert time.monotonic() - began >= 0.2
        to.proxy.slow(bytes_per_s=100_000, direction="down")
        to.proxy.slow(direction="up")
        began = time.monotonic()
        await to.say(b"x" * 40_000)
        assert 0.35 <= time.monotonic() - began < 9


async def test_a_server_that_is_not_there_looks_like_a_reset() -> None:
    proxy = await Proxy.start("127.0.0.1", free_ports(1)[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 5)
    writer.close()
    await proxy.stop()


def test_the_threaded_proxy_takes_the_same_orders_and_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"redis://user:word@127.0.0.1:{server.getsockname()[1]}/2"
        with ThreadedProxy.before(target) as proxy:
            assert proxy.through(target) == f"redis://user:word@127.0.0.1:{proxy.port}/2"
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
                peer, _ = server.accept()
                with peer:
                    client.sendall(b"hi")
                    assert peer.recv(2) == b"hi"
                    proxy.cut()
                    with pytest.raises(ConnectionResetError):
                        client.recv(1)
    assert not [thread for thread in threading.enumerate() if thread.name == "devstack-proxy"]


# --- finding and owning ----------------------------------------------------------------------------------------------


@contextmanager
def skipped_or_failed() -> Iterator[list[str]]:
    """What `need()` did: pytest's outcomes are exceptions outside Exception."""
    seen: list[str] = []
    try:
        yield seen
    except pytest.skip.Exception as skipped:
        seen.append(f"skipped: {skipped}")
    except pytest.fail.Exception as failed:
        seen.append(f"failed: {failed}")


@pytest.mark.parametrize(("ci", "outcome"), [("true", "failed"), ("", "skipped"), ("false", "skipped")])
def test_a_missing_server_fails_in_ci_and_skips_elsewhere(
    ci: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)

    def nowhere() -> None:
        raise Unavailable("no broker far and wide")

    with skipped_or_failed() as seen:
        need(nowhere)
    assert len(seen) == 1
    assert seen[0].startswith(outcome)
    assert "no broker far and wide" in seen[0]


def test_a_search_that_fails_says_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTDATE_TEST_NONE_URL", raising=False)

    def no_engine() -> Redis:
        raise Unavailable("no engine")

    def no_binary() -> Redis:
        raise Unavailable("no binary")

    with pytest.raises(Unavailable, match="POSTDATE_TEST_NONE_URL is not set; no engine; no binary"):
        find_or_start("POSTDATE_TEST_NONE_URL", Redis, [no_engine, no_binary])


def test_a_url_that_was_given_is_used_before_anything_is_started(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start_redis()
    monkeypatch.setenv(redis_servers.URL_VARIABLE, running.url)
    assert redis_servers.find().url == running.url
    assert not redis_servers.find().owned


def test_a_server_that_was_not_started_by_us_is_never_stopped_or_wiped(start_redis: StartRedis) -> None:
    running = start_redis()
    running.command("SET", "theirs", "1")
    given = Redis(running.url)
    for hurt in (given.kill, given.restart, given.pause, given.wipe, given.start):
        with pytest.raises(NotOurs):
            hurt()
    with given:
        given.stop()
    assert running.command("GET", "theirs") == b"1"


def test_ports_are_free_and_never_handed_out_twice() -> None:
    first, second = free_ports(20), free_ports(20)
    assert len({*first, *second}) == 40
    assert not {*first, *second} & {5672, 6379, 4369}


ASKING = "from tests.devstack.service import free_ports; print(*free_ports(500), flush=True); input()"


def test_processes_that_ask_at_the_same_time_get_different_ports() -> None:
    command = [sys.executable, "-c", ASKING]
    with ExitStack() as running:
        askers = [
            running.enter_context(
                subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(2)
        ]
        answers = [set(asker.stdout.readline().split()) for asker in askers if asker.stdout]
        for asker in askers:
            asker.communicate("\n")
    first, second = answers
    assert len(first) == len(second) == 500
    assert not first & second


def test_a_server_that_ends_while_starting_shows_its_log(start_redis: StartRedis) -> None:
    with pytest.raises(StartFailed, match="no-such-setting"):
        start_redis({"no-such-setting": "1"})


def test_another_processes_pid_is_left_alone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        created = create_time(process.pid)
        assert created is not None
        assert end_recorded({"processes": [[process.pid, created - 60]]}, 5) == []
        assert process.poll() is None
        process.kill()


def test_run_has_servers_up_for_one_command_and_hands_on_its_exit_code() -> None:
    code = "import os, redis; u = os.environ['POSTDATE_REDIS__URL']; print(u); redis.from_url(u).ping(); exit(7)"
    command = [sys.executable, "-m", "tests.devstack", "run", "redis", "--", sys.executable, "-c", code]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("POSTDATE_")}
    done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stderr == "Starting Redis ...\n"
    with Redis(done.stdout.strip()).client() as client, pytest.raises(redis.ConnectionError):
        client.ping()


@pytest.mark.long
def test_run_says_why_and_goes_on_without_a_server_that_is_only_wanted(tmp_path: Path) -> None:
    # Nobody listens there, and a server that was named is not replaced by another.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("POSTDATE_")}
    environ |= {"POSTDATE_TEST_KAFKA": "127.0.0.1:1", "POSTDATE_DEVSTACK_DIR": str(tmp_path)}
    code = "import os; print(os.environ.get('POSTDATE_KAFKA__BOOTSTRAP_SERVERS'))"
    for wanted, ends, printed in (("kafka?", 0, "None\n"), ("kafka", 1, "")):
        command = [sys.executable, "-m", "tests.devstack", "run", wanted, "--", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (ends, printed)
        assert "Apache Kafka cannot be started here: " in done.stderr


def test_run_uses_a_server_that_the_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTDATE_REDIS__URL", "redis://127.0.0.1:1/0")
    command = [sys.executable, "-m", "tests.devstack", "run", "redis", "--", "true"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


SESSION = """
import sys, time
from tests.devstack.redis import Redis
server = Redis.launch_process()
record = server.record()
print(record["processes"][0][0], record["processes"][0][1], record["folder"], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_session_that_is_killed_or_interrupted(sign: signal.Signals) -> None:
    command = [sys.executable, "-c", SESSION]
    with subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as session:
        assert session.stdout is not None
        pid, created, folder = session.stdout.readline().split()
        assert is_same(int(pid), float(created))
        session.send_signal(sign)
    wait_for(lambda: not is_same(int(pid), float(created)), "the server is gone", 20)
    wait_for(lambda: not Path(folder).exists(), "its folder is gone", 20)


def test_no_service_starts_while_packages_are_installed_and_the_policy_is_taken_back(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with debian.no_services_started(policy):
        assert subprocess.run([policy], check=False).returncode == 101
    assert not policy.exists()
    policy.write_text("the owner's")
    with debian.no_services_started(policy):
        assert policy.read_text() == "the owner's"
    assert policy.read_text() == "the owner's"


# --- Redis -----------------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_a_killed_redis_comes_back_with_its_data(start_redis: StartRedis) -> None:
    server = start_redis({"appendfsync": "always"})
    server.command("SET", "kept", "1")
    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.command("PING")
    server.start()
    assert server.command("GET", "kept") == b"1"


@pytest.mark.redis
def test_a_paused_redis_is_silent_and_then_answers(start_redis: StartRedis) -> None:
    server = start_redis()
    with server.client() as client:
        client.ping()
        server.pause()
        answer: list[bool] = []
        asking = threading.Thread(target=lambda: answer.append(bool(client.ping())))
        asking.start()
        asking.join(0.3)
        assert asking.is_alive()
        server.resume()
        asking.join(10)
        assert answer == [True]


@pytest.mark.redis
def test_a_redis_of_its_own_takes_the_settings_of_the_test(start_redis: StartRedis) -> None:
    server = start_redis({"maxmemory": "64mb", "maxmemory-policy": "allkeys-lru", "appendonly": "no"})
    with server.client() as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert client.config_get("appendonly") == {"appendonly": "no"}


@pytest.mark.redis
def test_the_shared_redis_is_empty_for_each_test_and_set_as_users_are_told(redis_server: Redis, redis_url: str) -> None:
    if not redis_server.owned:
        pytest.skip("this Redis was given, and has the settings of its owner")
    with redis_server.client() as client:
        assert client.dbsize() == 0
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        client.execute_command("DEBUG", "SLEEP", "0")


@pytest.mark.redis
def test_the_binary_inside_the_wheel_serves_where_there_is_no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_apt(*_: str) -> None:
        raise Unavailable("not root")

    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(debian, "install", no_apt)
    binary = redis_servers.find_binary()
    assert Path(binary).name == "valkey-server"
    with Redis.launch_process({"appendfsync": "always"}) as server:
        server.command("SET", "a", "1")
        server.kill()
        server.start()
        assert server.command("GET", "a") == b"1"


@pytest.mark.redis
def test_the_cluster_is_whole_and_serves_every_slot(redis_cluster: RedisCluster) -> None:
    redis_cluster.wait_ok()
    redis_cluster.wipe()
    url = redis_cluster.url.replace("redis+cluster", "redis")
    with redis.RedisCluster.from_url(url) as client:
        for number in range(100):
            client.set(f"{{postdate:{number}}}", number)
        assert client.get("{postdate:42}") == b"42"
    used = [node.command("DBSIZE") for node in redis_cluster.nodes]
    assert sum(used) == 100
    assert min(used) > 0
    redis_cluster.wipe()


@pytest.mark.long
@pytest.mark.redis
def test_sentinel_yields_a_new_master_on_request_and_after_a_kill(redis_sentinel: RedisSentinel) -> None:
    first = redis_sentinel.master
    first.command("SET", "kept", "1")
    first.command("WAIT", 1, 5_000)
    second = redis_sentinel.failover()
    assert second is not first
    assert second.command("GET", "kept") == b"1"
    redis_sentinel.wait_steady()
    third = redis_sentinel.kill_master()
    assert third is first
    assert third.command("GET", "kept") == b"1"
    second.start()
    redis_sentinel.wait_steady()


# --- RabbitMQ --------------------------------------------------------------------------------------------------------


def publish(connection: pika.BlockingConnection, queue: str, body: bytes) -> None:
    """Persistent, and confirmed when this returns."""
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def take(connection: pika.BlockingConnection, queue: str) -> bytes | None:
    body: bytes | None = connection.channel().basic_get(queue, auto_ack=True)[2]
    return body


@contextmanager
def connected(broker: RabbitMQ) -> Iterator[pika.BlockingConnection]:
    connection = broker.connect()
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


@pytest.mark.rabbitmq
def test_a_persistent_message_survives_the_kill_of_the_broker(own_rabbitmq: RabbitMQ, key_prefix: str) -> None:
    with connected(own_rabbitmq) as connection:
        publish(connection, key_prefix, b"still here")
        own_rabbitmq.kill()
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connection.process_data_events(5)
    own_rabbitmq.start()
    with connected(own_rabbitmq) as connection:
        assert take(connection, key_prefix) == b"still here"
        connection.channel().queue_delete(key_prefix)


@pytest.mark.rabbitmq
def test_an_alarm_blocks_publishers_until_it_is_off(own_rabbitmq: RabbitMQ, key_prefix: str) -> None:
    with connected(own_rabbitmq) as connection:
        publish(connection, key_prefix, b"before")
        blocked: list[bool] = []
        connection.add_on_connection_blocked_callback(lambda *_: blocked.append(True))
        connection.add_on_connection_unblocked_callback(lambda *_: blocked.append(False))
        own_rabbitmq.alarm(True)
        # The broker tells a connection that it is blocked when it next publishes.
        connection.channel().basic_publish("", key_prefix, b"during")
        wait_for(lambda: connection.process_data_events(0.1) or blocked == [True], "the publisher is blocked")
        own_rabbitmq.alarm(False)
        wait_for(lambda: connection.process_data_events(0.1) or blocked == [True, False], "the publisher is free")
        connection.channel().queue_delete(key_prefix)


@pytest.mark.rabbitmq
def test_a_paused_broker_is_silent_and_then_goes_on(own_rabbitmq: RabbitMQ) -> None:
    own_rabbitmq.pause()
    with pytest.raises(TimeoutError), ask_for_greeting(own_rabbitmq, 0.5):
        pass
    own_rabbitmq.resume()
    own_rabbitmq.wait_ready()


@contextmanager
def ask_for_greeting(broker: RabbitMQ, timeout_s: float) -> Iterator[bytes]:
    parameters = pika.URLParameters(broker.url)
    with socket.create_connection((parameters.host, parameters.port), timeout=timeout_s) as door:
        door.sendall(b"AMQP\x00\x00\x09\x01")
        yield door.recv(1)


@pytest.mark.rabbitmq
def test_a_wiped_broker_has_no_queues_no_users_and_no_alarm(own_rabbitmq: RabbitMQ, key_prefix: str) -> None:
    with connected(own_rabbitmq) as connection:
        publish(connection, key_prefix, b"old")
    own_rabbitmq.ctl("add_user", "somebody", "word")
    own_rabbitmq.wipe()
    assert key_prefix not in own_rabbitmq.ctl("list_queues", "name")
    assert "somebody" not in own_rabbitmq.ctl("list_users")
    with connected(own_rabbitmq) as connection:
        publish(connection, key_prefix, b"new")
        assert take(connection, key_prefix) == b"new"


@pytest.mark.rabbitmq
def test_a_virtual_host_of_its_own_is_empty_and_reached_through_the_proxy(
    rabbitmq_vhost: str, proxy: StartProxy, key_prefix: str
) -> None:
    way = proxy(rabbitmq_vhost)
    connection = pika.BlockingConnection(pika.URLParameters(way.through(rabbitmq_vhost)))
    publish(connection, key_prefix, b"through")
    assert take(connection, key_prefix) == b"through"
    way.cut()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(5)


@pytest.mark.rabbitmq
def test_a_broker_and_its_epmd_listen_on_loopback_ports_of_their_own(own_rabbitmq: RabbitMQ) -> None:
    processes = [psutil.Process(pid) for pid, _ in own_rabbitmq.record().get("processes", [])]
    if not processes:
        pytest.skip("the broker runs in Docker, in a network of its own")
    sockets = [socket for process in processes for socket in process.net_connections("inet")]
    listening = {tuple(socket.laddr) for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert len({port for _, port in listening}) == 3, "AMQP, Erlang distribution, epmd"
    assert {address for address, _ in listening} <= {"127.0.0.1", "::1"}
    assert all(port in PORTS for _, port in listening)


@pytest.mark.rabbitmq
def test_the_wanted_rabbitmq_is_the_one_that_runs(rabbitmq: RabbitMQ) -> None:
    if os.environ.get("POSTDATE_TEST_RABBITMQ") != "4":
        pytest.skip("POSTDATE_TEST_RABBITMQ is not 4")
    if rabbitmq.owned:
        assert int(rabbitmq.version.split(".")[0]) >= 4


def test_an_unfinished_debian_root_is_not_taken_for_a_finished_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTDATE_DEVSTACK_DIR", str(tmp_path))
    monkeypatch.setattr(debian, "why_not_here", lambda: None)
    built: list[Path] = []

    def build(root: Path) -> None:
        assert not root.exists()
        root.mkdir()
        (root / "half").touch()
        built.append(root)
        if len(built) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(rabbitmq4, "_build", build)
    with pytest.raises(KeyboardInterrupt):
        rabbitmq4.debian_root()
    assert not (tmp_path / "debian-forky").exists()
    assert rabbitmq4.debian_root() == tmp_path / "debian-forky"
    assert rabbitmq4.debian_root().exists()
    assert len(built) == 2


def test_a_process_that_ignores_the_polite_signal_is_killed() -> None:
    folder = new_folder("stubborn")
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    runner = ProcessRunner(Launch((sys.executable, "-c", code), folder, clean_env()))
    runner.start()
    wait_for(lambda: "ready" in runner.log_tail(), "it ignores SIGTERM")
    runner.stop(0.2)
    assert not runner.running()
    runner.remove()
    assert not folder.exists()
