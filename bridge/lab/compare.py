"""Measures one mode of a comparison on the broker of the settings, step by step."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bridge.core.errors import PostdateError
from bridge.lab import figures
from bridge.lab.compare_modes import ComparePlan, Mode, Rounding, levels_for, promise
from bridge.lab.compare_result import TIMELINE_BIN_S, CompareStep, ModeResult
from bridge.lab.figures import MORE_SHARES, Figures, of_load
from bridge.lab.load import Load
from bridge.lab.load_runner import KEY, LoadRunner, ProgressBar
from bridge.lab.machine import Usage
from bridge.lab.ports import ComparableBroker
from bridge.lab.trial import Trial, advising, check_store, comparable, new_names, open_trial, trial_settings
from bridge.settings import Settings

#: Backlog delays are whole seconds, because the generator keeps a header for each delay.
_BACKLOG_STEP_MS = 1000
_POINTS = 400


class Measurement:
    """The steps of one mode. ``result`` grows as they are measured, and keeps the reason if they end early."""

    def __init__(
        self, plan: ComparePlan, mode: Mode, trial: Trial, bar: ProgressBar, levels_ms: Sequence[int], first_number: int
    ) -> None:
        self.result = ModeResult(mode)
        self._mode = mode
        self._plan = plan
        self._trial = trial
        self._bar = bar
        self._runner = LoadRunner(f"{mode.name}, ", trial, bar)
        self._levels_ms = tuple(sorted(levels_ms))
        self._promise = promise(mode, levels_ms)
        # Every load has its own number, so that a late message of one is not counted for the next.
        self._numbers = itertools.count(first_number)

    def run(self) -> None:
        """Measure all steps. Raises what the loads raise, and ``PostdateError`` if the bridge ends or stands still."""
        try:
            with self._bar.naming_steps():
                for kind in self._plan.kinds_of(self._mode):
                    for measure in self._measures(kind):
                        self.result.steps.append(measure())
        except PostdateError as error:
            self.result.failed = str(error)
            raise
        except KeyboardInterrupt:
            self.result.failed = "interrupted"
            raise

    def _measures(self, kind: str) -> list[Callable[[], CompareStep]]:
        if kind == "rate":
            return [partial(self._rate, rate) for rate in self._plan.rates]
        single = {"flood": self._flood, "burst": self._burst, "backlog": self._backlog, "restart": self._restart}
        return [single[kind]]

    def _rate(self, rate: float) -> CompareStep:
        """Hold a rate with mixed delays."""
        count = max(1, round(rate * self._plan.duration_s))
        before = self._trial.usage()
        step = self._step("rate", f"rate {rate:g}", self._load(count, rate=rate, delay_ms=self._plan.delay_ms))
        step.figures.update({"rate_per_s": rate, **_spent(before, self._trial.usage(), count)})
        return step

    def _flood(self) -> CompareStep:
        """Publish all at once with the same delay, so that they should arrive in publishing order."""
        delay_ms = self._plan.flood_delay_ms
        return self._step("flood", "flood", self._load(self._plan.count, delay_ms=(delay_ms, delay_ms)))

    def _burst(self) -> CompareStep:
        """Many messages that are due at one moment."""
        due_at = time.time() + self._plan.burst_after_s
        load = self._load(self._plan.count, due_at=due_at)
        sent, got = self._runner.measure("burst", load)
        found = of_load(load, sent, got, shares=MORE_SHARES)
        if self._mode.rounding is not Rounding.NONE:
            del found["disordered"]  # rounding has separated the due moments
        since, until = round(sent.began - due_at, 3), round(sent.ended - due_at, 3)
        found["published_from_s"], found["published_to_s"] = since, until
        # If a busy machine published too late, the arrivals say nothing about the mode.
        in_time = sent.ended <= due_at
        found["all_out_ms"] = round((got.last - due_at) * 1000, 1) if got.messages and in_time else None
        found["moved_max_ms"] = figures.moved_ms(self._promise, since, until) if in_time else None
        timeline = figures.in_bins(got.at, due_at, TIMELINE_BIN_S) if in_time else []
        return CompareStep("burst", "burst", found, figures.curve(got.late_ms), timeline=timeline)

    def _backlog(self) -> CompareStep:
        """Many messages that wait for hours, and the memory they take."""
        trial, count = self._trial, self._plan.backlog
        before = trial.usage()
        load = self._load(count, delay_ms=self._plan.backlog_delay_ms, delay_step_ms=_BACKLOG_STEP_MS, queue="")
        standstill = f"Mode {self._mode.name} has stopped taking messages."
        took_s = self._runner.publish("backlog", load, lambda: trial.waiting(count), standstill)
        found: Figures = {"messages": count, "park_per_s": round(count / took_s)}
        for name, after in trial.usage().items():
            was, now = before[name].bytes, after.bytes
            if name == "bridge":
                found["bridge_bytes"] = now
            elif was is not None and now is not None:
                found[f"{name}_grew_bytes"] = now - was
        return CompareStep("backlog", "backlog", found)

    def _restart(self) -> CompareStep:
        """Restart the bridge while messages arrive and leave."""
        plan, restarted = self._plan, False
        delays = (plan.restart_delay_ms, plan.restart_delay_ms)
        load = self._load(round(plan.restart_rate * plan.restart_s), rate=plan.restart_rate, delay_ms=delays)

        def look(received: int) -> None:
            nonlocal restarted
            if received > load.count // 3 and not restarted:
                restarted = True
                self._trial.restart()

        return self._step("restart", "restart", load, look)

    def _step(self, kind: str, name: str, load: Load, look: Callable[[int], None] | None = None) -> CompareStep:
        """A step whose lateness counts from the delay that the mode promises. Its rounding is a figure of its own."""
        sent, got = self._runner.measure(name, load, look)
        late: Sequence[float] = got.late_ms
        rounded: Figures = {}
        dots: Sequence[tuple[float, float]] = ()
        if self._mode.waits:
            every = list(itertools.islice(load.delays(), load.count))
            asked = [every[index] for index in got.numbers]
            promised = [self._promise(delay) for delay in asked]
            late = [seen - (more - delay) for seen, more, delay in zip(got.late_ms, promised, asked, strict=True)]
            behind = figures.short_behind_long_ms(asked, late)
            rounded = {**figures.rounding(asked, promised), "short_behind_long_ms": behind}
            dots = sorted(zip(asked, got.late_ms, strict=True)) if kind == "rate" else ()
        found = of_load(load, sent, got, late, MORE_SHARES) | rounded
        if kind == "restart":
            found["standstill_ms"] = figures.standstill_ms(got.at)
        if kind != "rate":
            found["out_of_order"] = figures.out_of_order(got.numbers)
        by_delay = [(delay_ms, round(late_ms, 2)) for delay_ms, late_ms in figures.thinned(dots, _POINTS)]
        return CompareStep(kind, name, found, figures.curve(late), by_delay)

    def _load(self, count: int, **other: object) -> Load:
        names, plan, mode = self._trial.names, self._plan, self._mode
        if not mode.waits:
            other = {name: value for name, value in other.items() if name == "rate"}
        load = Load(
            names.front if mode.waits else names.target,
            KEY,
            names.queue,
            count,
            next(self._numbers),
            size=plan.size,
            window=plan.window,
            asks=mode.asks,
            levels_ms=self._levels_ms if mode.alone else (),
            seed=plan.seed,
            linger_s=plan.linger_s,
        )
        return replace(load, **other)  # type: ignore[arg-type]


def _spent(before: dict[str, Usage], after: dict[str, Usage], count: int) -> Figures:
    """Processor time per message in microseconds, by process."""
    found: Figures = {}
    for name, now in after.items():
        was = before[name].cpu_s
        if was is not None and now.cpu_s is not None:
            found[f"{name}_cpu_us"] = round((now.cpu_s - was) / count * 1e6, 1)
    return found


# -- the modes on a real broker ---------------------------------------------------------------------------------------


@contextmanager
def measurement(
    settings: Settings, plan: ComparePlan, mode: Mode, bar: ProgressBar, versions: dict[str, str]
) -> Iterator[Measurement]:
    """A mode that is ready on the broker in this block. Adds to ``versions``. Raises ``Unreachable``."""
    names = new_names(f"compare.{mode.name}")
    levels = levels_for(settings.headers.levels, plan.delays_ms())
    own = trial_settings(
        settings,
        names,
        mode.route_mode or "redis",
        log={"level": "warning"},
        headers={"levels": levels},
        levels={"last_hop": "broker"} if mode.alone else {},
    )
    with Trial(own, names, None if mode.bridged else partial(_create, mode)) as trial:
        versions |= trial.versions()
        yield Measurement(plan, mode, trial, bar, levels, random.getrandbits(30))


def _create(mode: Mode, broker: ComparableBroker) -> None:
    """Create what delays messages without a bridge."""
    if mode.alone:
        broker.declare()
    else:
        broker.create_front(mode.name)


def lacking(settings: Settings, wanted: Sequence[str]) -> dict[str, str]:
    """The wanted modes that the broker cannot do, with reasons. Raises ``Unreachable`` with what to type."""
    found, names = {}, new_names("compare.probe")
    for name in wanted:
        with advising(), open_trial(trial_settings(settings, names), names) as broker:
            if reason := comparable(broker).why_not(name):
                found[name] = reason
    return found


def check_redis(settings: Settings, modes: Sequence[Mode]) -> None:
    """Raise ``Unreachable``, whose text says what to type, unless Redis answers where a mode needs it."""
    if any(mode.route_mode == "redis" for mode in modes):
        with advising():
            asyncio.run(check_store(settings))
