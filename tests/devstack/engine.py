"""A container engine: Docker where one answers, else podman in namespaces of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.devstack.container import engine_answers
from tests.devstack.service import Unavailable

_HEALTH_S = 1.0
#: The containers that a health check may change.
_UNSURE = ("--filter", "health=starting", "--filter", "health=unhealthy")


class EngineFailed(RuntimeError):
    """A command of the engine failed; the text carries its output."""


@dataclass(frozen=True)
class Engine:
    """An engine, by its command line.

    `environ` names the engine to other programs. `podman` differs from Docker here in three ways: it keeps `/tmp`
    writable unless told otherwise, leaves health checks to systemd, and builds without DNS in a network of its own.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    podman: bool

    @property
    def read_only(self) -> tuple[str, ...]:
        """The options of `create` that leave no writable path."""
        return ("--read-only", "--read-only-tmpfs=false") if self.podman else ("--read-only",)

    def run(self, *words: str, deadline_s: float = 60.0) -> str:
        """Run one command of the engine. Return its standard output."""
        return run([*self.command, *words], self.environ, deadline_s)

    def container(self, image: str, options: Sequence[str] = (), command: Sequence[str] = ()) -> Container:
        """A container that is created and not started."""
        return Container(self, self.run("create", *options, image, *command).strip())

    def inspect(self, what: str) -> dict[str, Any]:
        """What the engine knows of an image or a container."""
        found: dict[str, Any] = json.loads(self.run("inspect", what))[0]
        return found

    @contextmanager
    def health_checks(self) -> Iterator[None]:
        """Meanwhile health checks run."""
        if not self.podman:
            yield
            return
        done = threading.Event()
        looking = threading.Thread(target=self._look_after_health, args=(done,), daemon=True)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()

    def _look_after_health(self, done: threading.Event) -> None:
        while not done.wait(_HEALTH_S):
            # A container without a health check, or one that has ended, is an error of this command and of no other.
            with suppress(EngineFailed, subprocess.TimeoutExpired):
                for container in self.run("ps", "--quiet", *_UNSURE).split():
                    with suppress(EngineFailed, subprocess.TimeoutExpired):
                        self.run("healthcheck", "run", container, deadline_s=20)


class Container:
    """One container. Leave the `with` block and it is gone."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._engine.run("rm", "--force", self.name)

    def start(self) -> Self:
        self._engine.run("start", self.name)
        return self

    def kill(self) -> int:
        """SIGKILL. The exit code."""
        self._engine.run("kill", "--signal", "KILL", self.name)
        return self.wait_end()

    def stop(self, grace_s: int) -> int:
        """SIGTERM, and SIGKILL after the grace. The exit code."""
        self._engine.run("stop", "--time", str(grace_s), self.name, deadline_s=grace_s + 30)
        return self.wait_end()

    def wait_end(self, deadline_s: float = 60.0) -> int:
        """The exit code, once it has ended."""
        return int(self._engine.run("wait", self.name, deadline_s=deadline_s))

    def run(self, *command: str) -> str:
        """Run a command inside. Return its standard output."""
        return self._engine.run("exec", self.name, *command)

    def log(self) -> str:
        """What it wrote, standard output and standard error."""
        return run([*self._engine.command, "logs", self.name], self._engine.environ, 30, errors_too=True)


def docker() -> Engine:
    """The Docker engine of this machine."""
    program = shutil.which("docker")
    if program is None or not engine_answers():
        raise Unavailable("no Docker engine answers")
    return Engine((program,), os.environ, podman=False)


def run(command: Sequence[str], environ: Mapping[str, str], deadline_s: float, errors_too: bool = False) -> str:
    """Run a program to its end. Return what it wrote, or raise `EngineFailed` with all of that."""
    done = subprocess.run(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors_too else subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=deadline_s,
        check=False,
    )
    if done.returncode != 0:
        output = f"{done.stdout}{done.stderr or ''}"[-4_000:]
        raise EngineFailed(f"{' '.join(command)} ended with {done.returncode}: {output}")
    return done.stdout


def build(engine: Engine, dockerfile: Path, context: Path, tag: str) -> None:
    """Build an image."""
    network = ("--network", "host") if engine.podman else ()
    engine.run("build", *network, "--file", str(dockerfile), "--tag", tag, str(context), deadline_s=900)
