"""The bench: throughput, lateness, bursts and a backlog on one broker, as a table and as a document."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich import box
from rich.table import Table

from bridge.app.brokers import lab_of
from bridge.lab.command import changed, chosen, numbers, seconds, shared_settings, whole_numbers
from bridge.lab.figures import Figures, faults, faults_sentence, middle, number, of_load
from bridge.lab.load import Load
from bridge.lab.load_runner import KEY, LoadRunner, ProgressBar
from bridge.lab.ports import BrokerLab
from bridge.lab.trial import Trial
from bridge.settings.model import BrokerKind

#: The version of the document. Raise it when a figure changes its name or meaning.
FORMAT = 2
KINDS = ("plain", "share", "rate", "burst", "backlog")
_MIB = 1024 * 1024
_HOUR_MS = 3_600_000
#: Figures of this size are shown without decimals.
_WHOLE_FROM = 1000
_SETTINGS_OF_BROKER = {
    "rabbitmq": ("queue_type", "prefetch", "window"),
    "kafka": ("window", "compression", "partitioner", "timestamp", "release"),
}


@dataclass(frozen=True)
class BenchPlan:
    """What a bench measures. The defaults are those of a full run on RabbitMQ.

    ``only`` names the kinds of rows. Each of ``shares`` (of the plain rate) and ``rates`` (messages per second) is
    held for ``duration_s``. The backlog is due hours later; ``backlog_rate``, unless 0, is held beside it. ``keys`` is
    the number of order keys.
    """

    only: tuple[str, ...] = KINDS
    shares: tuple[float, ...] = (0.25, 0.18)
    rates: tuple[float, ...] = (500, 2000, 5000)
    duration_s: float = 60
    runs: int = 1
    plain: int = 300_000
    bursts: tuple[int, ...] = (20_000,)
    burst_after_s: float = 15
    backlog: int = 1_000_000
    backlog_rate: float = 2000
    idle_s: float = 10
    delay_ms: tuple[int, int] = (2000, 8000)
    size: int = 256
    window: int = 2000
    keys: int = 1

    def rows(self) -> list[tuple[str, str, float]]:
        """The kind, title and number of each row, in order. Shares need the plain rate."""
        rows = [("plain", "plain", 0.0)]
        rows += [("share", f"share {share:g}", share) for share in self.shares]
        rows += [("rate", f"rate {rate:g}", rate) for rate in self.rates]
        rows += [("burst", f"burst {count}", count) for count in self.bursts]
        rows += [("backlog", "backlog", 0.0)]
        if self.backlog_rate:
            rows += [("backlog", f"rate {self.backlog_rate:g} + backlog", self.backlog_rate)]
        wanted = {*self.only, "plain"} if "share" in self.only else self.only
        return [row for row in rows if row[0] in wanted]

    def runs_of(self, title: str) -> int:
        """How often a row is measured. A backlog stays, so there is one."""
        return 1 if title == "backlog" else self.runs

    def steps(self) -> int:
        """The number of steps that the progress bar shows."""
        return sum(self.runs_of(title) for _, title, _ in self.rows())


def base_plan(broker: BrokerKind, is_quick: bool) -> BenchPlan:
    """A broker's plan before options change it."""
    own: BrokerLab = lab_of(broker)
    full = replace(BenchPlan(), **own.full)
    return replace(quick(full), **own.quick) if is_quick else full


def quick(plan: BenchPlan) -> BenchPlan:
    """A plan for half a minute: one row of each kind, shorter delays, a small backlog."""
    return replace(
        plan,
        shares=(0.18,),
        rates=(2000,),
        duration_s=3,
        plain=60_000,
        burst_after_s=4,
        backlog=20_000,
        backlog_rate=0,
        idle_s=1,
        delay_ms=(500, 1000),
    )


def with_options(
    base: BenchPlan,
    only: str | None,
    shares: str | None,
    rates: str | None,
    duration: str | None,
    bursts: str | None,
    backlog: int | None,
    runs: int,
) -> BenchPlan:
    """The plan with the options that were given. Raises ``SettingsError``."""
    return changed(
        base,
        only=None if only is None else tuple(chosen("--only", KINDS, only)),
        shares=numbers("--shares", shares),
        rates=numbers("--rates", rates),
        duration_s=seconds(duration),
        bursts=whole_numbers("--burst", bursts),
        backlog=backlog,
        runs=runs,
    )


@dataclass
class BenchRow:
    """One line of the report: the figures of each run."""

    name: str
    runs: list[Figures] = field(default_factory=list)

    def figures(self) -> Figures:
        return middle(self.runs)

    def faults(self) -> dict[str, int]:
        """Messages that were lost, duplicated, early, refused or out of order; only what is not 0."""
        return faults(self.figures())


class Bench:
    """Measures the rows of a plan with a running bridge.

    Raises what the loads raise, and ``PostdateError`` if the bridge ends or stops parking.
    """

    def __init__(self, plan: BenchPlan, trial: Trial, bar: ProgressBar) -> None:
        self.plan = plan
        self.trial = trial
        self.versions = trial.versions()
        self.rows: list[BenchRow] = []
        #: All rows are measured.
        self.complete = False
        self._runner = LoadRunner(f"{trial.title}: ", trial, bar)

    def run(self) -> None:
        """Measure all rows of the plan. ``rows`` grows as they are measured."""
        for kind, title, at in self.plan.rows():
            row = BenchRow(title)
            self.rows.append(row)
            for _ in range(self.plan.runs_of(title)):
                row.runs.append(self._figures(kind, title, at))
        self.complete = True

    def _figures(self, kind: str, title: str, at: float) -> Figures:
        if kind == "plain":
            return self._plain()
        if kind == "burst":
            return self._burst(title, int(at))
        if title == "backlog":
            return self._backlog()
        return self._steady(title, at * (self.rows[0].figures()["rate_per_s"] or 0) if kind == "share" else at)

    def _plain(self) -> Figures:
        """From producer to consumer without postdate."""
        load = replace(self._load(self.plan.plain), exchange=self.trial.names.target)
        sent, got = self._runner.measure("plain", load)
        through = got.messages / (got.last - sent.began) if got.messages else 0
        return {**of_load(load, sent, got), "rate_per_s": round(through)}

    def _steady(self, name: str, rate: float) -> Figures:
        """Hold a rate."""
        load = replace(self._load(max(1, round(rate * self.plan.duration_s))), rate=rate, delay_ms=self.plan.delay_ms)
        return {"rate_per_s": round(rate), **of_load(load, *self._runner.measure(name, load))}

    def _burst(self, name: str, count: int) -> Figures:
        """Many messages that are due at one moment, so that their order counts."""
        before = self.trial.parked()
        due_at = round(time.time() + self.plan.burst_after_s, 3)
        load = replace(self._load(count), due_at=due_at)
        in_time = False

        def look(_: int) -> None:
            nonlocal in_time
            if not in_time and time.time() < due_at:
                parked = self.trial.parked() - before
                in_time = parked >= count and time.time() < due_at

        sent, got = self._runner.measure(name, load, look)
        out_ms = round((got.last - due_at) * 1000, 1) if got.messages else None
        return {**of_load(load, sent, got), "all_out_ms": out_ms, "parked_in_time": in_time}

    def _backlog(self) -> Figures:
        """Many waiting messages and their cost: memory, processor time at idle."""
        plan, trial = self.plan, self.trial
        store_bytes, parked = trial.usage()["store"].bytes or 0, trial.parked()
        # Whole seconds, because the generator keeps a header for each delay.
        load = replace(self._load(plan.backlog), queue="", delay_ms=(_HOUR_MS, 2 * _HOUR_MS), delay_step_ms=1000)
        took_s = self._runner.publish(
            "backlog", load, lambda: trial.parked() - parked, "The bridge has stopped parking."
        )
        after = trial.usage()
        return {
            "messages": plan.backlog,
            "park_per_s": round(plan.backlog / took_s),
            "bytes_per_message": round(((after["store"].bytes or 0) - store_bytes) / plan.backlog),
            "bridge_rss_bytes": after["bridge"].bytes,
            "idle_cpu_percent": self._idle_percent(),
        }

    def _idle_percent(self) -> float | None:
        """The share of one processor that the bridge uses while nothing is due."""
        time.sleep(1)  # what follows the last park does not count
        began, before = time.monotonic(), self.trial.usage()["bridge"].cpu_s
        time.sleep(self.plan.idle_s)
        took_s, after = time.monotonic() - began, self.trial.usage()["bridge"].cpu_s
        return None if before is None or after is None else round((after - before) / took_s * 100, 2)

    def _load(self, count: int) -> Load:
        names, plan = self.trial.names, self.plan
        run = random.getrandbits(31)
        return Load(names.front, KEY, names.queue, count, run, size=plan.size, window=plan.window, keys=plan.keys)


# -- the report -------------------------------------------------------------------------------------------------------


def document(benches: Sequence[Bench], about: Mapping[str, Any], ok: bool) -> dict[str, Any]:
    """Everything that was measured: date, machine and versions, and for each broker its settings, plan and rows."""
    brokers: dict[str, Any] = {
        bench.trial.kind: {
            "settings": _settings(bench.trial) | asdict(bench.plan),
            "rows": [{"name": row.name, "figures": row.figures(), "runs": row.runs} for row in bench.rows if row.runs],
        }
        for bench in benches
    }
    return {"format": FORMAT, **about, "ok": ok, "brokers": brokers}


def _settings(trial: Trial) -> dict[str, Any]:
    settings, section = trial.settings, getattr(trial.settings, trial.kind)
    of_broker = {f"{trial.kind}.{name}": getattr(section, name) for name in _SETTINGS_OF_BROKER[trial.kind]}
    return {
        **shared_settings(settings),
        **of_broker,
        "limits.batch_max": settings.limits.batch_max,
        "routes.order": next(iter(settings.routes.values())).order,
    }


def complaints(rows: Sequence[BenchRow]) -> list[str]:
    return [faults_sentence(row.name, found) for row in rows if (found := row.faults())]


def table(title: str, rows: Sequence[BenchRow]) -> Table:
    """A line for each row; lateness in milliseconds."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column(title, no_wrap=True)
    for head in ("messages", "per s", "p50 ms", "p99 ms", "p999 ms", "max ms"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        if row.runs:
            figures = row.figures()
            rate = figures.get("rate_per_s") or figures.get("park_per_s") or figures.get("deliver_per_s")
            late = [figures.get(name) for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms")]
            table.add_row(row.name, *(number(value, _WHOLE_FROM) for value in (figures["messages"], rate, *late)))
    return table


def notes(rows: Sequence[BenchRow]) -> list[str]:
    """A line for each row with more to report than the table holds."""
    return [f"{row.name}: {', '.join(found)}" for row in rows if row.runs and (found := _notes(row, row.figures()))]


def _notes(row: BenchRow, figures: Figures) -> list[str]:
    found = [f"{fault}: {count}" for fault, count in row.faults().items()]
    if figures.get("growing") and row.name != "plain" and not row.name.startswith("burst"):
        found.append("lateness grows, so this rate is too high")
    if figures.get("all_out_ms") is not None:
        found.append(f"all delivered {number(figures['all_out_ms'], _WHOLE_FROM)} ms after the due moment")
    if figures.get("parked_in_time") is False:
        found.append("not all were parked before that moment")
    if figures.get("bytes_per_message") is not None:
        found.append(f"store: {number(figures['bytes_per_message'], _WHOLE_FROM)} bytes per message")
    rss, idle = figures.get("bridge_rss_bytes"), figures.get("idle_cpu_percent")
    if rss is not None:
        found.append(f"bridge: {rss / _MIB:.0f} MiB")
    if idle is not None:
        found.append(f"idle: {idle:g}% of a core")
    return found
