"""TokenProvider from an OAuth server: how postdate asks for them, and what it reports when there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from adapters.kafka.tokens import NoToken, TokenProvider, token_provider
from bridge.core.errors import BrokerUnavailable
from bridge.settings import Kafka
from bridge.settings.oauth import AccessToken, fetch_token
from tests.devstack.certificates import Authority
from tests.devstack.fixtures import need
from tests.devstack.oauth import SECRET, Issuer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return need(lambda: Authority(tmp_path_factory.mktemp("oauth")))


@pytest.fixture(scope="module")
def issuer(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    server = Issuer(tmp_path_factory.mktemp("issuer"), authority.sign("issuer"))
    yield server
    server.close()


def rules(issuer: Issuer, authority: Authority, **more: str) -> Kafka:
    given = {"oauth_token_url": issuer.token_url, "oauth_ca_file": str(authority.ca), "oauth_client_id": "postdate"}
    return Kafka.model_validate({**given, "oauth_client_secret": SECRET, **more})


def test_the_token_endpoint_is_named_or_found_by_the_issuer(issuer: Issuer, authority: Authority) -> None:
    for place in ({}, {"oauth_token_url": "", "oauth_issuer": f"{issuer.url}/"}):
        token = fetch_token(rules(issuer, authority, **place), "kafka")
        assert token.text.count(".") == 2
        assert 235 < token.renew_at - time.monotonic() < 241
        assert token.fresh


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"oauth_client_id": "stranger"}, "gives client 'stranger' no token (401 invalid_client"),
        ({"oauth_ca_file": ""}, "certificate verify failed"),
        ({"oauth_issuer": "https://127.0.0.1:1", "oauth_token_url": ""}, "no token from https://127.0.0.1:1"),
    ],
)
def test_a_refusal_is_one_sentence_without_the_secret(
    issuer: Issuer, authority: Authority, mistake: dict[str, str], words: str
) -> None:
    with pytest.raises(BrokerUnavailable) as found:
        fetch_token(rules(issuer, authority, **mistake), "kafka")
    assert words in str(found.value)
    assert SECRET not in str(found.value)


def test_an_issuer_without_a_discovery_document_is_named(issuer: Issuer, authority: Authority) -> None:
    with pytest.raises(BrokerUnavailable, match=r"publishes no token endpoint \(400\)\. Set kafka\.oauth_token_url"):
        fetch_token(rules(issuer, authority, oauth_token_url="", oauth_issuer=f"{issuer.url}/realm"), "kafka")


async def test_one_token_serves_many_connections_and_outlives_a_server_that_is_down(
    issuer: Issuer, authority: Authority
) -> None:
    issued, provider = issuer.issued, token_provider(rules(issuer, authority))
    first = await asyncio.gather(*(provider.token() for _ in range(5)))
    assert len(set(first)) == issuer.issued - issued == 1
    now = time.monotonic()
    provider._token = AccessToken(first[0], now - 1, now + 60)  # to be renewed
    issuer.failing = True
    assert await provider.token() == first[0]
    issuer.failing = False
    assert await provider.token() != first[0]


async def test_without_a_valid_token_a_connection_fails_with_the_reason(issuer: Issuer, authority: Authority) -> None:
    provider = token_provider(rules(issuer, authority))
    issuer.failing = True
    with pytest.raises(NoToken, match="gives no token \\(503\\)") as found:
        await provider.token()
    assert str(found.value).startswith(issuer.token_url), "one sentence, without the words of aiokafka"
    issuer.failing = False


async def test_a_token_for_msk_is_signed_with_the_credentials_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"ACCESS_KEY_ID": "AKIAEXAMPLE", "SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    provider = token_provider(Kafka(sasl_mechanism="AWS_MSK_IAM", aws_region="eu-central-1"))
    text = await provider.token()
    assert len(text) > 300
    assert provider._token is not None
    assert provider._token.fresh


async def test_a_provider_asks_again_when_its_token_ages() -> None:
    asked = [0]

    def fetch() -> AccessToken:
        asked[0] += 1
        return AccessToken(f"token {asked[0]}", time.monotonic() + 50, time.monotonic() + 60)

    provider = TokenProvider(fetch)
    assert [await provider.token(), await provider.token()] == ["token 1", "token 1"]
    assert provider._token is not None
    provider._token = provider._token._replace(renew_at=time.monotonic())
    assert await provider.token() == "token 2"
