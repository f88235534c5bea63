"""Whom the audit log names for a command."""

from __future__ import annotations

import asyncio
import getpass
import os

import pytest

from bridge.cli import acting, orders, run_command, select
from bridge.cli.options import Output
from bridge.core.errors import WRONG
from bridge.core.orders import Actor
from bridge.operate.verbs import CANCEL
from tests.api import MemoryStores, settings


def test_every_command_names_a_user_without_a_name_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = MemoryStores()
    monkeypatch.setattr(getpass, "getuser", _no_name)
    monkeypatch.setattr(orders, "settings_for", lambda _: settings())
    monkeypatch.setattr(acting, "KeptStores", lambda *_: stores)
    message_id = asyncio.run(stores.store_one("orders")).decode()
    orders.pause(["orders"], output=Output.JSON)
    select.at_messages(CANCEL, settings(), [message_id], None, None, "", Output.JSON)
    who = Actor(f"uid {os.getuid()}", "cli")
    assert asyncio.run(stores.kept.orders())["orders"].by == who
    entries = asyncio.run(stores.kept.audit(10))
    assert [(entry.verb, entry.by) for entry in entries] == [("cancel", who), ("pause", who)]


@pytest.mark.parametrize("command", ["pause", "resume", "drain"])
def test_an_order_with_a_reason_points_to_the_note(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([command, "orders", "--reason", "the bank is down"]) == WRONG
    assert capsys.readouterr().err == "--reason selects messages. Say why with --note.\n"


def _no_name() -> str:
    raise KeyError("getpwuid(): uid not found")
