"""postdate as a process, as it runs in production: started, signalled and observed from outside."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from redis.sentinel import Sentinel

from bridge.telemetry.health import WELL
from tests import preloaded
from tests.devstack import keeper
from tests.devstack.service import wait_for

ROOT = Path(__file__).parents[1]
RUN = ("bridge.cli", "run")


def shortened(*waits: str) -> Sequence[str]:
    """The command of a bridge with shorter waits, each ``MODULE.NAME=SECONDS``: see `tests.shortened`."""
    return ("tests.shortened", *waits, "run")


Tables = Mapping[str, Any]

#: Most tests need neither: they would share a port, and cost a second process.
WITHOUT_EXTRAS: Tables = {"http": {"enabled": False}, "canary": {"enabled": False}}


def toml(tables: Tables, path: str = "") -> str:
    """Nested mappings as TOML."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, Mapping)]
    inner = [toml(value, f"{path}{key}.") for key, value in tables.items() if isinstance(value, Mapping)]
    head = [f"[{path[:-1]}]"] if path and plain else []
    return "\n".join((*head, *plain, *inner)) + "\n"


def store_client(url: str) -> Any:
    """A plain client for a ``redis.url``: standalone, Cluster or Sentinel."""
    parts = urlsplit(url)
    if parts.scheme == "redis+cluster":
        return redis.RedisCluster(host=parts.hostname or "", port=parts.port or 6379)
    if parts.scheme == "redis+sentinel":
        sentinel = Sentinel([(parts.hostname or "", parts.port or 26379)], socket_timeout=2)  # type: ignore[no-untyped-call]
        return sentinel.master_for(parts.path.split("/")[1], socket_timeout=2)  # type: ignore[no-untyped-call]
    more = {"ssl_cert_reqs": "none"} if parts.scheme == "rediss" else {}
    return redis.Redis.from_url(url, socket_timeout=5, **more)


class Bridge:
    """One ``postdate run``. It is killed at the end of the ``with`` block if it still runs."""

    def __init__(
        self,
        folder: Path,
        settings: Tables,
        command: Sequence[str] = RUN,
        name: str = "postdate",
        new_interpreter: bool = False,
    ) -> None:
        """``new_interpreter``: do not fork it from the process that has everything imported."""
        self._settings = {**WITHOUT_EXTRAS, **settings}
        self._file = folder / f"{name}.toml"
        self._file.write_text(toml(self._settings))
        self._file.chmod(0o600)
        self._log = folder / f"{name}.log"
        self._command = command
        self._launch = preloaded.start_new if new_interpreter else preloaded.start
        self._process: preloaded.Started | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.running():
            self.resume()
            self.kill()

    # -- starting and ending ----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, without waiting."""
        module, *arguments = self._command
        env = {name: value for name, value in os.environ.items() if not name.startswith("POSTDATE_")}
        self._process = self._launch(module, [*arguments, "--config", str(self._file)], ROOT, env, self._log)
        if kept := keeper.current():
            kept.watch(self._process.pid)
        return self

    def wait_ready(self, deadline_s: float = 40.0) -> Self:
        """Wait until it reports good health and drains shards."""
        self._wait(self.is_ready, "the bridge is ready", deadline_s)
        return self

    def is_ready(self) -> bool:
        report = self.report()
        return bool(report.get("shards")) and report["health"] == WELL

    @property
    def settings_file(self) -> Path:
        return self._file

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_end(self, deadline_s: float = 30.0) -> int:
        """The exit code; -9 when it was killed."""
        assert self._process is not None
        code = self._process.wait(deadline_s)
        if kept := keeper.current():
            kept.forget(self._process.pid)
        return code

    def terminate(self, deadline_s: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_end(deadline_s)

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        self.wait_end()

    def pause(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, sign: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(sign)

    # -- log and health -----------------------------------------------------------------------------------------------

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        """Its log so far; needs ``log.format = "json"``."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def log_tail(self) -> str:
        return self.log()[-3000:]

    def report(self) -> dict[str, Any]:
        """Its last health report in the store; empty if there is none."""
        assert self._process is not None
        own = self._settings["redis"]
        with store_client(own["url"]) as client:
            rows = client.hgetall(f"{{{own['key_prefix']}{self._suffix()}}}:health")
        for instance, said in rows.items():
            if f"-{self._process.pid}-" in instance.decode():
                report: dict[str, Any] = json.loads(said[1:])
                return report
        return {}

    def _suffix(self) -> str:
        """The part of its keys behind the prefix: Kafka's routes have keys of their own."""
        brokers = {route.get("broker", "rabbitmq") for route in self._settings["routes"].values()}
        return ".kafka" if brokers == {"kafka"} else ""

    def health(self) -> str:
        """Its health sentence."""
        return str(self.report().get("health", ""))

    def wait_health(self, words: str, deadline_s: float = 40.0) -> None:
        """Wait until its health sentence contains these words."""
        self._wait(lambda: words in self.health(), f"health says {words!r}", deadline_s)

    def wait_log(self, words: str, deadline_s: float = 40.0) -> None:
        """Wait until its log contains these words; works without the store, which holds its health."""
        self._wait(lambda: words in self.log(), f"the log says {words!r}", deadline_s)

    def _wait(self, condition: Callable[[], object], what: str, deadline_s: float) -> None:
        reports: list[Any] = []

        def looked() -> object:
            if condition():
                return True
            reports[:] = [self.report()]
            return False

        try:
            wait_for(looked, what, deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it reports {reports}; log: {self.log_tail()}") from error
