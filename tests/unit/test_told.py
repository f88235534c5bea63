"""What `bench` and `compare` have found is told however they end, and never half a file is left of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bridge.core.errors import BrokerUnavailable, PostdateError
from bridge.lab.command import reporting, write_whole


def cannot() -> None:
    raise PostdateError("report/compare.json cannot be written")


def test_what_was_found_is_told_after_an_error_which_stays_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokerUnavailable, match=r"^gone$"), reporting(cannot):
        raise BrokerUnavailable("gone")
    assert capsys.readouterr().err == "report/compare.json cannot be written.\n"


def test_what_cannot_be_written_is_the_error_where_there_is_no_other() -> None:
    with pytest.raises(PostdateError, match="cannot be written"), reporting(cannot):
        pass


def test_a_disk_that_becomes_full_leaves_no_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(file: Path, data: bytes) -> int:
        with file.open("wb") as opened:
            opened.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(PostdateError, match=r"table\.md cannot be written \(No space left on device\)"):
        write_whole(tmp_path / "table.md", "| way |")
    assert list(tmp_path.iterdir()) == []
