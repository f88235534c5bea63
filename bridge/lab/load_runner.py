"""Runs loads: generator and meter in processes of their own, progress on standard error, a stop when nothing moves."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bridge.core.errors import PostdateError, Refused, Unreachable
from bridge.lab.load import Got, Load, RunLoad, Sent
from bridge.lab.ports import BrokerLab
from bridge.process.workers import end_with_parent

#: The key of a load's messages: with order = "key" postdate keeps their order.
KEY = "load"
#: After the last due moment, this long without an arrival means that the rest will not come.
SILENCE_S = 20.0
_STANDSTILL_S = 30.0
_TURN_S = 0.1
_CONSUMES = "consumes"


class Steps(Protocol):
    """Shows the progress of a measurement."""

    def step(self, name: str, total: int) -> None:
        """A step begins that counts to ``total``."""

    def at(self, done: int) -> None:
        """The current step has reached this count."""


class ProgressBar:
    """Progress on standard error: a bar on a terminal, one line per step elsewhere."""

    def __init__(self, steps: int) -> None:
        console = Console(stderr=True)
        self._drawn = console.is_terminal and not console.is_dumb_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._bar.add_task("starting", total=None)
        self._steps = steps
        self._begun = 0
        self._name = ""

    def __enter__(self) -> Self:
        if self._drawn:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._bar.stop()

    def step(self, name: str, total: int) -> None:
        """A step begins that counts to ``total``."""
        self._begun += 1
        self._name = name
        text = f"[{self._begun}/{self._steps}] {name}"
        if self._drawn:
            self._bar.reset(self._task, description=text.replace("[", r"\["), total=total)
        else:
            print(f"{text}: {total:,} messages", file=sys.stderr, flush=True)

    def at(self, done: int) -> None:
        """The current step has reached this count."""
        self._bar.update(self._task, completed=done)

    @contextmanager
    def naming_steps(self) -> Iterator[None]:
        """Add the current step to the text of ``Unreachable`` and ``Refused`` errors."""
        try:
            yield
        except (Unreachable, Refused) as error:
            raise type(error)(f"At the step '{self._name}': {error}") from error


class LoadRunner:
    """Runs the loads of one measurement. ``check`` raises ``PostdateError`` if the bridge has ended."""

    def __init__(self, title: str, run: RunLoad, check: Callable[[], None], steps: Steps) -> None:
        self._title = title
        self._run = run
        self._check = check
        self._steps = steps

    def measure(self, name: str, load: Load, look: Callable[[int], None] | None = None) -> tuple[Sent, Got]:
        """Run a load with a meter. ``look`` is called with the received count now and then."""

        def progress(_: int, received: int) -> None:
            self.at(received)
            if look is not None:
                look(received)

        self._steps.step(f"{self._title}{name}", load.count)
        sent, got = self._run(load, progress)
        assert got is not None
        return sent, got

    def publish(self, name: str, load: Load, waiting: Callable[[], int], standstill: str) -> float:
        """Run a load without a meter, until all messages wait where they belong. Return how long that took (s).

        ``waiting`` counts the messages that wait there. Raises ``PostdateError`` with the text ``standstill`` if that
        count does not change for 30 s.
        """
        self._steps.step(f"{self._title}{name}", load.count)
        began = time.monotonic()
        self._run(load, lambda confirmed, _: self.at(confirmed // 2))
        last, since = -1, time.monotonic()
        while (done := waiting()) < load.count:
            if done != last:
                last, since = done, time.monotonic()
            elif time.monotonic() > since + _STANDSTILL_S:
                raise PostdateError(f"{standstill} Messages waiting: {done} of {load.count}.")
            self.at((load.count + done) // 2)
            time.sleep(_TURN_S)
        return time.monotonic() - began

    def at(self, done: int) -> None:
        """Check the bridge and show the progress."""
        self._check()
        self._steps.at(done)


class _Counter(Protocol):
    value: int


def run_load(lab: BrokerLab, load: Load, progress: Callable[[int, int], None]) -> tuple[Sent, Got | None]:
    """Run a load: the ``RunLoad`` of a broker's lab. Blocking.

    Raises what generator and meter raise, and ``PostdateError`` if one of their processes died.
    """
    # Spawn, not fork: a fork would copy the locks of this process's threads.
    context = multiprocessing.get_context("spawn")
    confirmed, received, over = context.RawValue("q"), context.RawValue("q"), context.RawValue("b")
    started = []

    def start(work: Any, *counters: Any) -> Connection:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(work, lab, load, there, os.getpid(), counters), daemon=True)
        # Ctrl-C reaches every process of the terminal, but these two are ended here. They inherit the blocked signal,
        # so that not even their start is interrupted.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        started.append(process)
        there.close()
        return here

    try:
        # Both start at once, because that takes longest. Publishing begins when the meter consumes.
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
    """Detects that nothing has arrived for too long, counted from the last due moment."""

    def __init__(self, last_due: float) -> None:
        self._since = last_due
        self._received = -1

    def lasts(self, received: int) -> bool:
        """Given the count so far, whether to give up on the rest."""
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
        raise PostdateError("A generator or meter process died. Its output is above.") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


# -- in the processes -------------------------------------------------------------------------------------------------


def _work(work: Any, lab: BrokerLab, load: Load, pipe: Connection, parent: int, counters: tuple[Any, ...]) -> None:
    end_with_parent(parent)
    logging.basicConfig(handlers=[logging.NullHandler()])  # errors go through the pipe
    try:
        pipe.send(work(lab, load, pipe, *counters))
    except PostdateError as error:
        pipe.send(error)


def _generate(lab: BrokerLab, load: Load, _: Connection, confirmed: _Counter, ready: Event) -> Sent:
    generator = lab.generator(load)
    ready.wait()
    return generator.run(partial(_set, confirmed))


def _measure(lab: BrokerLab, load: Load, pipe: Connection, received: _Counter, over: _Counter) -> Got:
    meter = lab.meter(load)
    pipe.send(_CONSUMES)
    return meter.run(lambda: bool(over.value), partial(_set, received))


def _set(counter: _Counter, value: int) -> None:
    counter.value = value
