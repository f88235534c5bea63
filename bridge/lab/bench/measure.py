"""Carries out a plan, row by row."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from bridge.core.errors import PostdateError
from bridge.lab.bench.figures import FAULTS, Figures, middle, of_load
from bridge.lab.bench.load import Carry, Got, Load, Sent
from bridge.lab.bench.plan import Plan

#: What the routing key or the keys of the records are called: with order = "key" the order of each is kept.
KEY = "load"
_HOUR_MS = 3_600_000
_STANDSTILL_S = 30.0
_TURN_S = 0.1


class House(Protocol):
    """What is to be known of the bridge and its store. None: cannot be known here."""

    def check(self) -> None:
        """Raise ``PostdateError`` if the bridge has ended."""

    def parked(self) -> int:
        """How many messages are parked."""

    def store_bytes(self) -> int:
        """The memory of the store's server."""

    def rss_bytes(self) -> int | None:
        """The bridge's resident memory."""

    def cpu_s(self) -> float | None:
        """The bridge's processor time until now, in seconds."""


@dataclass
class Row:
    """One line of the report: the figures of each run."""

    name: str
    runs: list[Figures] = field(default_factory=list)

    def figures(self) -> Figures:
        """The medians."""
        return middle(self.runs)

    def faults(self) -> dict[str, int]:
        """How many messages were lost, came twice, came early or were refused; only what is not 0."""
        found = self.figures()
        return {name: int(found[name] or 0) for name in FAULTS if found.get(name)}


class Progress(Protocol):
    """Who is told how far it is."""

    def step(self, name: str, total: int) -> None:
        """A step begins that counts to ``total``."""

    def at(self, done: int) -> None:
        """How far it is."""


@dataclass(frozen=True)
class Place:
    """Where messages are published, with a delay and without, and where they come out."""

    front: str
    target: str
    queue: str


class Bench:
    """Raises what the loads raise, and ``PostdateError`` when the bridge ends or stands still."""

    def __init__(self, plan: Plan, place: Place, carry: Carry, house: House, progress: Progress) -> None:
        self._plan = plan
        self._place = place
        self._carry = carry
        self._house = house
        self._progress = progress
        self.rows: list[Row] = []
        #: All rows are measured.
        self.complete = False

    def run(self) -> None:
        """Measure all rows of the plan; they stand in ``rows`` as they come."""
        plan = self._plan
        steps: dict[str, Callable[[], None]] = {
            "plain": self._plain,
            "share": self._shares,
            "rate": self._rates,
            "burst": self._bursts,
            "backlog": self._backlog,
        }
        for kind, step in steps.items():
            if plan.wants(kind):
                step()
        self.complete = True

    def _plain(self) -> None:
        """From publisher to consumer without postdate."""
        row = self._row("plain")
        for _ in range(self._plan.runs):
            load = replace(self._load(self._plan.plain), exchange=self._place.target)
            sent, got = self._carried("plain", load)
            through = got.messages / (got.last - sent.began) if got.messages else 0
            row.runs.append({**of_load(load, sent, got), "rate_per_s": round(through)})

    def _shares(self) -> None:
        plain = next(row for row in self.rows if row.name == "plain").figures()["rate_per_s"] or 0
        for share in self._plan.shares:
            self._steady(f"share {share:g}", share * plain)

    def _rates(self) -> None:
        for rate in self._plan.rates:
            self._steady(f"rate {rate:g}", rate)

    def _steady(self, name: str, rate: float) -> None:
        """A rate that is held."""
        row = self._row(name)
        for _ in range(self._plan.runs):
            count = max(1, round(rate * self._plan.duration_s))
            load = replace(self._load(count), rate=rate, delay_ms=self._plan.delay_ms)
            sent, got = self._carried(name, load)
            row.runs.append({"rate_per_s": round(rate), **of_load(load, sent, got)})

    def _bursts(self) -> None:
        """Many messages that are due at one moment, and so have an order to keep."""
        for count in self._plan.bursts:
            row = self._row(f"burst {count}")
            for _ in range(self._plan.runs):
                row.runs.append(self._burst(row.name, count))

    def _burst(self, name: str, count: int) -> Figures:
        before = self._house.parked()
        due_at = round(time.time() + self._plan.burst_after_s, 3)
        load = replace(self._load(count), due_at=due_at)
        in_time = False

        def look(_: int, received: int) -> None:
            nonlocal in_time
            self._at(received)
            if not in_time and time.time() < due_at:
                parked = self._house.parked() - before
                in_time = parked >= count and time.time() < due_at

        self._progress.step(name, count)
        sent, got = self._carry(load, look)
        assert got is not None
        out_ms = round((got.last - due_at) * 1000, 1) if got.messages else None
        return {**of_load(load, sent, got), "all_out_ms": out_ms, "parked_in_time": in_time}

    def _backlog(self) -> None:
        """Many messages that wait, and what that costs: memory, an idle processor, punctuality."""
        row, plan, house = self._row("backlog"), self._plan, self._house
        before = house.store_bytes()
        parked = house.parked()
        # Steps of a second, because the generator keeps a header for each delay.
        load = replace(self._load(plan.backlog), queue="", delay_ms=(_HOUR_MS, 2 * _HOUR_MS), delay_step_ms=1000)
        self._progress.step("backlog", plan.backlog)
        began = time.monotonic()
        self._carry(load, lambda confirmed, _: self._at(confirmed // 2))
        self._wait_parked(parked, plan.backlog)
        took_s = time.monotonic() - began
        row.runs.append(
            {
                "messages": plan.backlog,
                "park_per_s": round(plan.backlog / took_s),
                "bytes_per_message": round((house.store_bytes() - before) / plan.backlog),
                "bridge_rss_bytes": house.rss_bytes(),
                "idle_cpu_percent": self._idle_percent(),
            }
        )
        if plan.backlog_rate:
            self._steady(f"rate {plan.backlog_rate:g} + backlog", plan.backlog_rate)

    def _wait_parked(self, before: int, count: int) -> None:
        last, since = -1, time.monotonic()
        while (done := self._house.parked() - before) < count:
            if done != last:
                last, since = done, time.monotonic()
            elif time.monotonic() > since + _STANDSTILL_S:
                raise PostdateError(f"The bridge parks nothing any more: {done} of {count} messages are parked.")
            self._at((count + done) // 2)
            time.sleep(_TURN_S)

    def _idle_percent(self) -> float | None:
        """How much of one processor the bridge takes while nothing is due."""
        time.sleep(1)  # what it does after the last message was parked is not idleness
        began, before = time.monotonic(), self._house.cpu_s()
        time.sleep(self._plan.idle_s)
        took_s, after = time.monotonic() - began, self._house.cpu_s()
        return None if before is None or after is None else round((after - before) / took_s * 100, 2)

    def _row(self, name: str) -> Row:
        self.rows.append(Row(name))
        return self.rows[-1]

    def _load(self, count: int) -> Load:
        place, plan = self._place, self._plan
        run = random.getrandbits(31)
        return Load(place.front, KEY, place.queue, count, run, size=plan.size, window=plan.window, keys=plan.keys)

    def _carried(self, name: str, load: Load) -> tuple[Sent, Got]:
        self._progress.step(name, load.count)
        sent, got = self._carry(load, lambda _, received: self._at(received))
        assert got is not None
        return sent, got

    def _at(self, done: int) -> None:
        self._house.check()
        self._progress.at(done)
