"""SIGHUP ends a run whose terminal was closed, and reloads any other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from bridge.app import daemon


@pytest.mark.parametrize(("at_start", "now", "ends"), [(True, False, True), (True, True, False), (False, False, False)])
async def test_sighup_ends_a_run_only_if_its_terminal_was_closed(
    at_start: bool, now: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, killed, reloader = [at_start], list[tuple[int, int]](), Mock()
    monkeypatch.setattr(os, "isatty", lambda fd: terminal[0])
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    before: Any = signal.getsignal(signal.SIGHUP)
    hung_up: Callable[[], None] = daemon._on_hangup(reloader)
    terminal[0] = now
    try:
        hung_up()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert killed == ([(os.getpid(), signal.SIGTERM)] if ends else [])
    assert reloader.ask.called is not ends
