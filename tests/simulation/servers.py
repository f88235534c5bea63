"""The servers of a simulated run: a store and a broker that are late, lose replies, freeze, stop and come back.

A request arrives and is carried out at one moment, in the order of its connection. After that moment the client may be
gone, may have given up, or may never get the answer. So every call of a client ends in one of four ways: done and
answered, done and not answered, done long after the client gave up, or not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, NamedTuple

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
        #: That of the plan, and those of faults that go on.
        self.networks = [self.network]
        self.frozen = False
        #: The context of no process.
        self.outside = copy_context()
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

    def wait(self, work: Callable[[], None]) -> None:
        """Keep a request until the thaw."""
        self._waiting.append(work)

    def travel_s(self) -> float:
        """Return how long a message is on its way."""
        random, network = self.random.random, self.network
        seconds = network.least_s + (network.most_s - network.least_s) * random()
        if network.slow and random() < network.slow:
            seconds += network.slow_s * random()
        return seconds


class _Request(NamedTuple):
    """``expire`` runs at ``until_s`` in the process that sent it, unless it is answered before."""

    process: Process | None
    work: Callable[[], Any]
    answered: Callable[[Any, BaseException | None], None] | None
    until_s: float
    expire: Callable[[], None]


class Connection:
    """One connection of a process to a server: requests are carried out in their order, and so are answers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._there_at = self._back_at = 0.0

    def send(
        self,
        work: Callable[[], Any],
        answered: Callable[[Any, BaseException | None], None] | None = None,
        timeout_s: float = inf,
        expire: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the server do ``work`` when the request arrives. ``answered`` runs in the process that sent it."""
        server, process, now_s = self._server, PROCESS.get(), self._loop.time()
        far_s = process.far_s if process is not None else 0.0
        self._there_at = max(self._there_at + LATER_S, now_s + server.travel_s() + far_s)
        request = _Request(process, work, answered, now_s + timeout_s, expire)
        # Outside of all processes: a killed client does not take its requests back.
        self._loop.call_at(self._there_at, self._arrive, request, context=server.outside)
        self._expires(request, self._there_at)

    def _arrive(self, request: _Request) -> None:
        if self._server.frozen:
            self._server.wait(lambda: self._carry_out(request))
            self._expires(request)
        else:
            self._carry_out(request)

    def _carry_out(self, request: _Request) -> None:
        server, loop = self._server, self._loop
        process, work, answered, _, _ = request
        answer, error = None, None
        try:
            answer = work()
        except Exception as raised:  # the server's answer is this error
            error = raised
        if answered is None or process is None:
            return
        if server.network.lost and server.random.random() < server.network.lost:
            self._expires(request)
            return
        self._back_at = max(self._back_at + LATER_S, loop.time() + server.travel_s())
        loop.call_at(self._back_at, answered, answer, error, context=process.context)
        self._expires(request, self._back_at)

    def _expires(self, request: _Request, next_s: float = inf) -> None:
        """Set the timer of a request that will not have been answered in time: ``next_s`` is its next step."""
        if request.until_s < next_s and request.process is not None:
            self._loop.call_at(request.until_s, request.expire, context=request.process.context)


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

    connection.send(work, answered, timeout_s, expire)
    return await future
