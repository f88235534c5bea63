"""`deploy/compose.yaml`, brought up as a user would, and looked at through compose alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.devstack.engine import Engine, run
from tests.devstack.images import POSTDATE, ROOT
from tests.devstack.service import free_ports, wait_for

FILE = ROOT / "deploy/compose.yaml"
_SERVERS = ("REDIS", "RABBITMQ", "RABBITMQ_PAGE", "KAFKA", "HTTP", "KAFKA_HTTP", "PROMETHEUS", "GRAFANA")
_PORTS = tuple(f"{server}_PORT" for server in _SERVERS)
_ALL = ("--profile", "kafka", "--profile", "monitoring")
_UP_S = 300.0


class ComposeProject:
    """A project of its own; leave the `with` block and nothing of it is left, its volumes included."""

    def __init__(self, engine: Engine, compose: tuple[str, ...], name: str) -> None:
        self._compose = (*compose, "--project-name", name, "--file", str(FILE))
        ports = zip(_PORTS, map(str, free_ports(len(_PORTS))), strict=True)
        self._environ: Mapping[str, str] = {**engine.environ, **dict(ports), "IMAGE": POSTDATE}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            print(self.run(*_ALL, "logs", "--tail", "40", "--no-color"))
        self.run(*_ALL, "down", "--volumes", "--timeout", "5", deadline_s=120)

    def run(self, *words: str, deadline_s: float = 60.0) -> str:
        """One command of compose. What it wrote."""
        return run([*self._compose, *words], self._environ, deadline_s, errors_too=True)

    def up(self, *profiles: str, only: Sequence[str] = ()) -> None:
        """`up` with the image that is there, in the background; it returns when all that others wait for is healthy."""
        chosen = [word for profile in profiles for word in ("--profile", profile)]
        self.run(*chosen, "up", "--detach", "--no-build", *only, deadline_s=_UP_S)

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self.run(*_ALL, "ps", "--all", "--quiet", service).strip()

    def log(self, service: str) -> str:
        """What a service wrote."""
        return self.run(*_ALL, "logs", "--no-log-prefix", "--no-color", service)

    def sent(self, service: str) -> set[int]:
        """The numbers that a producer says it has sent."""
        return {int(number) for number in re.findall(r"\w+ (\d+): sent", self.log(service))}

    def arrived(self, service: str) -> list[tuple[int, int]]:
        """Numbers, and how late each came (ms), in the order in which a consumer printed them."""
        found = re.findall(r"\w+ (\d+): arrived, (-?\d+) ms late", self.log(service))
        return [(int(number), int(late)) for number, late in found]

    def wait_arrivals(self, service: str, count: int, deadline_s: float = 90.0) -> None:
        """Until a consumer has printed so many."""
        wait_for(lambda: len(self.arrived(service)) >= count, f"{service} prints {count} messages", deadline_s)
