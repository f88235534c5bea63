"""What a comparison found for each mode: its steps, its faults, and the document with all of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bridge.lab.compare_modes import ComparePlan, Mode, Rounding
from bridge.lab.figures import FAULTS, Figures, faults, faults_sentence

#: Whose processor time and memory is measured.
PROCESSES = ("bridge", "broker", "store")
#: The version of the document. Raise it when a figure changes its name or meaning.
FORMAT = 1
#: The width of a timeline's bins.
TIMELINE_BIN_S = 0.02

#: Pairs to be drawn.
Points = Sequence[tuple[float, float]]


@dataclass
class CompareStep:
    """One measurement: its figures and what is drawn of it."""

    kind: str
    name: str
    figures: Figures
    #: The distribution of the lateness: see ``figures.curve``.
    curve: Points = ()
    #: Requested delay and lateness of single messages, both in milliseconds.
    by_delay: Points = ()
    #: Arrivals per bin of 20 ms: seconds from the common due moment, and a count.
    timeline: Points = ()


@dataclass
class ModeResult:
    """The steps of one mode that were measured."""

    mode: Mode
    steps: list[CompareStep] = field(default_factory=list)
    #: Why the measurement ended early; "" if it did not.
    failed: str = ""

    def step(self, kind: str, rate: float = 0) -> CompareStep | None:
        """The step of a kind; of several, the one that held this rate."""
        found = (step for step in self.steps if step.kind == kind)
        return next((step for step in found if not rate or step.figures["rate_per_s"] == rate), None)

    def faults(self) -> dict[str, int]:
        """Messages of all steps that were lost, duplicated, early, refused or out of order; only what is not 0."""
        return faults({name: sum(int(step.figures.get(name) or 0) for step in self.steps) for name in FAULTS})

    def messages(self) -> int:
        return sum(int(step.figures["messages"] or 0) for step in self.steps if step.kind != "backlog")

    def processor_us(self, figures: Figures) -> float | None:
        """Processor time per message of all processes that take part; None if one of them is unknown."""
        parts = [figures.get(f"{process}_cpu_us") for process in PROCESSES if self.takes_part(process)]
        return None if None in parts else sum(float(part or 0) for part in parts)

    def takes_part(self, process: str) -> bool:
        """Whether the mode uses a process of ``PROCESSES``."""
        return {"bridge": self.mode.bridged, "store": self.mode.route_mode == "redis"}.get(process, True)


@dataclass
class ModeComparison:
    """Everything that a report is made from. ``left_out`` has the modes that cannot be measured here, with reasons.

    ``about`` says when, where and with which versions and settings it was measured.
    """

    plan: ComparePlan
    modes: Sequence[Mode] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    results: list[ModeResult] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> list[ModeResult]:
        """The results with figures."""
        return [result for result in self.results if result.steps]

    def complaints(self) -> list[str]:
        """A sentence for each of postdate's own modes with faults. The nearest level may by rule be a shorter one."""
        found = []
        for result in self.results:
            by_rule = {"early"} if result.mode.rounding is Rounding.NEAREST else set()
            broken = {name: count for name, count in result.faults().items() if name not in by_rule}
            if result.mode.ours and broken:
                found.append(faults_sentence(result.mode.name, broken))
        return found

    def unfinished(self) -> list[str]:
        """A sentence that names the modes without all their steps; none if all are complete."""
        done = {result.mode.name: len(result.steps) for result in self.results}
        short = [mode.name for mode in self.modes if done.get(mode.name, 0) < len(self.plan.titles([mode]))]
        if not short:
            return []
        failed = [result for result in self.results if result.failed]
        reasons = [f"{result.mode.name} failed: {result.failed.rstrip('.')}." for result in failed]
        return [f"The measurement is incomplete. Modes without all figures: {', '.join(short)}.", *reasons]

    def document(self, verdict: Sequence[str]) -> dict[str, Any]:
        """Everything as JSON: date, machine, versions and settings, plan, steps with drawn points, modes left out."""
        return {
            "format": FORMAT,
            **self.about,
            "plan": {**asdict(self.plan), "backlog": self.plan.backlog},
            "ok": not (self.unfinished() or self.complaints()),
            "verdict": list(verdict),
            "modes": [_mode(result.mode, result.steps) for result in self.measured],
            "left_out": dict(self.left_out),
        }


def _mode(mode: Mode, steps: Sequence[CompareStep]) -> dict[str, Any]:
    return {
        **{name: getattr(mode, name) for name in ("name", "title", "how", "cannot")},
        "can_be_cancelled": mode.cancel,
        "rounding": mode.rounding.value,
        "steps": [{key: value for key, value in asdict(step).items() if value} for step in steps],
    }
