"""What a person is told about a server that is not there, or that is another one than was meant."""

from __future__ import annotations

from types import SimpleNamespace

import pika
import pytest
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout
from pika.exceptions import (
    AMQPConnectionError,
    AMQPHeartbeatTimeout,
    ConnectionOpenAborted,
    IncompatibleProtocolError,
    StreamLostError,
)
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    InvalidResponse,
    RedisClusterException,
    ResponseError,
)

from adapters.rabbitmq.broker_topology import open_fronts
from adapters.rabbitmq.connection import connect, parameters
from adapters.rabbitmq.topology import declaring
from adapters.rabbitmq.topology.findings import crashes_lazy_queues
from adapters.rabbitmq.trouble import sentence as rabbit_sentence
from adapters.redis.errors import explain, named, store_errors, unavailable
from bridge.core.errors import BrokerUnavailable, StoreFull, StoreUnavailable
from bridge.delay.duration import quoted
from bridge.desk.topology import Finding, Name, Part, Standing
from bridge.settings import RabbitMQ, Route, Settings


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ConnectionError("Error 111 connecting to h:1. Connect call failed ('h', 1)."),
            "Redis does not answer at h:1 (Connection refused). Start it, or correct redis.url",
        ),
        (
            ConnectionError("Error -2 connecting to h:1. Name or service not known."),
            "Redis does not answer at h:1 (Name or service not known). Start it, or correct redis.url",
        ),
        (
            AuthenticationError("AUTH <password> called without any password configured for the default user."),
            "redis.password is set and Redis has no password. Remove the setting",
        ),
        (ResponseError("unknown command 'SENTINEL', with args"), "the server is not a Sentinel. Correct redis.url"),
        (
            ResponseError("DENIED Redis is running in protected mode because protected mode is enabled and no ..."),
            "Redis is in protected mode and accepts local connections only. Give it a password, and set redis.password",
        ),
        (
            ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value script: c34c, on @user_s"),
            "Redis answers with an error (WRONGTYPE Operation against a key holding the wrong kind of value script: "
            "c34c, on @user_s). Another program may write keys under redis.key_prefix",
        ),
        (
            InvalidResponse('Protocol error, got "<" as reply type byte'),
            "the server is not a Redis. Correct redis.url",
        ),
        (
            ConnectionError("Error connecting to h:1."),
            "Redis does not answer at h:1 (it closes the connection at once, and may not use TLS: use redis:// in "
            "redis.url)",
        ),
        (
            ConnectionError("Error 1 connecting to h:1. [SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] no (_ssl.c:1)."),
            "TLS with h:1 failed (no)",
        ),
        (
            RedisClusterException("cannot be connected: Error 111 connecting to h:1. Connect call failed ('h', 1)."),
            "no node of the Redis Cluster answers (Connection refused). Start the nodes, or correct redis.url",
        ),
    ],
)
def test_redis(error: Exception, said: str) -> None:
    assert explain(error).text == said


def test_a_redis_that_is_no_cluster_is_said_and_never_a_traceback() -> None:
    with (
        pytest.raises(StoreUnavailable, match=r"Redis is not a cluster\. Write redis:// .* in redis\.url"),
        store_errors(),
    ):
        raise RedisClusterException("cannot be connected: Cluster mode is not enabled on this node")


@pytest.mark.parametrize(
    ("alert", "said"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "wants a client certificate (certificate required). Set rabbitmq.cert_f"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "wants a client certificate (handshake failure). Set rabbitmq.cert_file"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not trust the certificate in rabbitmq.cert_file (unknown ca)"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "refuses the certificate in rabbitmq.cert_file (certificate expired)"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "ends the TLS handshake (protocol version). Compare its ssl_options"),
    ],
)
def test_an_alert_of_rabbitmq_says_which_certificate_it_refuses(alert: str, said: str) -> None:
    text = f"StreamLostError: (\"Stream connection lost: SSLError(1, '[SSL: {alert}] x (_ssl.c:2580)')\",)"
    (wanted,) = parameters(RabbitMQ.model_validate({"url": "amqps://h:1/"}), "test")
    assert said in rabbit_sentence(IncompatibleProtocolError(text), wanted)


@pytest.mark.parametrize(
    ("scheme", "error", "said"),
    [
        ("amqp", AMQPConnectionError(ConnectionRefusedError(111, "Connect call failed ('h', 1)")), "(Connection ref"),
        ("amqp", AMQPConnectorStackTimeout("Timeout during AMQP handshake'h'"), "(no answer to a new connection)"),
        (
            "amqps",
            AMQPConnectorStackTimeout("Timeout while setting up transport to 'h'"),
            "h:1 does not speak TLS. Correct",
        ),
    ],
)
def test_rabbitmq(scheme: str, error: Exception, said: str) -> None:
    (wanted,) = parameters(RabbitMQ.model_validate({"url": f"{scheme}://h:1/"}), "test")
    text = rabbit_sentence(error, wanted)
    assert said in text
    assert "h:1" in text
    assert "111" not in text


def test_a_lost_connection_is_named_without_the_numbers_of_the_system() -> None:
    text = "Stream connection lost: ConnectionResetError(104, 'Connection reset by peer')"
    assert rabbit_sentence(StreamLostError(text)) == "RabbitMQ does not answer (Connection reset by peer)"
    text = "No activity or too many missed heartbeats in the last 5 seconds"
    assert rabbit_sentence(AMQPHeartbeatTimeout(text)) == "RabbitMQ does not answer (no heartbeat from it)"


def test_a_rabbitmq_that_is_frozen_is_named_without_the_states_of_the_client() -> None:
    (wanted,) = parameters(RabbitMQ.model_validate({"url": "amqp://h:1/"}), "test")
    text = "Connection.close() called before connection finished opening: (320): 'Timeout while setting up AMQP to h'"
    expected = "RabbitMQ does not answer at h:1 (no answer to a new connection). It is frozen or starting"
    assert rabbit_sentence(ConnectionOpenAborted(text), wanted) == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AMQPConnectorStackTimeout("Timeout during AMQP handshake'h'"), "no answer to a new connection"),
        (AMQPConnectionError(ConnectionResetError(104, "x")), "it closes new connections at once"),
    ],
)
def test_a_rabbitmq_that_answered_before_is_not_suspected_of_another_protocol(error: Exception, reason: str) -> None:
    (wanted,) = parameters(RabbitMQ.model_validate({"url": "amqp://h:1/"}), "test")
    said = rabbit_sentence(error, wanted, connected_before=True)
    assert said.startswith(f"RabbitMQ does not answer at h:1 ({reason}). It is frozen or starting")


def test_only_a_server_that_hangs_up_is_suspected_of_another_protocol() -> None:
    """A frozen RabbitMQ takes the TCP connection and says nothing, as `postdate doctor` finds it."""
    (wanted,) = parameters(RabbitMQ.model_validate({"url": "amqp://h:1/"}), "test")
    silent = rabbit_sentence(AMQPConnectorStackTimeout("Timeout during AMQP handshake'h'"), wanted)
    assert silent.startswith("RabbitMQ does not answer at h:1 (no answer to a new connection). It is frozen or")
    assert silent.endswith("or rabbitmq.url names another server")
    assert "does not speak AMQP" in rabbit_sentence(AMQPConnectionError(ConnectionResetError(104, "x")), wanted)


def test_a_redis_that_answered_before_is_not_suspected_of_another_protocol() -> None:
    hung_up, connection = ConnectionError("Connection closed by server."), SimpleNamespace(host="h", port=1)
    assert "may require TLS" in explain(named(hung_up, connection, tls=False, greeted=False)).text
    said = explain(named(hung_up, connection, tls=False, greeted=True)).text
    assert said.startswith("Redis does not answer at h:1 (it closes new connections at once, and accepted them before)")


def test_a_server_that_speaks_no_amqp_gives_a_sentence_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_: object) -> None:
        raise IncompatibleProtocolError("StreamLostError: ('Transport indicated EOF',)")

    monkeypatch.setattr("pika.BlockingConnection", connect)
    with pytest.raises(BrokerUnavailable, match="does not speak AMQP"):
        declaring.verify(Settings())


def test_a_blocking_connection_remembers_that_the_server_spoke_amqp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary's: RabbitMQ may be frozen for a while."""
    settings = RabbitMQ.model_validate({"url": "amqp://spoke-amqp-before:1/"})
    monkeypatch.setattr("pika.BlockingConnection", lambda _: None)
    connect(settings, "test", 1.0)

    def hang_up(_: object) -> None:
        raise AMQPConnectionError(ConnectionResetError(104, "x"))

    monkeypatch.setattr("pika.BlockingConnection", hang_up)
    with pytest.raises(BrokerUnavailable, match="It is frozen or starting"):
        connect(settings, "test", 1.0)


@pytest.mark.parametrize(("queue", "failures"), [(Standing.MISSING, 1), (Standing.SAME, 0)])
def test_a_front_without_its_queue_is_a_failure(queue: Standing, failures: int) -> None:
    settings = Settings(routes={"orders": Route(intercept="orders.delay", deliver_to="orders")})
    states = ((Name("queue", "postdate.orders"), queue), (Name("exchange", "orders.delay"), Standing.SAME))
    found = [Finding(Part(name, "orders"), state) for name, state in states]
    assert len(open_fronts(settings, found)) == failures


def test_a_long_text_is_cut_within_its_quotes() -> None:
    assert quoted(b"k" * 100) == f"'{'k' * 55}...'"


@pytest.mark.parametrize(
    ("version", "crashes"),
    [("3.10.0", True), ("3.10.6", True), ("3.10.7", False), ("3.10.25", False), ("3.13.7", False), ("4.3.6", False)],
)
def test_only_rabbitmq_3_10_before_3_10_7_crashes_classic_levels(version: str, crashes: bool) -> None:
    assert crashes_lazy_queues(version) is crashes


@pytest.mark.parametrize(("url", "password"), [("amqp://shop@h:1/v", "a:b@c"), ("amqp://shop:old@h:1/v", "a:b@c")])
def test_rabbitmq_password_overrules_the_password_of_the_url(url: str, password: str) -> None:
    (found,) = parameters(RabbitMQ.model_validate({"url": url, "password": password}), "test")
    assert found.credentials == pika.PlainCredentials("shop", password)
    assert (found.host, found.port, found.virtual_host) == ("h", 1, "v")


def test_each_host_of_a_url_has_its_own_port_and_shares_the_rest() -> None:
    url = "amqps://shop:secret@a,b:5999,[::1]/v"
    found = parameters(RabbitMQ.model_validate({"url": url}), "test")
    assert [(parameters.host, parameters.port) for parameters in found] == [("a", 5671), ("b", 5999), ("::1", 5671)]
    assert {(parameters.virtual_host, parameters.credentials.password) for parameters in found} == {("v", "secret")}
    assert [parameters.ssl_options.server_hostname for parameters in found] == ["a", "b", "::1"]


def test_a_url_with_a_user_and_no_password_means_an_empty_password() -> None:
    (found,) = parameters(RabbitMQ.model_validate({"url": "amqps://shop@h"}), "test")
    assert found.credentials == pika.PlainCredentials("shop", "")


def test_a_store_without_memory_is_no_store_that_is_away() -> None:
    text = "OOM command not allowed when used memory > 'maxmemory'. script: 0123, on @user_script:1."
    assert isinstance(unavailable(ResponseError(text)), StoreFull)
    assert not isinstance(unavailable(ResponseError("LOADING Redis is loading the dataset in memory")), StoreFull)
