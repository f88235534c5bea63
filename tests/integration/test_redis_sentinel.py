"""Sentinel: TLS as in the URL, following while one Sentinel answers, and the errors when none does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from adapters.redis.connect import close, connect
from adapters.redis.errors import store_errors
from adapters.redis.survey import inspect
from bridge.core.errors import StoreUnavailable
from bridge.settings import Redis as RedisSettings
from tests.devstack.certificates import Authority, Signed
from tests.devstack.fixtures import need
from tests.devstack.redis import Redis, RedisSentinel, prepare_sentinel
from tests.devstack.service import free_ports, wait_for

pytestmark = pytest.mark.redis

SENTINEL_PASSWORD, PASSWORD = "secret-of-the-sentinel", "secret-of-the-master"


#: For a server that never answers. Every other one has ten seconds.
IMPATIENT = {"connect_timeout": "2s", "timeout": "2s"}


def settings_of(url: str, **more: str) -> RedisSettings:
    return RedisSettings.model_validate({"url": url, "connect_timeout": "10s", "timeout": "10s", **more})


def said(url: str, **more: str) -> str:
    """Return the error of a call to the master; "" if it answers."""

    async def look() -> str:
        client: Any = connect(settings_of(url, **more))
        try:
            with store_errors():
                await client.ping()
        except StoreUnavailable as error:
            return str(error)
        finally:
            await close(client)
        return ""

    return asyncio.run(look())


@dataclass(frozen=True)
class Locked:
    """A master and its Sentinel that accept only TLS, and only clients with a certificate."""

    url: str
    ca: str
    client: Signed


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    authority = Authority(tmp_path_factory.mktemp("authority"), "ca")
    signed = authority.sign("server")
    tls = {
        "tls-cert-file": str(signed.cert),
        "tls-key-file": str(signed.key),
        "tls-ca-cert-file": str(authority.ca),
        "tls-auth-clients": "yes",
        "tls-replication": "yes",
    }
    master_port, port, for_the_test = free_ports(3)
    with ExitStack() as stack:
        need(lambda: stack.enter_context(Redis.launch_process({"tls-port": str(master_port), **tls})))
        lines = [f"tls-port {port}", *(f"{key} {value}" for key, value in tls.items())]
        stack.enter_context(prepare_sentinel(for_the_test, master_port, lines).start_new())
        url = f"rediss+sentinel://127.0.0.1:{port}/{RedisSentinel.MASTER}"
        yield Locked(url, str(authority.ca), authority.sign("client"))


class TestTLS:
    def test_a_sentinel_that_requires_tls_gets_the_client_certificate(self, locked: Locked) -> None:
        pair = {"cert_file": str(locked.client.cert), "key_file": str(locked.client.key)}
        assert said(locked.url, ca_file=locked.ca, **pair) == ""

    def test_a_missing_client_certificate_is_named_in_the_error(self, locked: Locked) -> None:
        assert "redis.cert_file" in said(locked.url, ca_file=locked.ca)

    def test_a_sentinel_whose_certificate_is_not_trusted_is_refused(self, locked: Locked) -> None:
        words = said(locked.url)
        assert words.startswith(f"no Sentinel answers ({locked.url.split('/')[2]}: ")
        assert "a certificate that is not trusted (self-signed certificate in certificate chain)" in words

    @pytest.mark.parametrize("scheme", ["rediss+sentinel", "redis+sentinel"])
    def test_only_a_url_without_tls_sends_a_password_in_plain_text(self, scheme: str) -> None:
        with Listener() as listener:
            url = f"{scheme}://:{PASSWORD}@127.0.0.1:{listener.port}/m?sentinel_password={SENTINEL_PASSWORD}"
            assert said(url, **IMPATIENT).startswith(f"no Sentinel answers (127.0.0.1:{listener.port}: ")
        (first, *_) = listener.heard
        if scheme == "rediss+sentinel":
            assert first[:2] == b"\x16\x03", "a TLS greeting"
            assert not any(word.encode() in b"".join(listener.heard) for word in (PASSWORD, SENTINEL_PASSWORD, "AUTH"))
        else:
            assert SENTINEL_PASSWORD.encode() in first


class Listener:
    """Accepts connections, records the first bytes, and never answers."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self.heard.append(connection.recv(4096))


class TestSentences:
    def test_no_sentinel_and_an_unknown_master_have_their_own_errors(self, redis_sentinel: RedisSentinel) -> None:
        (closed,) = free_ports(1)
        none = (
            f"no Sentinel answers (127.0.0.1:{closed}: Redis does not answer at 127.0.0.1:{closed} (Connection refused)"
        )
        assert said(f"redis+sentinel://127.0.0.1:{closed}/mymaster").startswith(none)
        unknown = "the Sentinels know no master called nobody. Correct the name after the slash in redis.url"
        assert said(redis_sentinel.url.replace("/mymaster", "/nobody")) == unknown
        assert said(f"{redis_sentinel.url.replace('/mymaster', f',127.0.0.1:{closed}/mymaster')}") == ""

    def test_a_redis_in_place_of_a_sentinel_is_recognised(self, redis_server: Redis) -> None:
        words = said(f"redis+sentinel://127.0.0.1:{redis_server.port}/mymaster")
        assert "the server is not a Sentinel. Correct redis.url" in words

    def test_while_the_master_is_away_the_error_does_not_say_to_start_it(self, redis_sentinel: RedisSentinel) -> None:
        old = redis_sentinel.master
        redis_sentinel.sentinel.command("SENTINEL", "SET", "mymaster", "down-after-milliseconds", 60_000)
        old.kill()
        words = said(redis_sentinel.url)
        assert words.startswith(
            f"the master that Sentinel names does not answer at 127.0.0.1:{old.port} (Connection re"
        )
        assert "Start it" not in words


def test_check_warns_of_a_master_that_may_write_without_a_replica(redis_sentinel: RedisSentinel) -> None:
    words = asyncio.run(inspect(settings_of(redis_sentinel.url))).warnings
    assert [word.partition(".")[0] for word in words] == ["Redis has min-replicas-to-write 0"]
    for server in redis_sentinel.servers:
        server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    assert asyncio.run(inspect(settings_of(redis_sentinel.url))).warnings == []


def test_without_a_sentinel_nothing_is_written_until_one_is_back(redis_sentinel: RedisSentinel) -> None:
    """A failover would go unnoticed, and writes to the former master would be lost."""
    asyncio.run(without_a_sentinel(redis_sentinel))


async def without_a_sentinel(group: RedisSentinel) -> None:
    client: Any = connect(settings_of(group.url, **IMPATIENT))

    def writes() -> bool:
        return asyncio.run_coroutine_threadsafe(tried(client), loop).result(10)

    loop = asyncio.get_running_loop()
    try:
        assert await tried(client)
        group.sentinel.kill()
        await asyncio.to_thread(wait_for, lambda: not writes(), "nothing is written", 10)
        await asyncio.to_thread(group.sentinel.start)
        await asyncio.to_thread(wait_for, writes, "a Sentinel names the master again", 10)
    finally:
        await close(client)


async def tried(client: Any) -> bool:
    try:
        with store_errors():
            return bool(await client.set("tried", "1"))
    except StoreUnavailable:
        return False
