"""The servers of a simulated run: a store and a broker that are late, lose replies, freeze, stop and come back.

A request arrives and is carried out at one moment, in the order of its connection. After that moment the client may be
gone, may have given up, or may never get the answer. So every call of a client ends in one of four ways: done and
answered, done and not answered, done long after the client gave up, or not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.simulation.loop import PROCESS, Process, VirtualLoop

#: Timers of one moment come in any order, so what has to stay in order gets moments of its own.
LATER_S = 1e-7


@dataclass
class Network:
    """How long messages travel (seconds), and which part of the answers gets lost."""

    least_s: float = 0.0006
    most_s: float = 0.002
    lost: float = 0.0
    slow: float = 0.0
    slow_s: float = 1.5


class Server:
    """A server that carries out requests one at a time. Clients see it through ``Connection``."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.network = Network()
        self.frozen = False
        self._waiting: list[Callable[[], None]] = []

    def freeze(self) -> None:
        """Carry out nothing until ``thaw``. Requests wait in its sockets."""
        self.frozen = True

    def thaw(self) -> None:
        """Carry out what waits, connection by connection in any order."""
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()

    def take(self, work: Callable[[], None]) -> None:
        """Carry out a request, now or at the thaw."""
        if self.frozen:
            self._waiting.append(work)
        else:
            work()

    def travel_s(self) -> float:
        """Return how long a message is on its way."""
        random, network = self.random, self.network
        seconds = random.uniform(network.least_s, network.most_s)
        return seconds + random.uniform(0, network.slow_s) if random.random() < network.slow else seconds


class Connection:
    """One connection of a process to a server: requests are carried out in their order, and so are answers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._there_at = self._back_at = 0.0

    def send(self, work: Callable[[], Any], answered: Callable[[Any, BaseException | None], None]) -> None:
        """Let the server do ``work`` when the request arrives. ``answered`` runs in the process that sent it."""
        process, server = PROCESS.get(), self._server
        self._there_at = max(self._there_at + LATER_S, self._loop.time() + server.travel_s())
        _outside(self._loop, self._there_at, lambda: server.take(lambda: self._carry_out(work, answered, process)))

    def _carry_out(
        self, work: Callable[[], Any], answered: Callable[[Any, BaseException | None], None], process: Process | None
    ) -> None:
        server = self._server
        answer, error = None, None
        try:
            answer = work()
        except Exception as raised:  # the server's answer is this error
            error = raised
        if server.random.random() < server.network.lost or process is None:
            return
        self._back_at = max(self._back_at + LATER_S, self._loop.time() + server.travel_s())
        self._loop.call_at(self._back_at, answered, answer, error, context=process.context)


def _outside(loop: VirtualLoop, when_s: float, callback: Callable[[], None]) -> None:
    """Call back at a moment, outside of all processes: a killed client does not take its requests back."""
    process = PROCESS.set(None)
    try:
        loop.call_at(when_s, callback)
    finally:
        PROCESS.reset(process)


async def asked(connection: Connection, work: Callable[[], Any], timeout_s: float) -> Any:
    """Send a request and wait for its answer. Raises what the server raised, and ``TimeoutError``."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answered(answer: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)

    def expire() -> None:
        if not future.done():
            future.set_exception(TimeoutError())

    connection.send(work, answered)
    timer = future.get_loop().call_later(timeout_s, expire)
    try:
        return await future
    finally:
        timer.cancel()
