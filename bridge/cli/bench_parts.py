"""What ``bench`` is put together from: the adapters' load and figures, and the bar on the terminal."""

from __future__ import annotations

import platform
import sys
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adapters.rabbitmq.load.processes import carry
from bridge.bench.measure import Bench, Place
from bridge.bench.plan import Plan
from bridge.cli.trial import Trial
from bridge.trial.usage import cpu_s, rss_bytes


class Bar:
    """Where it is, on standard error: a bar on a terminal, a line for each step elsewhere."""

    def __init__(self, plan: Plan) -> None:
        console = Console(stderr=True)
        self._drawn = console.is_terminal and not console.is_dumb_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._task = self._bar.add_task("starting", total=None)
        self._steps = [title for title in plan.titles() for _ in range(1 if title == "backlog" else plan.runs)]
        self._begun = 0

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
        text = f"[{self._begun}/{len(self._steps)}] {name}"
        if self._drawn:
            self._bar.reset(self._task, description=text.replace("[", r"\["), total=total)
        else:
            print(f"{text}: {total:,} messages", file=sys.stderr, flush=True)

    def at(self, done: int) -> None:
        """How far it is."""
        self._bar.update(self._task, completed=done)


class House:
    """See ``bridge.bench.measure.House``."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def check(self) -> None:
        self._trial.bridge.check()

    def parked(self) -> int:
        return self._trial.wait_for(self._trial.store.parked())

    def store_bytes(self) -> int:
        return self._trial.wait_for(self._trial.store.used_bytes())

    def rss_bytes(self) -> int | None:
        return rss_bytes(self._trial.bridge.pid)

    def cpu_s(self) -> float | None:
        return cpu_s(self._trial.bridge.pid)


def make_bench(plan: Plan, trial: Trial, bar: Bar) -> Bench:
    """The bench of a running trial."""
    names = trial.names
    place = Place(names.front, names.target, names.queue)
    return Bench(plan, place, partial(carry, trial.settings.rabbitmq), House(trial), bar)


def versions(trial: Trial) -> dict[str, str]:
    """Of everything that has a part in the figures."""
    store, _, number = trial.wait_for(trial.store.version()).partition(" ")
    return {
        "postdate": version("postdate"),
        "python": platform.python_version(),
        "rabbitmq": trial.broker.version,
        store.lower(): number,
    }
