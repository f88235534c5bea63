"""Tables fit the terminal that they are printed on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bridge.cli.output import fitted, table, width
from bridge.desk.topology import counts

ROWS = [{"id": "1gd4r5kq2000ab3c9d00", "reason": "unroutable: " + "nobody takes it " * 20}]


def test_a_table_fits_the_terminal_and_one_of_unknown_width_cuts_nothing(
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


NEEDS = {"id": 20, "when": 11, "due": 24, "key": 10, "size": 4, "tries": 5, "reason": 99}
CUT = [("reason", 40), ("due", 0), ("reason", 16), ("size", 0), ("tries", 0), ("key", 9), ("reason", 8)]


@pytest.mark.parametrize(
    ("room", "gone"),
    [(300, set()), (187, set()), (128, set()), (127, {"due"}), (77, {"due", "size"}), (70, {"due", "size", "tries"})],
)
def test_a_long_line_drops_the_least_important_columns_and_fills_the_terminal(room: int, gone: set[str]) -> None:
    widths = fitted(NEEDS, CUT, room)
    assert NEEDS.keys() - widths == gone
    assert sum(widths.values()) + 2 * len(widths) == min(room, 187)
    assert (widths["id"], widths["when"], widths["key"]) == (20, 11, 10)


def test_keys_shrink_before_the_first_word_of_a_reason_and_ids_never_do() -> None:
    widths = fitted(NEEDS, CUT, 56)
    assert widths == {"id": 20, "when": 11, "key": 9, "reason": 8}


def test_parts_are_counted_by_kind() -> None:
    assert counts(["queue", "exchange", "queue"]) == "queues (2), exchanges (1)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "where", "reason"),
    [
        ("--version", ">&-", "Bad file descriptor"),
        ("list --help", ">&-", "Bad file descriptor"),
        ("--version", ">/dev/full", "No space left on device"),
        ("list --help", ">/dev/full", "No space left on device"),
    ],
)
def test_output_that_cannot_be_written_is_a_sentence_and_a_failure(command: str, where: str, reason: str) -> None:
    shell = ["sh", "-c", f"{sys.executable} -m bridge.cli {command} {where}"]
    ended = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"Cannot write the output: {reason}.\n")


@pytest.mark.slow
def test_output_that_is_no_longer_read_is_no_failure() -> None:
    shell = ["sh", "-c", f"{sys.executable} -m bridge.cli list --help | true; {sys.executable} -m bridge.cli --version"]
    ended = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
