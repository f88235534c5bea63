"""A program forked from the preloaded process behaves like one in a new interpreter."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.devstack.service import wait_for
from tests.preloaded import start

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")]

PROGRAM = """
import atexit, os, sys, time
atexit.register(print, "at exit")
print(os.getcwd(), os.environ, sys.argv[1:], os.getsid(0) == os.getpid(), flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the module ``wanted``, found by the program because it is the working directory."""
    (tmp_path / "wanted.py").write_text(PROGRAM)
    return tmp_path


def test_it_has_its_own_arguments_environment_folder_output_and_exit_code(folder: Path) -> None:
    log = folder / "log"
    program = start("wanted", ["3"], folder, {"ONLY": "this"}, log)
    assert program.wait(20) == program.poll() == 3
    assert program.pid != os.getpid()
    written = log.read_text()
    assert written.startswith(str(folder))
    assert "'ONLY': 'this'" in written
    assert "['3'] True" in written
    assert written.endswith("at exit\n")


def test_a_signal_reaches_it_and_its_code_says_so(folder: Path) -> None:
    log = folder / "log"
    program = start("wanted", ["wait"], folder, dict(os.environ), log)
    wait_for(lambda: log.exists() and "wait" in log.read_text(), "it runs")
    assert program.poll() is None
    program.send_signal(signal.SIGKILL)
    assert program.wait(20) == -signal.SIGKILL
