"""Each reason why Redis refuses a connection has its own error with advice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapters.redis.connect import close, connect
from adapters.redis.guard import read_agreement
from bridge.core.errors import StoreUnavailable
from bridge.settings import Redis as RedisSettings
from tests.devstack.certificates import Authority
from tests.devstack.fixtures import need
from tests.devstack.proxy import ThreadedProxy
from tests.devstack.redis import Redis, RedisCluster
from tests.devstack.service import free_ports

pytestmark = pytest.mark.redis


def said(url: str, **more: str) -> str:
    """Return the error of a look into the store; "" if there is none."""

    async def look() -> str:
        settings = RedisSettings.model_validate({"url": url, "connect_timeout": "10s", "timeout": "10s", **more})
        client = connect(settings)
        try:
            await read_agreement(client, "{postdate}:store")
        except StoreUnavailable as error:
            return str(error)
        finally:
            await close(client)
        return ""

    return asyncio.run(look())


class Secured:
    """A Redis with a TLS port and a plain port."""

    def __init__(self, stack: ExitStack, authority: Authority, name: str, **more: str) -> None:
        self.ca = str(authority.ca)
        signed = authority.sign(name)
        (self.port,) = free_ports(1)
        config: Mapping[str, str] = {
            "tls-port": str(self.port),
            "tls-cert-file": str(signed.cert),
            "tls-key-file": str(signed.key),
            "tls-ca-cert-file": self.ca,
            "tls-auth-clients": "no",
            **more,
        }
        self.server = need(lambda: stack.enter_context(Redis.launch_process(config)))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ca")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[Secured]:
    with ExitStack() as stack:
        yield Secured(stack, authority, "server")


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with ExitStack() as stack:
        server = need(lambda: stack.enter_context(Redis.launch_process()))
        server.command("ACL", "SETUSER", "narrow", "on", ">pw", "~nothing:*", "+@all")
        server.command("ACL", "SETUSER", "off", "off", ">pw", "~*", "+@all")
        yield server


def test_a_database_that_the_server_does_not_have_is_named(server: Redis) -> None:
    assert said(f"redis://127.0.0.1:{server.port}/3") == ""
    assert said(f"redis://127.0.0.1:{server.port}/99").startswith(
        "Redis has no database 99. Lower the number in redis.url"
    )


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (":x@", "redis.password is set and Redis has no password. Remove the setting"),
        ("bob:x@", "Redis refuses the user or the password. Correct redis.username and redis.password"),
        ("off:pw@", "Redis refuses the user or the password. Correct redis.username and redis.password"),
        ("narrow:pw@", "the Redis user lacks a permission that postdate needs (this user has no permissions to access"),
    ],
)
def test_a_refused_user_is_told_why(server: Redis, who: str, words: str) -> None:
    assert said(f"redis://{who}127.0.0.1:{server.port}").startswith(words)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_missing_password_is_not_reported_as_a_missing_cluster(scheme: str) -> None:
    with need(lambda: Redis.launch_process()) as locked:
        locked.command("CONFIG", "SET", "requirepass", "sesame")
        assert said(f"{scheme}://127.0.0.1:{locked.port}") == "Redis requires a password. Set redis.password"
        assert said(f"{scheme}://:x@127.0.0.1:{locked.port}").startswith("Redis refuses the user or the password")
        assert said(f"redis://:sesame@127.0.0.1:{locked.port}") == ""


def test_a_cluster_url_fits_clusters_only_and_a_plain_url_single_servers_only(
    server: Redis, redis_cluster: RedisCluster
) -> None:
    assert said(f"redis+cluster://127.0.0.1:{server.port}").startswith(
        "Redis is not a cluster. Write redis:// in place"
    )
    assert said(f"redis+cluster://narrow:x@127.0.0.1:{server.port}").startswith("Redis refuses the user or the")
    words = {said(f"redis://127.0.0.1:{node.port}") for node in redis_cluster.nodes}
    assert words == {"", "Redis is a node of a cluster. Write redis+cluster:// in place of redis:// in redis.url"}
    numbered = said(f"redis://127.0.0.1:{redis_cluster.nodes[0].port}/1")
    assert numbered.startswith("Redis is a node of a cluster, which has no numbered databases")


def test_a_server_at_its_maxclients_is_named() -> None:
    with need(lambda: Redis.launch_process()) as small, small.client() as first:
        first.ping()
        first.config_set("maxclients", 1)
        words = "Redis has reached its maxclients. Raise maxclients"
        assert said(f"redis://127.0.0.1:{small.port}") == words


def test_a_server_that_hangs_up_and_answered_before_is_not_said_to_require_tls() -> None:
    with need(Redis.launch_process) as server, ThreadedProxy("127.0.0.1", server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        assert said(url) == ""
        server.kill()
        named = f"Redis does not answer at 127.0.0.1:{proxy.port} (it closes new connections at once, and accepted them"
        answers: list[str] = []
        # A busy machine often resets the connection while it is made, before the server could greet.
        while not any(answer.startswith(named) for answer in answers):
            assert len(answers) < 200, set(answers)
            answers.append(said(url))
        assert not any("TLS" in answer for answer in answers)


class TestTLS:
    def test_tls_on_one_side_only_is_named_from_either_side(self, secured: Secured) -> None:
        plain, tls = secured.server.port, secured.port
        assert said(f"rediss://127.0.0.1:{tls}", ca_file=secured.ca) == ""
        silent = said(f"rediss://127.0.0.1:{plain}", ca_file=secured.ca, connect_timeout="1s")
        assert "only one side uses TLS). Correct redis.url" in silent
        words = (
            f"Redis does not answer at 127.0.0.1:{tls} (it closes the connection at once, and may require "
            "TLS: use rediss:// in redis.url)"
        )
        assert said(f"redis://127.0.0.1:{tls}") == words
        assert said(f"redis://:x@127.0.0.1:{tls}/1") == words

    @pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster"])
    def test_an_untrusted_certificate_is_named_with_the_reason(self, secured: Secured, scheme: str) -> None:
        words = "Redis shows a certificate that is not trusted (self-signed certificate in certificate chain). Correct"
        assert said(f"{scheme}://127.0.0.1:{secured.port}").startswith(words)

    def test_a_required_client_certificate_is_named(self, authority: Authority) -> None:
        with ExitStack() as stack:
            strict = Secured(stack, authority, "strict", **{"tls-auth-clients": "yes"})
            url, ours = f"rediss://127.0.0.1:{strict.port}", authority.sign("client")
            # The server sends its reason and closes. Sometimes the close arrives first.
            assert "redis.cert_file" in said(url, ca_file=strict.ca)
            pair = {"cert_file": str(ours.cert), "key_file": str(ours.key)}
            assert said(url, ca_file=strict.ca, **pair) == ""

    def test_files_without_certificates_are_named_as_the_cause(self, secured: Secured, tmp_path: Path) -> None:
        empty = tmp_path / "empty.pem"
        empty.write_text("nothing\n")
        url, words = f"rediss://127.0.0.1:{secured.port}", "redis.ca_file, cert_file or key_file cannot be used ("
        assert said(url, ca_file=str(empty)).startswith(words)
        assert said(url, ca_file=secured.ca, cert_file=str(empty)).startswith(words)
