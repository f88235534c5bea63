"""The HTTP process beside the bridge: starts it, restarts it when it dies, and ends it last.

It has an event loop and an interpreter of its own, so no request delays a message. This process holds the listening
sockets: while the HTTP process restarts, connections wait and are not refused. A reload starts another one, which
serves before the one before it ends. Nothing that goes wrong here ends the bridge.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog

from bridge.process.handover import packed
from bridge.process.workers import how_it_ended, python_command
from bridge.settings import Settings
from bridge.telemetry.reconnect import Reconnect, reconnect_wait_s

log = structlog.get_logger("postdate")

COMMAND = python_command("bridge.http.server", "run_child")
#: An HTTP process that lived this long did start.
_LIVED_S = 5.0
_LOOK_S = 0.1
#: How long it may take to end before it is killed, and to take over from another one.
_PATIENCE_S, _TAKEOVER_S = 4.0, 60.0
#: What the HTTP process tells this one, a byte each: it could serve, and it serves.
BUILT, SERVING = b"b", b"s"
_BACKLOG = 128


class Reloading(NamedTuple):
    """The last reload: whether it worked, when (Unix s; 0: none yet), and what it said. ``again``: another one follows,
    for a request that came meanwhile."""

    worked: bool = True
    at_s: float = 0.0
    text: str = ""
    again: bool = False

    @property
    def failure(self) -> str:
        """Return that it failed and why, without a full stop; "" if it worked."""
        why = "; ".join(line.removesuffix(".") for line in self.text.splitlines())
        return "" if self.worked else f"the last reload failed, and nothing was changed: {why}"


class Start(NamedTuple):
    """What the HTTP process is handed first. The numbers are file descriptors that it inherits. ``replaces``: another
    one serves until this one does."""

    settings: Settings
    parent: int
    hearing: tuple[int, ...]
    listening: tuple[int, ...]
    telling: int
    reloading: Reloading
    replaces: bool


class Hearing(NamedTuple):
    """Whether an HTTP process reads the lines from the bridge processes: only one may at a time."""

    on: bool


def bind(listen: str) -> list[socket.socket]:
    """Return sockets that listen on every address that ``listen`` (host:port) stands for. May block for DNS.

    Raises OSError where none can be used.
    """
    host, _, port = listen.rpartition(":")
    infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    failed: OSError | None = None
    for family, address in dict.fromkeys((family, address) for family, *_, address in infos):
        try:
            listening = socket.create_server(address, family=family, backlog=_BACKLOG)
        except OSError as error:  # the address is taken, or this machine does not have the family
            failed = OSError(error.errno, os.strerror(error.errno or 0))
            continue
        listening.setblocking(False)
        bound.append(listening)
    if not bound:
        raise failed or OSError("no address")
    return bound


async def bound(listen: str, what: str, trouble: Callable[[str], None]) -> list[socket.socket]:
    """Return the sockets of ``bind``. An address that is taken is tried again."""
    reconnect, reported = Reconnect(), ""
    while True:
        try:
            listening = await asyncio.to_thread(bind, listen)
        except OSError as error:
            text = f"{what} is not served: cannot listen on {listen}: {error.strerror or error}"
            if text != reported:
                log.error("http", what=text, advice="free the address, or set another one")
            reported = text
            trouble(text)
            await reconnect.wait()
        else:
            trouble("")
            log.info(f"{what} is listening", address=", ".join(map(_written, listening)))
            return listening


class _Running:
    """One HTTP process, the pipe to it, and the one from it."""

    def __init__(self, process: subprocess.Popen[bytes], to: asyncio.WriteTransport, telling: int) -> None:
        self.process = process
        self._to = to
        self._telling = telling
        self._words = b""

    def tell(self, value: object) -> None:
        """Hand it a value, unless it ends."""
        if not self._to.is_closing():
            self._to.write(packed(value))

    def end(self) -> None:
        """Let it end: it finishes its requests."""
        self._to.close()

    async def ended(self, within_s: float) -> bool:
        """Wait for its end. Return whether it came."""
        return await self._until(lambda: False, within_s)

    async def tells(self, word: bytes) -> bool:
        """Wait until it has told this. Return False where it ended, or took too long."""
        await self._until(lambda: self._has_told(word), _TAKEOVER_S)
        return word in self._words

    async def gone(self) -> None:
        """Wait until it has ended; kill it after a while."""
        self.end()
        if not await self.ended(_PATIENCE_S):
            self.process.kill()
            self.process.wait()
        os.close(self._telling)

    def _has_told(self, word: bytes) -> bool:
        with suppress(BlockingIOError):
            self._words += os.read(self._telling, 16)
        return word in self._words

    async def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait for a condition or its end. Return whether it has ended."""
        give_up = time.monotonic() + within_s
        while not condition():
            if self.process.poll() is not None:
                return True
            if time.monotonic() > give_up:
                return False
            await asyncio.sleep(_LOOK_S)
        return False


class HttpChild:
    """Keeps the HTTP process running until ``leave``."""

    def __init__(self, settings: Settings, hearing: Sequence[socket.socket], trouble: Callable[[str], None]) -> None:
        """``hearing``: the ends of the lines from the bridge processes. ``trouble`` takes a sentence about what is
        wrong with HTTP, "" for nothing."""
        self._settings = settings
        self._hearing = hearing
        self._trouble = trouble
        self._listening: list[socket.socket] = []
        #: The one that serves, and during a reload the one that takes over.
        self._running: list[_Running] = []
        self._reloading = Reloading()
        self._outdated = False

    async def run(self) -> None:
        try:
            self._listening = await bound(self._settings.http.listen, "HTTP", self._trouble)
            await self._keep()
        except Exception:
            log.critical("a mistake in postdate: HTTP is not served any more", exc_info=True)
            self._trouble("HTTP is not served because of a mistake in postdate, see the log")

    def reloaded(self, settings: Settings, reloading: Reloading, restart: bool) -> None:
        """Tell the HTTP process how a reload went. ``restart``: replace it by one with these settings; without it the
        same one follows them."""
        self._settings, self._reloading = settings, reloading
        self._outdated = self._outdated or restart
        for running in self._running:
            if not restart:
                running.tell(settings)
            running.tell(reloading)

    async def leave(self) -> None:
        """End it, after everything else."""
        await asyncio.gather(*(running.gone() for running in self._running))
        for listening in self._listening:
            listening.close()

    async def _keep(self) -> None:
        failures = 0
        while True:
            began_s = time.monotonic()
            self._outdated = False
            self._running = [await self._start(False)]
            self._running[0].tell(Hearing(True))
            code = await self._until_ended()
            failures = 0 if time.monotonic() - began_s > _LIVED_S else failures + 1
            wait_s = reconnect_wait_s(failures, random.random())  # noqa: S311 (jitter, not a secret)
            log.error("the HTTP process died", how=how_it_ended(code), next_in_s=round(wait_s, 2))
            self._trouble(f"the HTTP process died ({how_it_ended(code)}) and is restarted")
            await asyncio.sleep(wait_s)

    async def _until_ended(self) -> int:
        """Wait until the HTTP process has died, and replace it after reloads. Return its exit code."""
        began_s, failures = time.monotonic(), 0
        while not await self._running[0].ended(_LOOK_S):
            if time.monotonic() - began_s > _LIVED_S and not failures:
                self._trouble("")
            if not self._outdated:
                continue
            self._outdated = False
            if await self._replaced():
                failures = 0
                continue
            failures += 1
            self._outdated = True
            wait_s = reconnect_wait_s(failures, random.random())  # noqa: S311 (jitter, not a secret)
            log.error("the HTTP process with the new settings does not start", next_in_s=round(wait_s, 2))
            self._trouble("the HTTP process with the new settings does not start: the old settings are in use there")
            await asyncio.sleep(wait_s)
        died = self._running.pop()
        await died.gone()
        return died.process.returncode or 0

    async def _replaced(self) -> bool:
        """Start another HTTP process, and end the one before once it serves. Return whether it does."""
        old, new = self._running[0], await self._start(True)
        self._running.append(new)
        if await new.tells(BUILT):
            old.tell(Hearing(False))
            new.tell(Hearing(True))
            if await new.tells(SERVING):
                self._running.remove(old)
                await old.gone()
                return True
            old.tell(Hearing(True))
        self._running.remove(new)
        await new.gone()
        return False

    async def _start(self, replaces: bool) -> _Running:
        hearing, listening = (tuple(line.fileno() for line in lines) for lines in (self._hearing, self._listening))
        heard, telling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        process = _spawn((*hearing, *listening, telling))
        os.close(telling)
        to, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        running = _Running(process, to, heard)
        running.tell(Start(self._settings, os.getpid(), hearing, listening, telling, self._reloading, replaces))
        return running


def _spawn(inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own: a signal for ours must not end HTTP first.

    Not by asyncio: uvloop lacks process groups.
    """
    return subprocess.Popen(COMMAND, stdin=subprocess.PIPE, pass_fds=inherited, process_group=0)  # noqa: S603 (ours)


def _written(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"[{host}]:{port}" if listening.family == socket.AF_INET6 else f"{host}:{port}"
