"""A clock for a server of this machine, which a test moves while the server runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.devstack.service import Unavailable, machine_lock

SOURCE = Path(__file__).with_name("moved_clock.c")
TOOL_TIMEOUT_S = 60.0


class MovedClock:
    """``env`` is for the server. Its clock shows the machine's time plus what ``set`` gave last."""

    def __init__(self, folder: Path) -> None:
        """Raises ``Unavailable`` where no library can be built or preloaded."""
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.offset_s = 0.0
        self.env = {"LD_PRELOAD": str(_library(folder)), "POSTDATE_TEST_CLOCK": str(self._file)}

    def set(self, offset_s: float) -> None:
        """Let the server's clock step."""
        self.offset_s = offset_s
        with self._file.open("r+b") as file:  # in place: the server has mapped this file
            file.write(int(offset_s * 1e6).to_bytes(8, sys.byteorder, signed=True))


def _library(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        raise Unavailable("a clock that a test moves needs Linux and a C compiler (cc)")
    library = folder / "moved_clock.so"
    command = (compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE))
    with machine_lock("moved clock"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    if done.returncode:
        raise Unavailable(f"{compiler} cannot build {SOURCE.name}: {done.stderr.strip()[-300:]}")
    return library
