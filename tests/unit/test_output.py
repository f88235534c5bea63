"""What a command prints, for the terminal or the pipe that it goes to."""

from __future__ import annotations

import os

import pytest

from bridge.cli.output import table, width
from bridge.cli.setup import counts

ROWS = [{"id": "1gd4r5kq2000ab3c9d00", "reason": "unroutable: " + "nobody takes it " * 20}]


def test_a_terminal_has_its_own_width_and_for_one_that_does_not_tell_nothing_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((0, 0)))
    table(["id", "reason"], ROWS, {}, [("reason", 24)])
    assert ROWS[0]["reason"].rstrip() in capsys.readouterr().out
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((100, 24)))
    assert width() == 100
    table(["id", "reason"], ROWS, {}, [("reason", 24)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_parts_are_counted_by_kind() -> None:
    assert counts(["queue", "exchange", "queue"]) == "2 queues, 1 exchange"
