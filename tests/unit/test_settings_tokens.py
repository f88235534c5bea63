"""Tokens with a name, and secrets that a file of the settings names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_settings import from_toml, refusal

pytestmark = pytest.mark.usefixtures("empty_directory")

TOKEN = "0123456789abcdef"


def test_a_person_has_a_token_with_a_role_in_the_file_or_in_the_environment() -> None:
    Path("secret").write_text("fedcba9876543210\n")
    environ = {
        "POSTDATE_AUTH__TOKENS__BOB__ROLE": "admin",
        "POSTDATE_AUTH__TOKENS__BOB__TOKEN_FILE": "secret",
        "POSTDATE_AUTH__VIEWER_TOKEN": "viewer-0123456789",
    }
    settings = from_toml(f'[auth.tokens.alice]\nrole = "operator"\ntoken = "{TOKEN}"', environ)
    assert {(role, name) for role, name, _ in settings.auth.known().values()} == {
        ("viewer", "viewer"),
        ("operator", "alice"),
        ("admin", "bob"),
    }
    assert TOKEN not in repr(settings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[auth.tokens.alice]", "auth.tokens.alice needs role and token"),
        ('[auth.tokens.alice]\nrole = "viewer"', "must be set. Or name its file in token_file"),
        ('[auth.tokens.alice]\nrole = "boss"\ntoken = "TOKEN"', "auth.tokens.alice.role must be"),
        ('[auth.tokens.alice]\ntoken = "short"', "auth.tokens.alice.token must be 16 to 512"),
        ('[auth.tokens.alice]\nrolle = "viewer"', 'Did you mean "role"?'),
        ('[auth.tokens.Alice]\ntoken = "TOKEN"', "auth.tokens.Alice is not a valid token name"),
        ('[auth.tokens.admin]\ntoken = "TOKEN"', "Choose another name"),
        ('[auth.tokens.local]\ntoken = "TOKEN"', "Choose another name"),
        (
            '[auth.tokens.a]\ntoken = "TOKEN"\n[auth.tokens.b]\ntoken = "TOKEN"',
            "must not be equal to auth.tokens.b",
        ),
        ('[auth]\nadmin_token = "TOKEN"\n[auth.tokens.b]\ntoken = "TOKEN"', "must not be equal to auth.tokens.b"),
        ("[auth]\ntokens = 1", "must be a table: [auth.tokens.alice]"),
    ],
)
def test_a_mistake_is_named_without_the_token(text: str, said: str) -> None:
    found = refusal(text.replace("TOKEN", TOKEN))
    assert said in found
    assert TOKEN not in found


def test_the_file_of_any_secret_may_be_named_in_the_settings() -> None:
    Path("secret").write_text("geheim-0123456789\n")
    settings = from_toml('[webhook]\nsecret_file = "secret"\n[auth.tokens.alice]\ntoken_file = "secret"')
    assert settings.webhook.secret.get_secret_value() == "geheim-0123456789"
    assert settings.auth.tokens["alice"].token.get_secret_value() == "geheim-0123456789"
    assert settings.origin.sources["webhook.secret"] == "file secret"
    for twice in ('secret = "a"\nsecret_file = "secret"', 'secret_file = "secret"\nsecret = "a"'):
        assert "is set twice: by its value and by a file" in refusal(f"[webhook]\n{twice}")
    assert "cannot be read: No such file" in refusal('[redis]\npassword_file = "/no/such"')
    assert 'unknown setting "redis.shards_file"' in refusal('[redis]\nshards_file = "secret"')
