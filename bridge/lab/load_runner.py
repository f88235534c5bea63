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
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bridge.core.errors import PostdateError, Refused, Unreachable
from bridge.lab.load import Got, Load, Sent
from bridge.lab.ports import BrokerLab
from bridge.process.workers import end_with_parent
from bridge.settings import Settings

#: The key of a load's messages: with order = "key" postdate keeps their order.
KEY = "load"
#: After the last due moment, this long without an arrival means that the rest will not come.
SILENCE_S = 20.0
_STANDSTILL_S = 30.0
_TURN_S = 0.1


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


class Carrier(Protocol):
    """A running bridge, or what takes its place."""

    def check(self) -> None:
        """Raise ``PostdateError`` if the bridge has ended."""

    def carry(self, load: Load, progress: Callable[[int, int], None]) -> tuple[Sent, Got | None]:
        """Run a load. Report what was confirmed and received. ``Got`` is None without a meter."""


class LoadRunner:
    """Runs the loads of one measurement."""

    def __init__(self, title: str, carrier: Carrier, bar: ProgressBar) -> None:
        self._title = title
        self._carrier = carrier
        self._bar = bar

    def measure(self, name: str, load: Load, look: Callable[[int], None] | None = None) -> tuple[Sent, Got]:
        """Run a load with a meter. ``look`` is called with the received count now and then."""

        def progress(_: int, received: int) -> None:
            self._at(received)
            if look is not None:
                look(received)

        self._bar.step(f"{self._title}{name}", load.count)
        sent, got = self._carrier.carry(load, progress)
        assert got is not None
        return sent, got

    def publish(self, name: str, load: Load, waiting: Callable[[], int], standstill: str) -> float:
        """Run a load without a meter, until all messages wait where they belong. Return how long that took (s).

        ``waiting`` counts the messages that wait there. Raises ``PostdateError`` with the text ``standstill`` if that
        count does not change for 30 s.
        """
        self._bar.step(f"{self._title}{name}", load.count)
        began = time.monotonic()
        self._carrier.carry(load, lambda confirmed, _: self._at(confirmed // 2))
        last, since = -1, time.monotonic()
        while (done := waiting()) < load.count:
            if done != last:
                last, since = done, time.monotonic()
            elif time.monotonic() > since + _STANDSTILL_S:
                raise PostdateError(f"{standstill} Messages waiting: {done} of {load.count}.")
            self._at((load.count + done) // 2)
            time.sleep(_TURN_S)
        return time.monotonic() - began

    def _at(self, done: int) -> None:
        self._carrier.check()
        self._bar.at(done)


def run_load(
    lab: BrokerLab, settings: Settings, load: Load, progress: Callable[[int, int], None]
) -> tuple[Sent, Got | None]:
    """Run a load on a broker, as ``Carrier.carry``. Blocking.

    Raises what generator and meter raise, and ``PostdateError`` if one of their processes died.
    """
    # Spawn, not fork: a fork would copy the locks of this process's threads.
    context = multiprocessing.get_context("spawn")
    confirmed, received = context.RawValue("q"), context.RawValue("q")
    consumes, ready, over = context.Event(), context.Event(), context.Event()
    started = []

    def start(work: Any, *shared: Any) -> Connection:
        here, there = context.Pipe(duplex=False)
        arguments = (work, settings, load, there, os.getpid(), *shared)
        process = context.Process(target=_work, args=arguments, daemon=True)
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
        generator = start(lab.generate, ready.wait, partial(setattr, confirmed, "value"))
        meter = None
        if load.queue:
            meter = start(lab.measure, consumes.set, over.is_set, partial(setattr, received, "value"))
        while meter is not None and not consumes.wait(_TURN_S):
            if meter.poll():
                _answer(meter)
        ready.set()
        sent: Sent = _wait(generator, lambda: progress(confirmed.value, received.value))
        if meter is None:
            return sent, None
        last, since = -1, max(load.due_at, sent.ended + load.delay_ms[1] / 1000)

        def listening() -> None:
            nonlocal last, since
            progress(sent.messages, received.value)
            if received.value != last:
                last, since = received.value, max(since, time.time())
            if time.time() > since + SILENCE_S:
                over.set()

        got: Got = _wait(meter, listening)
        return sent, got
    finally:
        for process in started:
            process.terminate()
            process.join()


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


def _work(work: Any, settings: Settings, load: Load, pipe: Connection, parent: int, *shared: Any) -> None:
    end_with_parent(parent)
    logging.basicConfig(handlers=[logging.NullHandler()])  # errors go through the pipe
    try:
        pipe.send(work(settings, load, *shared))
    except PostdateError as error:
        pipe.send(error)
