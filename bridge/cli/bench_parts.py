"""What ``bench`` is put together from: the adapters' load, and what is to be known of the bridge and its store."""

from __future__ import annotations

import platform
from functools import partial
from importlib.metadata import version

from adapters.rabbitmq.load.processes import carry
from bridge.bench.measure import Bench, Place
from bridge.bench.plan import Plan
from bridge.cli.bar import Bar
from bridge.cli.trial import Trial
from bridge.trial.usage import cpu_s, rss_bytes


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


def steps_of(plan: Plan) -> int:
    """How many steps the bar will show."""
    return sum(1 if title == "backlog" else plan.runs for title in plan.titles())


def versions(trial: Trial) -> dict[str, str]:
    """Of everything that has a part in the figures."""
    return own_versions() | {"rabbitmq": trial.broker.version} | store_version(trial)


def own_versions() -> dict[str, str]:
    """Of postdate and its Python."""
    return {"postdate": version("postdate"), "python": platform.python_version()}


def store_version(trial: Trial) -> dict[str, str]:
    """Of the store's server, under its name."""
    store, _, number = trial.wait_for(trial.store.version()).partition(" ")
    return {store.lower(): number}
