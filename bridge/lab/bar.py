"""How far a measurement is, on standard error: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bridge.core.errors import Refused, Unreachable


class Bar:
    """See ``bridge.lab.bench.measure.Progress``. ``steps`` is how many there will be."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    @contextmanager
    def named(self) -> Iterator[None]:
        """Who went away in this block, or did not allow something, is told of with the step at which it was."""
        try:
            yield
        except (Unreachable, Refused) as error:
            raise type(error)(f"At the step '{self._name}': {error}") from error

    def at(self, done: int) -> None:
        """How far it is."""
        self._bar.update(self._task, completed=done)
