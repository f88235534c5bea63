"""The base of every delayed path in the tests: a folder with settings, bridges that run on them, a store to look into.

`tests.delay_line` adds RabbitMQ, `tests.kafka_line` adds Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bridge.cli import run_command
from bridge.core.orders import HELD_MS
from bridge.settings import Settings, load
from tests.bridge_process import RUN, Bridge, Tables, store_client, toml
from tests.devstack.service import wait_for

SHARDS = 8
#: Quick reactions: a lease no longer than a test has patience for.
LEASE_S = 3
QUICK: Tables = {"dispatch": {"lease": f"{LEASE_S}s", "takeover": "2s"}}
#: A store that no route needs: nothing listens there.
NO_STORE = "redis://127.0.0.1:1/0"


def merged(first: Tables, second: Tables) -> dict[str, Any]:
    """Both; where both have a value, the second's."""
    result = dict(first)
    for key, value in second.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


class BridgeLine:
    """Settings of one test, and its bridges. Leaving the ``with`` block ends the bridges."""

    def __init__(self, name: str, keys: str, folder: Path, store_url: str, settings: Tables) -> None:
        """``keys``: what its Redis keys begin with, without the shard."""
        self.name = name
        self.folder = folder
        self.store_url = store_url
        self.settings = merged({"redis": {"url": store_url, "key_prefix": name}}, settings)
        self._keys = keys
        self._open = ExitStack()
        #: What its bridges run.
        self.command: Sequence[str] = RUN
        self.bridges: list[Bridge] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    # -- settings and bridges ---------------------------------------------------------------------------------------

    def file(self, settings: Tables | None = None, name: str = "settings") -> Path:
        """A settings file, for commands."""
        file = self.folder / f"{self.name}.{name}.toml"
        file.write_text(toml(merged(self.settings, settings or {})))
        file.chmod(0o600)
        return file

    def loaded(self, settings: Tables | None = None) -> Settings:
        """The settings, checked."""
        return load(self.file(settings, "loaded"), {})

    def bridge(self, settings: Tables | None = None, command: Sequence[str] = (), name: str = "") -> Bridge:
        """A bridge that is not started yet; it ends with the line."""
        wanted = merged(self.settings, settings or {})
        name = name or f"{self.name}-{len(self.bridges) + 1}"
        self.bridges.append(self._open.enter_context(Bridge(self.folder, wanted, command or self.command, name)))
        return self.bridges[-1]

    def start(self, settings: Tables | None = None) -> Bridge:
        """A bridge that is ready."""
        return self.bridge(settings).start().wait_ready()

    def log(self) -> str:
        """The log of all its bridges."""
        return "".join(bridge.log() for bridge in self.bridges)

    def log_tails(self) -> str:
        """The ends of its bridges' logs, for the message of an assertion."""
        return "; ".join(bridge.log_tail() for bridge in self.bridges)

    def forget_reports(self) -> None:
        """Let the next health of its bridges be one that they report from now on."""
        with store_client(self.store_url) as client:
            client.delete(f"{{{self._keys}}}:health")

    # -- the store --------------------------------------------------------------------------------------------------

    def dead(self) -> dict[str, str]:
        """Ids and reasons of the dead letters."""
        reasons: dict[str, str] = {}
        with store_client(self.store_url) as client:
            for shard in range(SHARDS):
                for name in client.zrange(self._key(shard, "dead"), 0, -1):
                    why = client.hget(self._key(shard, "why"), name) or b""
                    reasons[name.decode()] = why.decode()
        return reasons

    def wait_dead(self, count: int = 1, deadline_s: float = 40.0) -> list[str]:
        """Wait for this number of dead letters; returns their reasons."""
        wait_for(lambda: len(self.dead()) >= count, f"{count} dead letters", deadline_s)
        return list(self.dead().values())

    def stored(self) -> int:
        """The number of messages in the store, whatever their state."""
        with store_client(self.store_url) as client:
            return sum(int(client.hlen(self._key(shard, "msg"))) for shard in range(SHARDS))

    def ids(self) -> set[bytes]:
        """The ids of the messages in the store, whatever their state."""
        with store_client(self.store_url) as client:
            return {name for shard in range(SHARDS) for name in client.hkeys(self._key(shard, "msg"))}

    def waiting(self) -> int:
        """The number of parked messages."""
        with store_client(self.store_url) as client:
            return sum(int(client.zcard(self._key(shard, "due"))) for shard in range(SHARDS))

    def held(self) -> int:
        """The number of parked messages that wait for their route to be resumed."""
        with store_client(self.store_url) as client:
            return sum(int(client.zcount(self._key(shard, "due"), HELD_MS, "+inf")) for shard in range(SHARDS))

    def order(self, verb: str, *words: str) -> None:
        """Pause, resume or drain routes, as an operator does."""
        assert run_command([verb, *words, "--config", str(self.file())]) == 0

    def follow(self, route: str, word: str) -> None:
        """Wait until all its running bridges report that a route is "paused" or "draining"; "" for neither."""
        running = [bridge for bridge in self.bridges if bridge.running()]

        def all_do() -> bool:
            reports = [bridge.report() for bridge in running]
            found = [{name for name in ("paused", "draining") if route in said.get(name, ())} for said in reports]
            return all(reports) and all(names == ({word} if word else set()) for names in found)

        wait_for(all_do, f"route {route} is {word!r}: {self.log_tails()}")

    def _key(self, shard: int, kind: str) -> str:
        return f"{{{self._keys}:{shard}}}:{kind}"
