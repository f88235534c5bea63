"""What a command prints, for the terminal or the pipe that it goes to."""

from __future__ import annotations

import os

import pytest

from bridge.cli.output import fitted, table, width
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


NEEDS = {"id": 20, "when": 11, "due": 24, "key": 10, "size": 4, "tries": 5, "reason": 99}
CUT = [("reason", 40), ("due", 0), ("reason", 16), ("size", 0), ("tries", 0), ("key", 9), ("reason", 8)]


@pytest.mark.parametrize(
    ("room", "gone"),
    [(300, set()), (187, set()), (128, set()), (127, {"due"}), (77, {"due", "size"}), (70, {"due", "size", "tries"})],
)
def test_a_line_that_is_too_long_loses_what_matters_least_and_is_as_long_as_it_can_be(
    room: int, gone: set[str]
) -> None:
    widths = fitted(NEEDS, CUT, room)
    assert NEEDS.keys() - widths == gone
    assert sum(widths.values()) + 2 * len(widths) == min(room, 187)
    assert (widths["id"], widths["when"], widths["key"]) == (20, 11, 10)


def test_keys_are_cut_before_the_first_word_of_a_reason_is_and_ids_never() -> None:
    widths = fitted(NEEDS, CUT, 56)
    assert widths == {"id": 20, "when": 11, "key": 9, "reason": 8}


def test_parts_are_counted_by_kind() -> None:
    assert counts(["queue", "exchange", "queue"]) == "2 queues, 1 exchange"
