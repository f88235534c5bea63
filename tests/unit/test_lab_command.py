"""What bench and compare share: numbers from options, and a complete report or none, however they end."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bridge.core.errors import BrokerUnavailable, PostdateError, SettingsError
from bridge.lab import bench, compare_modes
from bridge.lab.command import reporting, write_whole


def cannot() -> None:
    raise PostdateError("report/compare.json cannot be written")


def test_the_report_follows_an_error_which_stays_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokerUnavailable, match=r"^gone$"), reporting(cannot):
        raise BrokerUnavailable("gone")
    assert capsys.readouterr().err == "report/compare.json cannot be written.\n"


def test_a_report_that_cannot_be_written_is_the_error_if_there_is_no_other() -> None:
    with pytest.raises(PostdateError, match="cannot be written"), reporting(cannot):
        pass


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(file: Path, data: bytes) -> int:
        with file.open("wb") as opened:
            opened.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(PostdateError, match=r"table\.md cannot be written \(No space left on device\)"):
        write_whole(tmp_path / "table.md", "| way |")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rates", "duration", "text"),
    [
        ("1000000000", None, "--rates: '1000000000' is no number above 0 up to 10,000,000."),
        ("0", None, "--rates: '0' is no number above 0"),
        ("500,-1", None, "--rates: '-1' is no number above 0"),
        ("nan", None, "--rates: 'nan' is no number above 0"),
        ("", None, "--rates: '' is no number above 0"),
        ("500;2000", None, "--rates: '500;2000' is no number above 0 up to 10,000,000. Separate numbers with commas"),
        (None, "5", "--duration: '5' is less than 1s. Without a unit it means milliseconds: write 5s"),
        (None, "500ms", "--duration: '500ms' is less than 1s"),
        (None, "", "--duration: '' is not a duration: write a number with a unit"),
    ],
)
def test_a_wrong_number_is_refused_with_the_reason(rates: str | None, duration: str | None, text: str) -> None:
    for plan in (
        lambda: compare_modes.with_options(True, rates, duration, None, None),
        lambda: bench.with_options(bench.BenchPlan(), None, None, rates, duration, None, None, 1),
    ):
        with pytest.raises(SettingsError) as caught:
            plan()
        assert str(caught.value).startswith(text)


def test_a_burst_needs_whole_numbers_and_a_list_of_kinds_must_not_be_empty() -> None:
    with pytest.raises(SettingsError, match=r"--burst: 0\.5 is not a whole number"):
        bench.with_options(bench.BenchPlan(), None, None, None, None, "0.5", None, 1)
    with pytest.raises(SettingsError, match="--only: '' is none of plain"):
        bench.with_options(bench.BenchPlan(), "", None, None, None, None, None, 1)
