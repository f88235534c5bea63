"""Whom the audit log names for a command."""

from __future__ import annotations

import asyncio
import getpass
import os

import pytest

from bridge.cli import acting, orders, select
from bridge.cli.options import Output
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


def _no_name() -> str:
    raise KeyError("getpwuid(): uid not found")
