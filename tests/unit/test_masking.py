"""What a viewer does not see of JSON and headers: the table of ``bridge.operate.masking``, line by line."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from bridge.operate.masking import HIDDEN, MASKED_MAX, is_masked, masked, masked_body
from bridge.settings.model import Ui

MASK = Ui().mask
SECRET = "hunter2"
TWICE = json.dumps(json.dumps({"password": SECRET}))


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "access_token",
        "refreshToken",
        "user_password",
        "client_secret",
        "api_key",
        "X-Api-Key",
        "x-api-key #2",
        "credit_card",
        "card_number",
        "pwd",
        "ssn",
        "customerSSN",
        "cookie",
        "Set-Cookie",
        "Proxy-Authorization",
        "cvv",
        "pan #2",
        "IBAN",
        "aws_secret_access_key",
        "privateKey",
        " password",
        "pass\u200bword",
        "ｐａｓｓｗｏｒｄ",
        "𝓹𝓪𝓼𝓼𝔀𝓸𝓻𝓭",
        "paſſword",
        "pásswörd",
        "PASS-WORD",
        "x" * 257,
    ],
)
def test_a_secret_under_this_name_is_hidden(name: str) -> None:
    assert masked({"a": [{name: SECRET, "n": 1}]}, MASK) == {"a": [{name: HIDDEN, "n": 1}]}


@pytest.mark.parametrize(
    "name",
    ["company", "shipping", "author", "business_name", "expand", "note", "x-delay-id", "routing_key", "keyboard"],
)
def test_a_field_under_this_name_is_shown(name: str) -> None:
    assert masked({name: SECRET}, MASK) == {name: SECRET}


@pytest.mark.parametrize(
    "pair",
    [
        {"name": "password", "value": SECRET},
        {"Name": "User Password", "Value": SECRET},
        {"key": "api-key", "data": {"text": SECRET}},
        {"headerName": "cookie", "headerValue": [SECRET]},
        ["password", SECRET],
    ],
)
def test_the_value_beside_the_name_of_a_secret_is_hidden(pair: Any) -> None:
    assert SECRET not in json.dumps(masked({"fields": [pair]}, MASK))


@pytest.mark.parametrize(
    "pair", [{"name": "colour", "value": SECRET}, ["colour", SECRET], {"name": "x" * 300, "value": 1}]
)
def test_the_value_beside_another_name_is_shown(pair: Any) -> None:
    assert masked(pair, MASK) == pair


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"password": SECRET}),
        "\ufeff" + json.dumps({"password": SECRET}),
        json.dumps({"password": SECRET}) + " trailing",
        json.dumps({"n": SECRET}) + " trailing",
        "leading " + json.dumps({"password": SECRET}),
        TWICE,
        json.dumps(TWICE),
        TWICE + " trailing",
        f"<a><password>{SECRET}</password></a>",
        f"\n<?xml version='1.0'?><a b='{SECRET}'/>",
        f"user=1&password={SECRET}",
        f"user=1&pass%77ord={SECRET}",
        f"https://example.org/?access_token={SECRET}",
        f"GET / HTTP/1.1\r\nAuthorization: Basic {SECRET}\r\n",
        f"credit card: {SECRET}",
        f"the pan: {SECRET}",
        "[" * 100_000 + SECRET,
    ],
)
def test_text_that_may_name_a_secret_shows_none(text: str) -> None:
    assert SECRET not in str(masked({"payload": text}, MASK))


@pytest.mark.parametrize(
    "text", ["", "hello", "reset your password", "2 < 3", "at 10:30", "a=1&b=2", '"quoted" text', '[1, 2, {"n": "x"}]']
)
def test_text_without_the_name_of_a_field_that_is_hidden_stays_as_it_is(text: str) -> None:
    assert masked({"payload": text}, MASK) == {"payload": text}


@pytest.mark.parametrize("body", [b"a=1", b"<a/>", b'{"a": 1} x', b'"text"', json.dumps(TWICE).encode(), b"{"])
def test_a_body_that_is_no_json_object_is_hidden_whole(body: bytes) -> None:
    assert masked_body("masked", MASK, body, len(body))[0] is None


def test_patterns_of_the_settings_are_read_like_names() -> None:
    mask = ("Tax-ID", "internal*", "*key", "---")
    assert [is_masked(name, mask) for name in ("tax_id", "taxId2", "internal_note", "api key", "keys")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert not is_masked("password", ())
    assert is_masked("anything", ("*",))


@pytest.mark.parametrize(
    "piece",
    [
        b'"a":1,',
        b'"%d":1,',
        b'"p":"a=b&"',
        b'["a","b"],',
        "\ufdfa".encode() * 8,
        b"a=",
        b"\\u0061:",
        b"[[",
        b"password",
    ],
)
def test_the_largest_body_costs_a_bounded_time(piece: bytes) -> None:
    filler = b"".join(piece % n if b"%" in piece else piece for n in range(MASKED_MAX // len(piece) - 10))
    for body in (b"{" + filler + b'"z":1}', json.dumps({"t": filler.decode(errors="replace")}).encode()[:MASKED_MAX]):
        began = time.thread_time()
        masked_body("masked", MASK, body, len(body))
        assert time.thread_time() - began < 3
