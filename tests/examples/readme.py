"""The commands in deploy/examples/README.md: run as they are written there, only with other addresses.

A block begins with ``cd`` into the folder of an example. Its lines before an empty line prepare the example: they run
once, in a copy of the folder in the devstack, and again only after the folder or the lines have changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.devstack.service import Unavailable, devstack_folder, machine_lock

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"
#: What the commands make; it is not part of an example.
MADE = (".venv", "node_modules", "target", "bin", "__pycache__")
PREPARE_S = 600


class Block(NamedTuple):
    """One block of commands."""

    folder: str
    prepare: str
    lines: tuple[str, ...]

    def command(self, word: str = "") -> str:
        """All commands, or the one line with this word."""
        return "\n".join(line for line in self.lines if word in line)


def block(title: str, number: int = 0) -> Block:
    """A block of the section with this title."""
    text = (EXAMPLES / "README.md").read_text()
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    written = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[number]
    first, *rest = written.splitlines()
    prepare, empty, run = "\n".join(rest).rpartition("\n\n")
    folder = first.removeprefix("cd deploy/examples/")
    assert folder != first, f"{title}: the first line is not cd deploy/examples/..."
    return Block(folder, prepare if empty else "", tuple(run.strip().splitlines()))


def prepared(example: Block, program: str) -> Path:
    """A copy of the example's folder in which its first lines have run. Raises ``Unavailable`` without ``program``."""
    if shutil.which(program) is None:
        raise Unavailable(f"no {program} on this machine")
    source = EXAMPLES / example.folder
    files = sorted(file for file in source.rglob("*") if file.is_file() and not {*file.parts} & set(MADE))
    version = hashlib.sha256(example.prepare.encode())
    for file in files:
        version.update(f"\0{file.relative_to(source)}\0".encode() + file.read_bytes())
    folder = devstack_folder() / "examples" / f"{example.folder.replace('/', '-')}-{version.hexdigest()[:12]}"
    done = folder / ".prepared"
    with machine_lock(f"example-{folder.name}"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*MADE))
            _prepare(example.prepare, folder)
            done.touch()
    return folder


def _prepare(lines: str, folder: Path) -> None:
    shell = ("sh", "-e", "-c", lines)
    ran = subprocess.run(shell, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=PREPARE_S)
    if ran.returncode != 0:
        raise Unavailable(f"{lines!r} failed in {folder}: {(ran.stdout + ran.stderr)[-1_500:]}")


def environment(folder: Path) -> dict[str, str]:
    """The environment of a user who has activated the example's virtual environment, or that of these tests."""
    python = folder / ".venv" / "bin"
    first = str(python if python.exists() else Path(sys.executable).parent)
    own = {name: value for name, value in os.environ.items() if not name.startswith("POSTDATE_")}
    return {**own, "PATH": f"{first}{os.pathsep}{own.get('PATH', os.defpath)}"}


class Program:
    """Commands in a shell, as a process group; what it prints goes to a file."""

    def __init__(self, command: str, folder: Path, log: Path) -> None:
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                ("sh", "-e", "-c", command),
                cwd=folder,
                env=environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def running(self) -> bool:
        return self._process.poll() is None

    def succeeded(self) -> bool:
        """Whether it has ended well; fails if it has ended in another way."""
        assert self._process.poll() in (None, 0), self.printed()[-3000:]
        return not self.running()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def started(command: str, folder: Path, places: Mapping[str, str], log: Path) -> Iterator[Program]:
    """The commands, with ``places`` in place of the README's addresses; killed at the end of the block."""
    for written, meant in places.items():
        command = command.replace(written, meant)
    program = Program(command, folder, log)
    try:
        yield program
    finally:
        program.kill()
