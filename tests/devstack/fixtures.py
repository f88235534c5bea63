"""The fixtures of every test that needs a real server. Loaded by tests/conftest.py."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from tests.devstack import browser as browsers
from tests.devstack import databases, kafka_admin, rabbitmq4
from tests.devstack import kafka as kafka_servers
from tests.devstack import kafka_cluster as kafka_clusters
from tests.devstack import rabbitmq as rabbitmq3
from tests.devstack import rabbitmq_cluster as rabbitmq_clusters
from tests.devstack import redis as redis_servers
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_cluster import KafkaCluster
from tests.devstack.kafka_java import QUICK
from tests.devstack.kafka_secure import SecureKafka
from tests.devstack.kafka_tools import KafkaTools, find_kcat, find_tools
from tests.devstack.moved_clock import MovedClock
from tests.devstack.proxy import ThreadedProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.rabbitmq_cluster import RabbitCluster
from tests.devstack.rabbitmq_secure import SecureRabbitMQ, launch_secure
from tests.devstack.redis import Redis, RedisCluster, RedisSentinel
from tests.devstack.service import Service, Unavailable, machine_lock

T = TypeVar("T")
StartRedis = Callable[..., Redis]
StartProxy = Callable[[str], ThreadedProxy]


class MakeTopic(Protocol):
    """What `kafka_topics` is."""

    def __call__(self, partitions: int = 1, **configs: str) -> str: ...


def in_ci() -> bool:
    """Whether this is a run of CI, which may skip nothing because of what the machine lacks."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def need(find: Callable[[], T]) -> T:
    """What ``find`` finds or starts. A laptop may lack a server; CI may not, or a green run would mean nothing."""
    try:
        return find()
    except Unavailable as reason:
        if in_ci():
            pytest.fail(f"CI=true and a server is missing: {reason}", pytrace=False)
        pytest.skip(f"a server is missing: {reason}")


def wanted_rabbitmq() -> str:
    """POSTDATE_TEST_RABBITMQ: "3" (default) or "4"."""
    wanted = os.environ.get("POSTDATE_TEST_RABBITMQ", "3")
    if wanted not in ("3", "4"):
        pytest.exit(f"POSTDATE_TEST_RABBITMQ is 3 or 4, not {wanted!r}", returncode=2)
    return wanted


def pytest_configure() -> None:
    """A wrong choice of the broker ends the run before it begins, not in each of the processes that share the tests."""
    wanted_rabbitmq()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Installs what the collected tests need before the first of them runs: no test's timeout covers a download."""
    if session.config.option.collectonly:
        return
    needed = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    # A test may ask for its broker while it runs: by its mark, then.
    needed |= {mark.name for item in session.items for mark in item.iter_markers()}
    fetches: list[Callable[[], object]] = []
    if needed & {"redis_server", "start_redis", "redis_cluster", "redis_sentinel"}:
        fetches.append(redis_servers.prepare)
    if needed & {"rabbitmq", "managed_rabbitmq", "rabbitmq_cluster"}:
        fetches.append((rabbitmq4 if wanted_rabbitmq() == "4" else rabbitmq3).prepare)
    if "database" in needed:
        fetches.append(databases.prepare)
    if "kafka" in needed:
        fetches.append(kafka_servers.prepare)
    if needed & {"kafka_cluster", "secure_kafka"}:
        fetches.append(kafka_clusters.prepare)
    if "chromium" in needed and in_ci():
        fetches.append(browsers.find_chromium)
    for fixture, find in (("kafka_tools", find_tools), ("kcat", find_kcat)):
        if fixture in needed:
            fetches.append(find)
    for fetch in fetches:
        # Of several processes that share the tests, one fetches, and the others then find everything in place. A
        # failure is not judged here: the fixture meets it again and skips or fails.
        with machine_lock("prepare"), suppress(Unavailable):
            fetch()


@pytest.fixture(scope="session", params=databases.DATABASES)
def database(request: pytest.FixtureRequest) -> Iterator[Service]:
    """The session's PostgreSQL, then its MariaDB, shared; `wipe` it before a test."""
    with need(databases.DATABASES[request.param]) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/journal.db"
        return
    with need(databases.DATABASES[request.param]) as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """The session's Redis, shared; see `redis_url` for a clean one. Kill and pause `start_redis()`'s, not this."""
    with need(redis_servers.find) as server:
        yield server


@pytest.fixture
def key_prefix() -> str:
    """Keys that begin with this belong to one test alone, also on a server that is not ours."""
    return f"t{secrets.token_hex(6)}:"


@pytest.fixture
def redis_url(redis_server: Redis, key_prefix: str) -> Iterator[str]:
    """An empty Redis. One that was given is never flushed: use `key_prefix`, whose keys are deleted afterwards."""
    if redis_server.owned:
        redis_server.wipe()
    yield redis_server.url
    if not redis_server.owned:
        with redis_server.client() as client:
            for key in client.scan_iter(match=f"*{key_prefix}*", count=1_000):
                client.delete(key)


@pytest.fixture
def start_redis() -> Iterator[StartRedis]:
    """A Redis of the test's own, to kill, pause and fill as it likes.

    To kill it and lose nothing takes `start_redis({"appendfsync": "always"})`: with `everysec`, Redis answers before it
    writes to its file while an fsync runs.
    """
    with ExitStack() as started:

        def start(config: Mapping[str, str] | None = None) -> Redis:
            return need(lambda: started.enter_context(Redis.launch(config)))

        yield start


@pytest.fixture
def moved_clock(tmp_path: Path) -> MovedClock:
    """A clock for a Redis of the test's own, which the test moves: `Redis.launch_process(env=moved_clock.env)`."""
    return need(lambda: MovedClock(tmp_path))


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three masters, always our own. Leave all of them running."""
    with need(lambda: redis_servers.launch_cluster(3)) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cluster, emptied. Tests of this process wait for a node as long as for a lone server."""
    monkeypatch.setattr("adapters.redis.cluster._PATIENCE_S", 5.0)
    redis_cluster.wipe()
    return redis_cluster.url


@pytest.fixture
def redis_sentinel() -> Iterator[RedisSentinel]:
    """Master, replica and Sentinel, new for each test: a failover changes them for good."""
    with need(redis_servers.launch_sentinel) as group:
        yield group


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """The session's RabbitMQ: what the machine has (Debian's 3.10), or 4.3 with POSTDATE_TEST_RABBITMQ=4."""
    find: Callable[[], RabbitMQ] = rabbitmq4.find if wanted_rabbitmq() == "4" else rabbitmq3.find
    with need(find) as server:
        yield server


@pytest.fixture
def own_rabbitmq(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """The same broker, for tests that kill, pause or alarm it: skips when it was given, leaves it running and calm."""
    if not rabbitmq.owned:
        pytest.skip(f"{rabbitmq.url} was given by URL, and this test would hurt it")
    yield rabbitmq
    rabbitmq.resume()
    rabbitmq.start()
    rabbitmq.calm()


@pytest.fixture(scope="session")
def managed_rabbitmq() -> Iterator[RabbitMQ]:
    """A RabbitMQ with the management API, our own or given by both URLs. A test takes back its policies and users."""
    launch = (rabbitmq4 if wanted_rabbitmq() == "4" else rabbitmq3).launch
    with need(lambda: rabbitmq3.find_managed() or launch(management=True)) as server:
        yield server


@pytest.fixture(scope="session")
def secure_rabbitmq() -> Iterator[SecureRabbitMQ]:
    """A RabbitMQ that checks tokens and client certificates, always our own."""
    server = need(lambda: launch_secure(wanted_rabbitmq()))
    with server.broker:
        yield server
    server.issuer.close()


@pytest.fixture
def rabbitmq_cluster(request: pytest.FixtureRequest) -> Iterator[RabbitCluster]:
    """Three RabbitMQ nodes, or the parameter, new for each test: to kill and pause as it likes."""
    size = getattr(request, "param", 3)
    with need(lambda: rabbitmq_clusters.launch_cluster(wanted_rabbitmq(), size)) as cluster:
        yield cluster


@pytest.fixture
def rabbitmq_vhost(rabbitmq: RabbitMQ, key_prefix: str) -> Iterator[str]:
    """The URL of an empty virtual host of the test's own, or the given URL as it is."""
    if not rabbitmq.owned:
        yield rabbitmq.url
        return
    with rabbitmq.vhost(key_prefix.rstrip(":")) as url:
        yield url


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """The session's Kafka, one node, shared: make topics by `kafka_topics`, kill and pause `own_kafka`."""
    with need(lambda: kafka_servers.find(*QUICK)) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_tools() -> KafkaTools:
    """Kafka's own command-line programs, and a Java compiler."""
    return need(find_tools)


@pytest.fixture(scope="session")
def kcat() -> str:
    """The path of kcat."""
    return need(find_kcat)


@pytest.fixture
def own_kafka(kafka: Kafka) -> Iterator[Kafka]:
    """The same broker, for tests that kill or pause it: skips when it was given, leaves it running."""
    if not kafka.owned:
        pytest.skip(f"{kafka.url} was given by URL, and this test would hurt it")
    yield kafka
    kafka.resume()
    kafka.start()


@pytest.fixture
def kafka_link(kafka: Kafka) -> Iterator[ThreadedProxy]:
    """A proxy before the session's Kafka, which sends its clients back to the proxy: `f"127.0.0.1:{kafka_link.port}"`.

    Skips where the broker was given, or is in a container.
    """
    if kafka.detour is None:
        pytest.skip(f"{kafka.url} knows of no proxy")
    inner, outer = kafka.detour
    with ThreadedProxy("127.0.0.1", inner, outer) as link:
        yield link


@pytest.fixture
def kafka_topics(kafka: Kafka) -> Iterator[MakeTopic]:
    """`kafka_topics(3, cleanup_policy="compact")`: the random name of a new topic, which the end of the test deletes.

    Settings of topics are written with underscores for their dots.
    """
    made: list[str] = []

    def make(partitions: int = 1, **configs: str) -> str:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        made.append(kafka_admin.create_topic(kafka.url, partitions, settings))
        return made[-1]

    yield make
    if kafka.owned:
        # The test may have killed or paused it, and `own_kafka` may have its turn only after this.
        kafka.resume()
        kafka.start()
    kafka_admin.delete_topics(kafka.url, made)


@pytest.fixture(scope="session")
def secure_kafka() -> Iterator[SecureKafka]:
    """One Kafka node with TLS, passwords and access lists, always our own; make users and topics of the test's own."""
    with need(SecureKafka.launch) as server:
        yield server


@pytest.fixture(scope="session")
def session_kafka_cluster() -> Iterator[KafkaCluster]:
    """Three Kafka nodes, always our own; tests take `kafka_cluster`."""
    with need(kafka_clusters.launch_cluster) as cluster:
        yield cluster


@pytest.fixture
def kafka_cluster(session_kafka_cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """The three nodes, running and in sync; a test may kill and pause one, and leave it so."""
    yield session_kafka_cluster
    session_kafka_cluster.heal()


@pytest.fixture
def proxy() -> Iterator[StartProxy]:
    """`link = proxy(url)`, then `link.through(url)` is the URL through it, and `link.cut()` breaks it."""
    with ExitStack() as open_proxies:
        yield lambda url: open_proxies.enter_context(ThreadedProxy.before(url))
