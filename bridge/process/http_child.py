"""The HTTP process beside the bridge: starts it, restarts it when it dies, and ends it last.

It has an event loop and an interpreter of its own, so no request delays a message. This process holds the listening
sockets: while the HTTP process restarts, connections wait and are not refused. Nothing that goes wrong here ends the
bridge.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from bridge.process.handover import packed
from bridge.process.workers import how_it_ended, python_command
from bridge.settings import Settings
from bridge.telemetry.reconnect import reconnect_wait_s

log = structlog.get_logger("postdate")

COMMAND = python_command("from bridge.http.server import run_child; run_child()")
#: An HTTP process that lived this long did start.
_LIVED_S = 5.0
_LOOK_S = 0.1
#: How long it may take to end before it is killed.
_PATIENCE_S = 3.0
_BACKLOG = 128


class Reloading(NamedTuple):
    """The last reload: whether it worked, when (Unix s; 0: none yet), and what it said."""

    worked: bool = True
    at_s: float = 0.0
    text: str = ""


class Start(NamedTuple):
    """What the HTTP process is handed first. The numbers are file descriptors that it inherits."""

    settings: Settings
    parent: int
    hearing: tuple[int, ...]
    listening: tuple[int, ...]
    reloading: Reloading


def bind(listen: str) -> list[socket.socket]:
    """Return sockets that listen on every address that ``listen`` (host:port) stands for. May block for DNS.

    Raises OSError where none can be used.
    """
    host, _, port = listen.rpartition(":")
    infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    failed: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(infos):
        try:
            one = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this machine does not have
            failed = error
            continue
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(_BACKLOG)
            one.setblocking(False)
            bound.append(one)
        except OSError as error:
            one.close()
            failed = error
    if not bound:
        raise failed or OSError("no address")
    return bound


class HttpChild:
    """Keeps the HTTP process running until ``leave``."""

    def __init__(
        self,
        settings: Settings,
        hearing: Sequence[socket.socket],
        trouble: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        """``hearing``: the ends of the lines from the bridge processes. ``trouble`` takes a sentence about what is
        wrong with HTTP, "" for nothing."""
        self._settings = settings
        self._hearing = hearing
        self._trouble = trouble
        self._command = command
        self._listening: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._input: asyncio.WriteTransport | None = None
        self._reloading = Reloading()
        self._replacing = False

    @property
    def pid(self) -> int | None:
        """The id of the HTTP process; None while none runs."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Keep it running until cancelled."""
        try:
            await self._bind()
            await self._keep()
        except Exception:
            log.critical("a mistake in postdate: HTTP is not served any more", exc_info=True)
            self._trouble("HTTP is not served because of a mistake in postdate, see the log")

    def reloaded(self, settings: Settings, reloading: Reloading, restart: bool) -> None:
        """Tell the HTTP process how a reload went. ``restart``: replace it by one with these settings."""
        self._settings, self._reloading = settings, reloading
        if self._input is not None:
            self._input.write(packed(reloading))
            if restart:
                self._replacing = True
                self._input.close()

    async def leave(self) -> None:
        """End it, after everything else."""
        if self._input is not None:
            self._input.close()
        if self._process is not None and not await _ends(self._process, _PATIENCE_S):
            self._process.kill()
            self._process.wait()
        for one in self._listening:
            one.close()

    async def _bind(self) -> None:
        """Get the address. One that is taken is tried again."""
        failures, listen, said = 0, self._settings.http.listen, ""
        while not self._listening:
            try:
                self._listening = await asyncio.to_thread(bind, listen)
            except OSError as error:
                text = f"HTTP is not served: cannot listen on {listen}: {error.strerror or error}"
                if text != said:
                    log.error("http", what=text, advice="free the address, or set http.listen to another one")
                said = text
                self._trouble(text)
                await asyncio.sleep(reconnect_wait_s(failures, random.random()))  # noqa: S311 (jitter, not a secret)
                failures += 1
        self._trouble("")
        log.info("http is listening", address=", ".join(_written(one) for one in self._listening))

    async def _keep(self) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            code = await self._run_one()
            if self._replacing:
                self._replacing = False
                continue
            failures = 0 if time.monotonic() - started > _LIVED_S else failures + 1
            wait_s = reconnect_wait_s(failures, random.random())  # noqa: S311 (jitter, not a secret)
            log.error("the HTTP process died", how=how_it_ended(code), next_in_s=round(wait_s, 2))
            self._trouble(f"the HTTP process died ({how_it_ended(code)}) and is restarted")
            await asyncio.sleep(wait_s)

    async def _run_one(self) -> int:
        """Start it, and wait until it has ended. Return its exit code."""
        hearing, listening = (tuple(one.fileno() for one in some) for some in (self._hearing, self._listening))
        process = self._process = _spawn(self._command, (*hearing, *listening))
        loop = asyncio.get_running_loop()
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._input.write(packed(Start(self._settings, os.getpid(), hearing, listening, self._reloading)))
        if not await _ends(process, _LIVED_S):
            self._trouble("")
            await _ends(process, math.inf)
        self._input.close()
        return process.returncode or 0


def _spawn(command: Sequence[str], inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own: a signal for ours must not end HTTP first.

    Not by asyncio: uvloop lacks process groups.
    """
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=inherited, process_group=0)  # noqa: S603 (ours)


async def _ends(process: subprocess.Popen[bytes], within_s: float) -> bool:
    """Wait for the end of a process. Return whether it came."""
    give_up = time.monotonic() + within_s
    while process.poll() is None:
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


def _written(one: socket.socket) -> str:
    host, port, *_ = one.getsockname()
    return f"[{host}]:{port}" if one.family == socket.AF_INET6 else f"{host}:{port}"
