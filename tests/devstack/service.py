"""What a test server is, and in which order one is found or started.

A `Service` is either *owned* (we started it: it may be stopped, killed, paused and wiped) or *given* (its URL was in
the environment: it is used and otherwise left alone). Everything that could hurt a server asks `_own()` first.
"""

from __future__ import annotations

import os
import random
import socket
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has Docker only, and nothing there needs the lock
    fcntl = None  # type: ignore[assignment]

READY_S = 60.0
STOP_S = 20.0
POLL_S = 0.05

# Below the range the kernel picks outgoing ports from (32768 and up on Linux): a killed server finds its port free
# again, because no client connection can have been given it meanwhile.
PORTS = range(20_000, 30_000)
BLOCK = 50


class Unavailable(RuntimeError):
    """This machine can neither find nor start the server; the text says why, in full."""


class NotOurs(RuntimeError):
    """A test asked to stop, kill, pause or wipe a server that the tests did not start."""


class StartFailed(RuntimeError):
    """The server is here and was started, but never got ready; the text carries the end of its log."""


class Runner(Protocol):
    """What runs an owned server: a process of this machine or a container."""

    def start(self) -> None: ...
    def stop(self, deadline_s: float) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def remove(self) -> None: ...
    def running(self) -> bool: ...
    def run(self, *command: str) -> str: ...
    def log_tail(self) -> str: ...
    def record(self) -> dict[str, Any]: ...


class Service(ABC):
    """One server. Subclasses say how to see that it is ready and how to empty it."""

    name: ClassVar[str]

    def __init__(self, url: str, runner: Runner | None = None) -> None:
        self.url = url
        self._runner = runner

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {'owned' if self.owned else 'given'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def owned(self) -> bool:
        return self._runner is not None

    @abstractmethod
    def probe(self) -> None:
        """Asks the server once; any exception means: not ready."""

    @abstractmethod
    def _empty(self) -> None:
        """Removes all data of an owned server."""

    def start(self) -> Self:
        runner = self._own("start")
        if not runner.running():
            runner.start()
        return self.wait_ready()

    def start_new(self) -> Self:
        """The first start; one that fails, or is interrupted, leaves nothing behind."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Graceful, and keeps the data. A given server is left running, so that clean-up code needs no question."""
        if self._runner is not None:
            self._runner.stop(STOP_S)

    def kill(self) -> None:
        """SIGKILL to the server process itself; its data stay, for `start()` to find."""
        self._own("kill").kill()

    def restart(self) -> Self:
        self._own("restart").stop(STOP_S)
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._own("pause").pause()

    def resume(self) -> None:
        self._own("resume").resume()

    def wipe(self) -> None:
        self._own("wipe")
        self._empty()

    def close(self) -> None:
        """Ends an owned server for good and deletes its data, so it need not put them in order first."""
        if self._runner is not None:
            self._runner.resume()
            self._runner.kill()
            self._runner.stop(STOP_S)
            self._runner.remove()

    def running(self) -> bool:
        return self._own("ask after").running()

    def record(self) -> dict[str, Any]:
        """What `down` needs in order to stop this server from another process."""
        return {"name": self.name, "url": self.url, **self._own("record").record()}

    def wait_ready(self, deadline_s: float = READY_S) -> Self:
        give_up = time.monotonic() + deadline_s
        while True:
            try:
                self.probe()
                return self
            except Exception as error:
                self._check_still_starting(error, give_up)
            time.sleep(POLL_S)

    def _check_still_starting(self, error: Exception, give_up: float) -> None:
        if self._runner is None:
            if time.monotonic() > give_up:
                raise Unavailable(f"{self.name} at {self.url} does not answer: {error}") from error
        elif not self._runner.running():
            raise StartFailed(f"{self!r} ended while starting.\n{self._runner.log_tail()}") from error
        elif time.monotonic() > give_up:
            raise StartFailed(f"{self!r} is not ready in time: {error}\n{self._runner.log_tail()}") from error

    def _own(self, wish: str) -> Runner:
        if self._runner is None:
            raise NotOurs(f"will not {wish} {self.name} at {self.url}: it was given by URL, not started by the tests")
        return self._runner


S = TypeVar("S", bound=Service)


def find_or_start(variable: str, at: Callable[[str], S], ways: Sequence[Callable[[], S]]) -> S:
    """The URL in the environment, else the first of `ways` that this machine has.

    A URL that was named and does not answer ends the search: silently testing another server than the one asked for
    would be worse than not testing.
    """
    if url := os.environ.get(variable):
        return at(url).wait_ready(5.0)
    reasons: list[str] = [f"{variable} is not set"]
    for way in ways:
        try:
            return way()
        except Unavailable as reason:
            reasons.append(str(reason))
    raise Unavailable("; ".join(reasons))


_reserved: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Unused loopback ports, never the same one twice, in this process or another one that calls this."""
    found = list(islice(filter(_is_free, _ports), count))
    if len(found) < count:
        raise Unavailable(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
    return found


def _ports_of_this_process() -> Iterator[int]:
    """Each port once, from blocks that belong to this process alone as long as it lives.

    A server that is still starting, or was killed and will come back, does not listen: whether a port is free cannot
    tell that it is taken. So a block's owner is who holds the UDP port of its first number, which no server here uses.
    """
    for first in random.sample(PORTS[::BLOCK], len(PORTS) // BLOCK):
        holder = socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind(("127.0.0.1", first))
        except OSError:
            holder.close()
            continue
        _reserved.append(holder)
        yield from range(first, first + BLOCK)


_ports = _ports_of_this_process()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def devstack_folder() -> Path:
    """Where data, logs and the Debian root live; git-ignored."""
    chosen = os.environ.get("POSTDATE_DEVSTACK_DIR")
    folder = Path(chosen) if chosen else Path(__file__).parents[2] / ".devstack"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def new_folder(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=devstack_folder()))


def clean_env(**more: str) -> dict[str, str]:
    """What every server gets from us and nothing else."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", **more}


@contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """One at a time among all processes that share the devstack folder (installing, building the Debian root)."""
    with (devstack_folder() / f"{name}.lock").open("w") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    """Polls until `condition()` is true; an exception counts as "not yet" and is shown when time is up."""
    give_up = time.monotonic() + deadline_s
    last: Exception | None = None
    while True:
        try:
            if condition():
                return
        except Exception as error:
            last = error
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s" + (f" ({last})" if last else "")) from last
        time.sleep(POLL_S)
