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

    def of(self, kind: str) -> list[CompareStep]:
        """The steps of one kind."""
        return [step for step in self.steps if step.kind == kind]

    def figures(self, kind: str) -> Figures:
        """The figures of the only step of a kind; empty if it was not measured."""
        return next((step.figures for step in self.of(kind)), {})

    def at_rate(self, rate: float) -> CompareStep | None:
        """The step that held this rate."""
        return next((step for step in self.of("rate") if step.figures["rate_per_s"] == rate), None)

    def faults(self) -> dict[str, int]:
        """Messages of all steps that were lost, duplicated, early, refused or out of order; only what is not 0."""
        return faults({name: sum(int(step.figures.get(name) or 0) for step in self.steps) for name in FAULTS})

    def messages(self) -> int:
        """The number of messages of all steps that should arrive."""
        return sum(int(step.figures["messages"] or 0) for step in self.steps if step.kind != "backlog")


def complaints(results: Sequence[ModeResult]) -> list[str]:
    """A sentence for each of postdate's own modes with faults."""
    return [
        faults_sentence(result.mode.name, faults)
        for result in results
        if result.mode.ours and (faults := _broken(result))
    ]


def _broken(result: ModeResult) -> dict[str, int]:
    """Its faults, except those by its own rule: the nearest level may be a shorter one."""
    by_rule = {"early"} if result.mode.rounding is Rounding.NEAREST else set()
    return {name: count for name, count in result.faults().items() if name not in by_rule}


def unfinished(results: Sequence[ModeResult], modes: Sequence[Mode], plan: ComparePlan) -> list[str]:
    """A sentence that names the modes without all their steps; none if all are complete."""
    done = {result.mode.name: len(result.steps) for result in results}
    short = [mode.name for mode in modes if done.get(mode.name, 0) < len(plan.titles([mode]))]
    if not short:
        return []
    reasons = [f"{result.mode.name} failed: {result.failed.rstrip('.')}." for result in results if result.failed]
    return [f"The measurement is incomplete. Modes without all figures: {', '.join(short)}.", *reasons]


def takes_part(mode: Mode, process: str) -> bool:
    """Whether a mode uses a process of ``PROCESSES``."""
    return {"bridge": mode.bridged, "store": mode.route_mode == "redis"}.get(process, True)


def processor_us(mode: Mode, figures: Figures) -> float | None:
    """Processor time per message of all processes that take part; None if one of them is unknown."""
    parts = [figures.get(f"{process}_cpu_us") for process in PROCESSES if takes_part(mode, process)]
    return None if None in parts else sum(float(part or 0) for part in parts)


def document(
    results: Sequence[ModeResult],
    left_out: Mapping[str, str],
    plan: ComparePlan,
    about: Mapping[str, Any],
    complete: bool,
    verdict: Sequence[str],
) -> dict[str, Any]:
    """Everything: ``about`` (date, machine, versions, settings), plan, steps with drawn points, modes left out."""
    return {
        "format": FORMAT,
        **about,
        "plan": {**asdict(plan), "backlog": plan.backlog},
        "ok": complete and not complaints(results),
        "verdict": list(verdict),
        "modes": [_mode(result) for result in results],
        "left_out": dict(left_out),
    }


def _mode(result: ModeResult) -> dict[str, Any]:
    mode = result.mode
    return {
        **{name: getattr(mode, name) for name in ("name", "title", "how", "cannot")},
        "can_be_cancelled": mode.cancel,
        "rounding": mode.rounding.value,
        "steps": [{key: value for key, value in asdict(step).items() if value} for step in result.steps],
    }
