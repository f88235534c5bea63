"""Prometheus' own checker: the one of this machine, else taken from Debian's package, without installing it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.devstack.debian import why_not_here
from tests.devstack.service import Unavailable, devstack_folder, machine_lock

_PATIENCE_S = 120.0


def find_promtool() -> str:
    """The program promtool."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    program = devstack_folder() / "promtool"
    with machine_lock(program.name):
        if not program.exists():
            _fetch(program)
    return str(program)


def _fetch(program: Path) -> None:
    if reason := why_not_here():
        raise Unavailable(f"no promtool on this machine: {reason}")
    with tempfile.TemporaryDirectory(dir=devstack_folder(), prefix="promtool-") as folder:
        try:
            _run(["apt-get", "-q", "download", "prometheus"], folder)
            (package,) = Path(folder).glob("*.deb")
            _run(["dpkg", "-x", package.name, "x"], folder)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            raise Unavailable(f"promtool cannot be taken from Debian: {error}") from error
        (Path(folder) / "x/usr/bin/promtool").rename(program)


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_PATIENCE_S)
