"""Logins at RabbitMQ other than a password: tokens that expire under traffic, and client certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from adapters.rabbitmq.connection import connect, forget_tokens
from adapters.rabbitmq.management import reach
from bridge.core.errors import BrokerUnavailable
from bridge.settings import RabbitMQ
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line
from tests.devstack.oauth import SECRET
from tests.devstack.rabbitmq_secure import SCOPE, SecureRabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


def by_token(server: SecureRabbitMQ, **more: str) -> dict[str, Any]:
    login = {"oauth_client_id": "postdate", "oauth_client_secret": SECRET, "oauth_scope": SCOPE}
    return {"url": server.broker.url, "oauth_token_url": server.issuer.token_url, **login, **more}


def by_certificate(server: SecureRabbitMQ) -> dict[str, Any]:
    files = {"cert_file": str(server.client.cert), "key_file": str(server.client.key)}
    return {"url": server.tls_url, "auth_mechanism": "EXTERNAL", "ca_file": str(server.authority.ca), **files}


@pytest.fixture
def short_tokens(secure_rabbitmq: SecureRabbitMQ) -> Iterator[SecureRabbitMQ]:
    secure_rabbitmq.issuer.lifetime_s = 4
    yield secure_rabbitmq
    secure_rabbitmq.issuer.lifetime_s = 300


@pytest.fixture
def certified(secure_rabbitmq: SecureRabbitMQ) -> Iterator[SecureRabbitMQ]:
    """The broker with a user of the name in the client certificate."""
    with secure_rabbitmq.broker.user("postdate-client", "not used"):
        yield secure_rabbitmq


def test_tokens_that_expire_under_traffic_lose_nothing_and_end_no_connection(
    short_tokens: SecureRabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    broker, issuer = short_tokens.broker, short_tokens.issuer
    with Line(broker.url, redis_server.url, tmp_path) as line:
        line.settings["rabbitmq"] = by_token(short_tokens)
        with Ledger(broker.url, line.front, line.queue) as ledger:
            bridge = line.bridge().start().wait_ready()
            issued = issuer.issued
            ledger.produce(50, (0, 300), 700)
            wait_for(lambda: ledger.confirmed() == 700, "all is published", 40)
            verdict = settled(line, ledger, 40)
            verdict.assert_kept(copies_max=0)
            assert issuer.issued - issued >= 3
            moments = sorted(receipts[0].at for receipts in ledger._receipts.values())
            gap_s = max(later - earlier for earlier, later in pairwise(moments))
            print(f"longest gap: {gap_s:.2f} s")
            assert gap_s < 2
            assert "trouble" not in bridge.log(), bridge.log_tail()


def test_a_client_certificate_is_a_login_from_end_to_end(
    certified: SecureRabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(certified.broker.url, redis_server.url, tmp_path) as line:
        line.settings["rabbitmq"] = by_certificate(certified)
        with Ledger(certified.broker.url, line.front, line.queue) as ledger:
            line.bridge().start().wait_ready()
            ledger.produce(100, (0, 300), 100)
            wait_for(lambda: ledger.confirmed() == 100, "all is published", 20)
            settled(line, ledger, 40).assert_kept(copies_max=0)
    users = json.loads(certified.broker.ctl("list_users", "--formatter", "json"))
    assert "postdate-client" in {user["user"] for user in users}


def test_commands_use_the_same_logins(certified: SecureRabbitMQ) -> None:
    for login in (by_token(certified), by_certificate(certified)):
        settings = RabbitMQ.model_validate(login)
        connect(settings, "test", 5).close()
    settings = RabbitMQ.model_validate(
        by_token(
            certified, oauth_scope=f"{SCOPE} broker.tag:management", management_url=certified.broker.management_url
        )
    )
    with reach(settings) as api:
        assert api.version != "unknown"


def refusals(server: SecureRabbitMQ) -> dict[str, tuple[dict[str, Any], str]]:
    return {
        "secret": (
            by_token(server, oauth_client_secret="wrong"),
            "gives client 'postdate' no token (401 invalid_client",
        ),
        "scope": (by_token(server, oauth_scope="another.read:*/*"), "Correct rabbitmq.oauth_scope, or the end of"),
        "user": (by_certificate(server), "RabbitMQ has no user of the name in rabbitmq.cert_file"),
    }


@pytest.mark.parametrize("mistake", ["secret", "user", "scope"])
def test_a_wrong_login_is_refused_with_the_reason(secure_rabbitmq: SecureRabbitMQ, mistake: str) -> None:
    forget_tokens()
    login, words = refusals(secure_rabbitmq)[mistake]
    with pytest.raises(BrokerUnavailable) as found:
        connect(RabbitMQ.model_validate(login), "test", 5)
    assert words in str(found.value)
    assert SECRET not in str(found.value)


def test_a_token_that_rabbitmq_cannot_trust_is_refused_with_the_reason(secure_rabbitmq: SecureRabbitMQ) -> None:
    issuer, settings = secure_rabbitmq.issuer, RabbitMQ.model_validate(by_token(secure_rabbitmq))
    forget_tokens()
    issuer.audience = "another"
    try:
        with pytest.raises(BrokerUnavailable, match="RabbitMQ refuses the token"):
            connect(settings, "test", 5)
    finally:
        issuer.audience = "broker"
    issued = issuer.issued
    for _ in range(3):  # the refused token is not tried again, and one serves several connections
        connect(settings, "test", 5).close()
    assert issuer.issued == issued + 1


def test_a_broker_without_the_mechanism_is_named(rabbitmq: Any, certified: SecureRabbitMQ) -> None:
    settings = RabbitMQ.model_validate({**by_certificate(certified), "url": rabbitmq.url})
    with pytest.raises(BrokerUnavailable, match="RabbitMQ does not offer the login EXTERNAL"):
        connect(settings, "test", 5)
