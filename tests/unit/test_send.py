"""A new message is judged alike by `postdate send` and by the API, before anything connects to a store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bridge.cli.commands import app
from bridge.core.errors import SettingsError
from bridge.settings.model import Limits
from tests.api import api, settings

SETTINGS = """
[redis]
url = "redis://127.0.0.1:1"
[limits]
max_body = "1KiB"
[routes.orders]
intercept = "orders.delay"
deliver_to = "orders"
"""


@pytest.mark.parametrize(
    ("member", "given", "options", "why"),
    [
        ("route", "ordres", [], "Did you mean 'orders'?"),
        ("key", "k" * 256, ["--key", "k" * 256], "{key} is too long: 256 bytes. The maximum is 255."),
        (
            "headers",
            {"x-delay": "5"},
            ["--header", "x-delay=5"],
            "header x-delay is for producers. Use {in} or {at}.",
        ),
        ("headers", {"x-delay-key": "k"}, ["--header", "x-delay-key=k"], "Use {key}."),
        ("headers", {"x-delay-cancel": "k"}, ["--header", "x-delay-cancel=k"], "Use `postdate cancel`."),
        ("body", "x" * 1100, [], "limits.max_body allows 1024 bytes."),
        ("routing_key", None, [], "{routing_key} is missing."),
    ],
)
async def test_the_api_and_the_command_refuse_a_message_in_the_same_words(
    member: str, given: object, options: list[str], why: str, tmp_path: Path
) -> None:
    config = tmp_path / "postdate.toml"
    config.write_text(SETTINGS)
    new = {"route": "orders", "routing_key": "new", "body": "x", "in": "1h", member: given}
    limits = settings(limits=Limits.model_validate({"max_body": "1KiB"}))
    async with api(given=limits) as client:
        refusal = (await client.call("POST", "/messages", 422, new))["detail"]
    words = ["send", str(new["route"]), str(new["body"]), "--in", "1h", "--config", str(config), *options]
    words += ["--routing-key", "new"] if new["routing_key"] else []
    error = (await asyncio.to_thread(CliRunner().invoke, app, words)).exception
    assert isinstance(error, SettingsError)
    names = ("key", "in", "at", "routing_key")
    assert why.format_map({name: f'"{name}"' for name in names}) in refusal
    assert why.format_map({name: f"--{name.replace('_', '-')}" for name in names}) in str(error)


def test_the_command_refuses_a_key_that_is_not_utf_8(tmp_path: Path) -> None:
    config = tmp_path / "postdate.toml"
    config.write_text(SETTINGS)
    words = ["send", "orders", "x", "--in", "1h", "--config", str(config), "--routing-key", "new", "--key", "\udc80"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, SettingsError)
    assert str(error) == "--key is not UTF-8 text."
