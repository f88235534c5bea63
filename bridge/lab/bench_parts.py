"""What ``bench`` is put together from: the adapters' load and figures, and the bar on the terminal."""

from __future__ import annotations

import platform
from functools import partial
from importlib.metadata import version

from bridge.lab.bar import Bar
from bridge.lab.bench.measure import Bench, Place
from bridge.lab.bench.plan import Plan, quick
from bridge.lab.bench.processes import Ends, carry
from bridge.lab.trial.open import Trial
from bridge.lab.trial.usage import cpu_s, rss_bytes
from bridge.settings import Settings
from bridge.settings.model import TITLES, BrokerKind


class Titled:
    """A bar whose steps are said to be a broker's."""

    def __init__(self, bar: Bar, title: str) -> None:
        self._bar = bar
        self._title = title

    def step(self, name: str, total: int) -> None:
        self._bar.step(f"{self._title}: {name}", total)

    def at(self, done: int) -> None:
        self._bar.at(done)


class House:
    """See ``bridge.lab.bench.measure.House``."""

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


def base_plan(broker: BrokerKind, is_quick: bool) -> Plan:
    """The numbers of a broker's bench, before any option changes them."""
    if broker == "kafka":
        from adapters.kafka.lab.plan import PLAN, QUICK

        return QUICK if is_quick else PLAN
    return quick(Plan()) if is_quick else Plan()


def make_bench(plan: Plan, trial: Trial, bar: Bar) -> Bench:
    """The bench of a running trial."""
    names = trial.names
    place = Place(names.front, names.target, names.queue)
    return Bench(
        plan, place, partial(carry, _ends(trial.settings)), House(trial), Titled(bar, TITLES[trial.settings.broker])
    )


def _ends(settings: Settings) -> Ends:
    if settings.broker == "kafka":
        from adapters.kafka.lab import ends as kafka_ends

        return kafka_ends(settings.kafka)
    from adapters.rabbitmq.lab import ends as rabbitmq_ends

    return rabbitmq_ends(settings.rabbitmq)


def steps_of(plan: Plan) -> int:
    """How many steps the bar will show."""
    return sum(1 if title == "backlog" else plan.runs for title in plan.titles())


def versions(trial: Trial) -> dict[str, str]:
    """Of everything that has a part in the figures."""
    return own_versions() | dict(trial.broker.versions) | store_version(trial)


def own_versions() -> dict[str, str]:
    """Of postdate and its Python."""
    return {"postdate": version("postdate"), "python": platform.python_version()}


def store_version(trial: Trial) -> dict[str, str]:
    """Of the store's server, under its name."""
    store, _, number = trial.wait_for(trial.store.version()).partition(" ")
    return {store.lower(): number}
