"""Logins at the brokers: each needs its own settings, and a wrong mixture is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.core.errors import SettingsError
from bridge.settings import Settings, load

OAUTH = 'oauth_token_url = "https://login.example/token"\noauth_client_id = "a"\noauth_client_secret = "b"\n'
SASL = '[kafka]\nsecurity_protocol = "SASL_SSL"\n'
BY_TOKEN = f'{SASL}sasl_mechanism = "OAUTHBEARER"\n'


def from_toml(folder: Path, text: str) -> Settings:
    file = folder / "some.toml"
    file.write_text(text.replace("FILE", str(file)))
    return load(file, {})


@pytest.mark.parametrize(
    "text",
    [
        BY_TOKEN + OAUTH,
        BY_TOKEN + OAUTH.replace("token_url", "issuer") + 'oauth_scope = "kafka"\noauth_ca_file = "FILE"\n',
        BY_TOKEN + OAUTH.replace("https://login.example", "http://127.0.0.1:8080"),
        f'{SASL}sasl_mechanism = "AWS_MSK_IAM"\naws_region = "eu-central-1"\n',
        "[rabbitmq]\n" + OAUTH,
        '[rabbitmq]\nurl = "amqps://rabbit-1"\nauth_mechanism = "EXTERNAL"\ncert_file = "FILE"\nkey_file = "FILE"\n',
    ],
)
def test_a_whole_login_is_accepted(tmp_path: Path, text: str) -> None:
    settings = from_toml(tmp_path, text)
    assert settings.kafka.by_token or settings.rabbitmq.by_token or settings.rabbitmq.auth_mechanism == "EXTERNAL"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BY_TOKEN, "kafka.sasl_mechanism requires kafka.oauth_issuer or kafka.oauth_token_url, and not both"),
        (
            BY_TOKEN + OAUTH + 'oauth_issuer = "https://login.example"\n',
            "kafka.sasl_mechanism requires kafka.oauth_issuer or kafka.oauth_token_url, and not both",
        ),
        (
            BY_TOKEN + 'oauth_token_url = "https://login.example/token"\noauth_client_id = "a"\n',
            "kafka.sasl_mechanism requires kafka.oauth_client_id and kafka.oauth_client_secret",
        ),
        (
            BY_TOKEN + OAUTH + 'sasl_password = "c"\n',
            "kafka.sasl_password is not used with kafka.sasl_mechanism = 'OAUTHBEARER'",
        ),
        (BY_TOKEN + OAUTH + 'oauth_ca_file = "none"\n', "kafka.oauth_ca_file names a file that does not exist"),
        (f"[kafka]\n{OAUTH}", 'kafka.oauth_client_id requires kafka.security_protocol = "SASL_SSL"'),
        (f'{SASL}sasl_mechanism = "AWS_MSK_IAM"\n', "kafka.sasl_mechanism requires kafka.aws_region"),
        (f'{SASL}sasl_mechanism = "GSSAPI"\n', "kafka.sasl_mechanism must be one of PLAIN,"),
        (f'{SASL}sasl_mechanism = "OAUTHBEARRER"\n', "kafka.sasl_mechanism must be one of PLAIN,"),
        (f"[rabbitmq]\n{OAUTH}password = 'c'\n", "rabbitmq.password is not used with rabbitmq.oauth_token_url"),
        ('[rabbitmq]\noauth_scope = "a"\n', "rabbitmq.oauth_scope requires rabbitmq.oauth_client_id and"),
        ('[rabbitmq]\nauth_mechanism = "EXTERNAL"\n', "rabbitmq.auth_mechanism requires a client certificate"),
        (
            f'[rabbitmq]\nurl = "amqps://r"\ncert_file = "FILE"\nauth_mechanism = "EXTERNAL"\n{OAUTH}',
            'rabbitmq.oauth_client_id is not used with rabbitmq.auth_mechanism = "EXTERNAL"',
        ),
        (
            BY_TOKEN + OAUTH.replace("https", "http"),
            "kafka.oauth_token_url must begin with https://: the client's secret would cross the network",
        ),
        (BY_TOKEN + OAUTH.replace("//login", "//a:b@login"), "kafka.oauth_token_url must be a URL without a user"),
    ],
)
def test_half_a_login_and_a_mixture_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as found:
        from_toml(tmp_path, text)
    assert sentence in str(found.value)
