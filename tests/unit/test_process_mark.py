"""The mark of a process in its report: an instance of this machine that died is known to be dead at once."""

from __future__ import annotations

import os

import pytest

from bridge.core.process_mark import has_ended, mark_of
from bridge.core.roll import believable

#: Above the highest process id of Linux.
NOBODY = 1 << 23


def marked(pid: int, started: str) -> str:
    return f"{mark_of(os.getpid()).split()[0]} {pid} {started}"


def test_a_process_that_runs_has_not_ended() -> None:
    assert not has_ended(mark_of(os.getpid()))
    assert believable(1000, 999, {"takeover_ms": 4000, "process": mark_of(os.getpid())})


@pytest.mark.parametrize("pid", [NOBODY, os.getpid()], ids=["gone", "its id has another process"])
def test_one_that_does_not_run_has_ended_and_its_last_report_counts_no_more(pid: int) -> None:
    assert has_ended(marked(pid, "1"))
    assert not believable(1000, 999, {"takeover_ms": 4000, "process": marked(pid, "1")})


@pytest.mark.parametrize("mark", [f"otherplace {NOBODY} 1", "", " ", None])
def test_of_processes_elsewhere_nothing_is_known(mark: object) -> None:
    assert not has_ended(mark)
