"""Carries out a plan in one mode, step by step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from bridge.core.errors import PostdateError
from bridge.lab.bench.figures import FAULTS, Figures, is_growing, of_load
from bridge.lab.bench.load import Carry, Got, Load, Sent
from bridge.lab.bench.measure import KEY, Place, Progress
from bridge.lab.compare import figures
from bridge.lab.compare.modes import Mode, promise
from bridge.lab.compare.plan import Plan

#: The generator keeps a header for each delay, so the backlog's are whole seconds.
_BACKLOG_STEP_MS = 1000
#: The width of a bar of the timeline.
TIMELINE_BIN_S = 0.02
_POINTS = 400
_TURN_S = 0.1
_STANDSTILL_S = 30.0

#: Pairs to be drawn.
Points = list[tuple[float, float]]


class Usage(NamedTuple):
    """What a process has used: processor time in seconds and memory in bytes, None for what cannot be known."""

    cpu_s: float | None
    bytes: int | None


class Way(Protocol):
    """A mode, put up on the broker."""

    @property
    def place(self) -> Place:
        """Where messages are published and where they come out."""

    def check(self) -> None:
        """Raise ``PostdateError`` if something that must run has ended."""

    def unsettled(self) -> int:
        """How many messages have been published and do not wait in their place yet."""

    def usage(self) -> dict[str, Usage]:
        """Of ``bridge``, ``broker`` and ``store``; only those that have a part in it."""

    def restart(self) -> None:
        """End the bridge in good order and start it anew, without waiting until it is ready."""


@dataclass
class Step:
    """One measurement: its figures, and what is drawn of it."""

    kind: str
    name: str
    figures: Figures
    #: The distribution of the lateness: see ``figures.curve``.
    curve: Points = field(default_factory=list)
    #: Asked delay and lateness of single messages, both in milliseconds.
    by_delay: Points = field(default_factory=list)
    #: How many arrived in each bin of 20 ms: seconds from the moment at which all were due, and a count.
    timeline: Points = field(default_factory=list)

    def faults(self) -> dict[str, int]:
        """How many messages were lost, came twice, came early or were refused; only what is not 0."""
        return {name: int(self.figures[name] or 0) for name in FAULTS if self.figures.get(name)}


class Measurement:
    """One mode's steps. Raises what the loads raise, and ``PostdateError`` when the bridge ends or stands still."""

    def __init__(
        self, plan: Plan, mode: Mode, way: Way, carry: Carry, progress: Progress, levels_ms: Sequence[int], run: int
    ) -> None:
        self.mode = mode
        self.steps: list[Step] = []
        self._plan = plan
        self._way = way
        self._carry = carry
        self._progress = progress
        self._levels_ms = tuple(sorted(levels_ms))
        self._promise = promise(mode, levels_ms)
        # Every load has a number of its own, so that no late message of one is taken for one of the next.
        self._runs = itertools.count(run)

    def run(self) -> None:
        """Measure all; the steps stand in ``steps`` as they come."""
        steps: dict[str, Callable[[], Iterator[Step]]] = {
            "rate": self._rates,
            "flood": self._flood,
            "burst": self._burst,
            "backlog": self._backlog,
            "restart": self._restart,
        }
        for kind in self._plan.kinds_of(self.mode):
            for step in steps[kind]():
                self.steps.append(step)

    def _rates(self) -> Iterator[Step]:
        """Rates that are held, with mixed delays."""
        for rate in self._plan.rates:
            count = max(1, round(rate * self._plan.duration_s))
            load = self._load(count, rate=rate, delay_ms=self._plan.delay_ms)
            name = f"rate {rate:g}"
            before = self._way.usage()
            sent, got = self._carried(name, load)
            found = self._told(load, sent, got)
            found.figures.update({"rate_per_s": rate, **_spent(before, self._way.usage(), count)})
            yield replace(found, kind="rate", name=name)

    def _flood(self) -> Iterator[Step]:
        """All at once with the same delay, so that they should come in the order in which they were published."""
        delay_ms = self._plan.flood_delay_ms
        load = self._load(self._plan.count, delay_ms=(delay_ms, delay_ms))
        sent, got = self._carried("flood", load)
        found = self._told(load, sent, got)
        found.figures["out_of_order"] = figures.out_of_order(got.numbers)
        yield replace(found, kind="flood", name="flood", by_delay=[])

    def _burst(self) -> Iterator[Step]:
        """Many that are due at one moment."""
        due_at = time.time() + self._plan.burst_after_s
        load = self._load(self._plan.count, due_at=due_at)
        sent, got = self._carried("burst", load)
        told = of_load(load, sent, got) | figures.lateness(got.late_ms)
        if not self.mode.keeps_moments:
            del told["disordered"]  # what is due at one moment is not due at one moment any more
        since, until = round(sent.began - due_at, 3), round(sent.ended - due_at, 3)
        told["published_from_s"], told["published_to_s"] = since, until
        # Where the machine was too busy to publish all before the moment, what came after it says nothing of the way.
        in_time = sent.ended <= due_at
        told["all_out_ms"] = round((got.last - due_at) * 1000, 1) if got.messages and in_time else None
        told["moved_max_ms"] = figures.moved_ms(self._promise, since, until) if in_time else None
        timeline = figures.in_bins(got.at, due_at, TIMELINE_BIN_S) if in_time else []
        yield Step("burst", "burst", told, figures.curve(got.late_ms), timeline=[(at, n) for at, n in timeline])

    def _backlog(self) -> Iterator[Step]:
        """Many that wait for hours, and what they take."""
        way, count = self._way, self._plan.backlog
        before = way.usage()
        load = self._load(count, delay_ms=self._plan.backlog_delay_ms, delay_step_ms=_BACKLOG_STEP_MS)
        self._progress.step(self._title("backlog"), count)
        began = time.monotonic()
        self._carry(replace(load, queue=""), lambda confirmed, _: self._at(confirmed))
        self._wait_settled()
        took_s = time.monotonic() - began
        told: Figures = {"messages": count, "park_per_s": round(count / took_s)}
        for name, after in way.usage().items():
            was, now = before[name].bytes, after.bytes
            if name == "bridge":
                told["bridge_bytes"] = now
            elif was is not None and now is not None:
                told[f"{name}_grew_bytes"] = now - was
        yield Step("backlog", "backlog", told)

    def _restart(self) -> Iterator[Step]:
        """The bridge is ended and started anew while messages come and go."""
        plan = self._plan
        delay_ms = plan.restart_delay_ms
        load = self._load(
            round(plan.restart_rate * plan.restart_s), rate=plan.restart_rate, delay_ms=(delay_ms, delay_ms)
        )
        self._progress.step(self._title("restart"), load.count)
        restarted = False

        def at(_: int, received: int) -> None:
            nonlocal restarted
            self._at(received)
            if received > load.count // 3 and not restarted:
                restarted = True
                self._way.restart()

        sent, got = self._carry(load, at)
        assert got is not None
        found = self._told(load, sent, got)
        found.figures["standstill_ms"] = figures.standstill_ms(got.at)
        found.figures["out_of_order"] = figures.out_of_order(got.numbers)
        yield replace(found, kind="restart", name="restart", by_delay=[])

    def _told(self, load: Load, sent: Sent, got: Got) -> Step:
        """The lateness is counted from what the mode promises; what it makes of the asked delay is told apart."""
        mode = self.mode
        if not mode.waits:
            return Step("", "", of_load(load, sent, got) | figures.lateness(got.late_ms), figures.curve(got.late_ms))
        all_asked = list(itertools.islice(load.delays(), load.count))
        asked = [all_asked[number] for number in got.numbers]
        promised = [self._promise(one) for one in asked]
        late = [found - (more - one) for found, more, one in zip(got.late_ms, promised, asked, strict=True)]
        told = of_load(load, sent, got) | figures.lateness(late) | figures.rounding(asked, promised)
        told["growing"] = is_growing(late)
        told["short_behind_long_ms"] = figures.short_behind_long_ms(asked, late)
        points = figures.thinned(sorted(zip(asked, got.late_ms, strict=True)), _POINTS)
        return Step("", "", told, figures.curve(late), [(one, round(at, 2)) for one, at in points])

    def _wait_settled(self) -> None:
        last, since = -1, time.monotonic()
        while left := self._way.unsettled():
            if left != last:
                last, since = left, time.monotonic()
            elif time.monotonic() > since + _STANDSTILL_S:
                raise PostdateError(f"Mode {self.mode.name} takes nothing any more: {left} messages are left over.")
            self._way.check()
            time.sleep(_TURN_S)

    def _load(self, count: int, **other: object) -> Load:
        place, plan, mode = self._way.place, self._plan, self.mode
        if not mode.waits:
            other = {name: value for name, value in other.items() if name == "rate"}
        load = Load(
            place.front if mode.waits else place.target,
            KEY,
            place.queue,
            count,
            next(self._runs),
            size=plan.size,
            window=plan.window,
            asks=mode.asks,
            levels_ms=self._levels_ms if mode.alone else (),
            seed=plan.seed,
            linger_s=plan.linger_s,
        )
        return replace(load, **other)  # type: ignore[arg-type]

    def _carried(self, name: str, load: Load) -> tuple[Sent, Got]:
        self._progress.step(self._title(name), load.count)
        sent, got = self._carry(load, lambda _, received: self._at(received))
        assert got is not None
        return sent, got

    def _title(self, name: str) -> str:
        return f"{self.mode.name}, {name}"

    def _at(self, done: int) -> None:
        self._way.check()
        self._progress.at(done)


def _spent(before: dict[str, Usage], after: dict[str, Usage], count: int) -> Figures:
    """Microseconds of processor time for a message, by process."""
    found: Figures = {}
    for name, now in after.items():
        was = before[name].cpu_s
        if was is not None and now.cpu_s is not None:
            found[f"{name}_cpu_us"] = round((now.cpu_s - was) / count * 1e6, 1)
    return found
