"""`postdate run` in a container, as an operator who trusts nobody would start it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bridge_process import Tables, toml
from tests.devstack.engine import Container, Engine

#: No rights, no writable path, little memory. `--no-healthcheck`: podman would look for systemd.
LOCKED = (
    "--network=host",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--memory=256m",
    "--no-healthcheck",
)


def boxed(
    engine: Engine, image: str, options: Sequence[str] = (), command: Sequence[str] = (), read_only: bool = True
) -> Container:
    """A container of postdate, created and not started."""
    return engine.container(image, (*LOCKED, *(engine.read_only if read_only else ()), *options), command)


def boxed_bridge(engine: Engine, image: str, settings: Tables, folder: Path) -> Container:
    """The same with a settings file in its place in the image."""
    file = folder / "boxed.toml"
    file.write_text(toml(settings))
    # Another user reads it in the container.
    folder.chmod(0o755)
    file.chmod(0o644)
    return boxed(engine, image, (f"--volume={file}:/etc/postdate/postdate.toml:ro",))
