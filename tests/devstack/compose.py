"""Docker's own `compose`: the plugin of this machine, else built once from its Go module."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.devstack.engine import EngineFailed, run
from tests.devstack.service import Unavailable, devstack_folder, machine_lock

MODULE, VERSION = "github.com/docker/compose/v2", "v2.40.3"
_QUICK_S, _BUILD_S = 30.0, 1_800.0


def find_compose() -> tuple[str, ...]:
    """The words before a command of compose."""
    docker = shutil.which("docker")
    if docker is not None:
        try:
            run([docker, "compose", "version"], os.environ, _QUICK_S)
        except EngineFailed:
            pass
        else:
            return (docker, "compose")
    return (str(_built()),)


def _built() -> Path:
    """The program, built when it is not there yet: some minutes, once. It bears its name only when it is complete."""
    program = devstack_folder() / f"docker-compose-{VERSION}"
    with machine_lock(program.name):
        if not program.exists():
            go = shutil.which("go")
            if go is None:
                raise Unavailable("no `docker compose` on this machine, and no Go to build it with")
            try:
                _build(go, program)
            except (EngineFailed, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"docker compose cannot be built: {error}") from error
    return program


def _build(go: str, program: Path) -> None:
    # `go install` refuses a module that excludes versions of others, so it is built as a main module, from a copy.
    with tempfile.TemporaryDirectory(dir=devstack_folder(), prefix="compose-") as folder:
        environ = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
        fetched = run([go, "-C", folder, "mod", "download", "-json", f"{MODULE}@{VERSION}"], environ, _BUILD_S)
        source = Path(folder) / "source"
        # Go keeps its modules read-only.
        shutil.copytree(json.loads(fetched)["Dir"], source, copy_function=shutil.copyfile)
        for path in (source, *source.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        unfinished = program.with_name(program.name + ".unfinished")
        run([go, "-C", str(source), "build", "-trimpath", "-o", str(unfinished), "./cmd"], environ, _BUILD_S)
        unfinished.rename(program)
