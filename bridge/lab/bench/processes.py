"""Runs a broker's generator and meter as processes of their own and hands back what they found."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Protocol

from bridge.core.errors import PostdateError
from bridge.lab.bench.load import Got, Load, Sent
from bridge.process.workers import end_with_parent

#: A meter that has heard nothing for so long after the last message was due hears nothing any more.
SILENCE_S = 20.0
_TURN_S = 0.1
_CONSUMES = "consumes"

Progress = Callable[[int, int], None]


class Generator(Protocol):
    """Publishes one load."""

    def run(self, confirmed: Callable[[int], None]) -> Sent:
        """Publish all; ``confirmed`` is told of the number every now and then. Raises ``BrokerUnavailable``."""


class Meter(Protocol):
    """Consumes one load, from the moment it is made."""

    def run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        """Count until all have come and a second has passed in which copies could come, or until ``over``.

        ``received`` is told of the number every now and then. Raises ``BrokerUnavailable``.
        """


@dataclass(frozen=True)
class Ends:
    """Both ends of a broker: what makes a generator and a meter of a load. They are pickled into their processes."""

    generator: Callable[[Load], Generator]
    meter: Callable[[Load], Meter]


class _Counter(Protocol):
    value: int


def carry(ends: Ends, load: Load, progress: Progress) -> tuple[Sent, Got | None]:
    """See ``lab.bench.load.Carry``. Raises what its ends raise, and ``PostdateError`` for a process that died."""
    # Spawned: a fork would copy the threads' locks of whatever runs in this process.
    context = multiprocessing.get_context("spawn")
    confirmed, received, over = context.RawValue("q"), context.RawValue("q"), context.RawValue("b")
    started = []

    def start(work: Any, *counters: Any) -> Connection:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(work, ends, load, there, os.getpid(), counters), daemon=True)
        # Ctrl-C reaches every process of the terminal, and the bench ends these two itself. They inherit what is
        # blocked here, so that not even their start is interrupted.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        started.append(process)
        there.close()
        return here

    try:
        # Both start at once, because that takes longest; nothing is published before the meter consumes.
        ready = context.Event()
        generator = start(_generate, confirmed, ready)
        meter = start(_measure, received, over) if load.queue else None
        if meter is not None:
            _answer(meter)
        ready.set()
        sent: Sent = _wait(generator, lambda: progress(confirmed.value, received.value))
        if meter is None:
            return sent, None
        silence = _Silence(max(load.due_at, sent.ended + load.delay_ms[1] / 1000))

        def listening() -> None:
            progress(sent.messages, received.value)
            over.value = over.value or silence.lasts(received.value)

        got: Got = _wait(meter, listening)
        return sent, got
    finally:
        for process in started:
            process.terminate()
            process.join()


class _Silence:
    """Notices that nothing has come for too long, counted from the last due moment on."""

    def __init__(self, last_due: float) -> None:
        self._since = last_due
        self._received = -1

    def lasts(self, received: int) -> bool:
        """Given the number so far, whether the rest will not come."""
        if received != self._received:
            self._received, self._since = received, max(self._since, time.time())
        return time.time() > self._since + SILENCE_S


def _wait(pipe: Connection, turn: Callable[[], None]) -> Any:
    while not pipe.poll(_TURN_S):
        turn()
    turn()
    return _answer(pipe)


def _answer(pipe: Connection) -> Any:
    try:
        answer = pipe.recv()
    except EOFError:
        raise PostdateError("A process of the bench died; what it said stands above.") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


# -- in the processes -------------------------------------------------------------------------------------------------


def _work(work: Any, ends: Ends, load: Load, pipe: Connection, parent: int, counters: tuple[Any, ...]) -> None:
    end_with_parent(parent)
    logging.basicConfig(handlers=[logging.NullHandler()])  # what goes wrong is told through the pipe
    try:
        pipe.send(work(ends, load, pipe, *counters))
    except PostdateError as error:
        pipe.send(error)


def _generate(ends: Ends, load: Load, _: Connection, confirmed: _Counter, ready: Event) -> Sent:
    generator = ends.generator(load)
    ready.wait()
    return generator.run(partial(_set, confirmed))


def _measure(ends: Ends, load: Load, pipe: Connection, received: _Counter, over: _Counter) -> Got:
    meter = ends.meter(load)
    pipe.send(_CONSUMES)
    return meter.run(lambda: bool(over.value), partial(_set, received))


def _set(counter: _Counter, value: int) -> None:
    counter.value = value
