"""An owned server as a Docker container, through testcontainers."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from tests.devstack import keeper
from tests.devstack.service import StartFailed, Unavailable

_engine_answers: bool | None = None


def engine_answers() -> bool:
    """An installed `docker` command proves nothing: only an engine that answers counts. Asked once."""
    global _engine_answers
    if _engine_answers is None:
        _engine_answers = _ping()
    return _engine_answers


def require_engine() -> None:
    if not engine_answers():
        raise Unavailable("no Docker engine answers")


def _ping() -> bool:
    try:
        import docker  # type: ignore[import-untyped]
        from docker.utils import parse_host  # type: ignore[import-untyped]

        # docker-py leaks its socket when the engine does not answer, so the address is tried by hand first.
        _connect(str(parse_host(os.environ.get("DOCKER_HOST"))))
        client = docker.from_env(timeout=5)
    except Exception:
        return False
    try:
        return bool(client.ping())
    except Exception:
        return False
    finally:
        client.close()


def _connect(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme in ("unix", "http+unix"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(2)
            door.connect(parts.path)
    elif parts.hostname:
        socket.create_connection((parts.hostname, parts.port or 2375), timeout=2).close()


class ContainerRunner:
    """Binds the port to a fixed loopback port, because Docker assigns another random one at each start."""

    def __init__(
        self,
        image: str,
        ports: Mapping[int, int],
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        require_engine()
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        if keeper.current() is None:
            # testcontainers' reaper would remove the container as soon as `up` has returned.
            testcontainers_config.ryuk_disabled = True
        else:
            # The reaper covers a crash; this covers Ctrl-C where the reaper is switched off.
            atexit.register(self.remove)
        # A fixed host name: RabbitMQ names its data folder after it.
        box = DockerContainer(image).with_envs(**(env or {})).with_kwargs(hostname="devstack")
        for inside, outside in ports.items():
            # with_bind_ports() knows no host address and would open the port to the network.
            cast(dict[str, Any], box.ports)[f"{inside}/tcp"] = ("127.0.0.1", outside)
        self._box = box.with_command(list(command)) if command else box
        self._image = image
        self._created = False

    def start(self) -> None:
        if self._created:
            self._container.start()
            return
        try:
            self._box.start()
        except Exception as error:
            raise Unavailable(f"Docker cannot start {self._image}: {error}") from error
        self._created = True

    def stop(self, deadline_s: float) -> None:
        if self.running():
            self.resume()
            self._container.stop(timeout=int(deadline_s))

    def kill(self) -> None:
        if self.running():
            self._container.kill(signal="SIGKILL")
            self._container.wait()

    def pause(self) -> None:
        self._container.pause()

    def resume(self) -> None:
        if self._is_paused():
            self._container.unpause()

    def remove(self) -> None:
        if self._created:
            self._box.stop()
            self._created = False

    def running(self) -> bool:
        if not self._created:
            return False
        self._container.reload()
        return self._container.status in ("running", "paused", "created", "restarting")

    def _is_paused(self) -> bool:
        return self.running() and self._container.status == "paused"

    def run(self, *command: str) -> str:
        code, output = self._container.exec_run(list(command))
        text = str(output.decode(errors="replace"))
        if code != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {code}: {text}")
        return text

    def log_tail(self) -> str:
        if not self._created:
            return "(no log)"
        return str(self._container.logs(tail=60).decode(errors="replace"))

    def record(self) -> dict[str, Any]:
        return {"container": self._container.id}

    @property
    def _container(self) -> Any:
        container = self._box.get_wrapped_container()
        if container is None:
            raise StartFailed(f"the container of {self._image} was never created")
        return container


def end_recorded_container(container_id: str) -> None:
    """For `down`: the id is Docker's own and never reused, so it needs no further check."""
    import docker

    client = docker.from_env(timeout=30)
    try:
        client.containers.get(container_id).remove(force=True, v=True)
    except docker.errors.NotFound:
        pass
    finally:
        client.close()
