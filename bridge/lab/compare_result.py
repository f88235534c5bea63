"""What a comparison found for each mode: its steps, its faults, and why a figure is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.core.errors import PostdateError
from bridge.lab.compare import CompareStep
from bridge.lab.compare_modes import ComparePlan, Mode, Rounding
from bridge.lab.figures import FAULTS, Figures, faults_sentence, number

#: Whose processor time and memory is measured.
PROCESSES = ("bridge", "broker", "store")


@dataclass
class ModeResult:
    """The steps of one mode that were measured."""

    mode: Mode
    steps: list[CompareStep] = field(default_factory=list)
    #: Why the measurement ended early; "" if it did not.
    failed: str = ""

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Keep the reason if this block fails."""
        try:
            yield
        except PostdateError as error:
            self.failed = str(error)
            raise
        except KeyboardInterrupt:
            self.failed = "interrupted"
            raise

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
        counts = {name: sum(step.faults().get(name, 0) for step in self.steps) for name in FAULTS}
        return {name: count for name, count in counts.items() if count}

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


# -- missing figures --------------------------------------------------------------------------------------------------

NO_DELAY, NO_BRIDGE, NO_STORE = "no delay", "no bridge", "no store"
NOT_IN_PLAN, NOTHING_ARRIVED, TOO_LATE = "not measured in --quick", "nothing arrived", "published too late"


class Cell(NamedTuple):
    """A mode's figure as text or, if there is none, the reason in few words."""

    text: str
    why: str = ""


def cell(result: ModeResult, plan: ComparePlan, kind: str, name: str, figures: Figures | None) -> Cell:
    """The cell of a figure. ``figures`` are those of the step; None if the step was not measured."""
    if figures is not None and (value := figures.get(name)) is not None:
        return Cell(number(value))
    return Cell("", why_no_step(result, plan, kind) if figures is None else why_no_figure(result.mode, name, figures))


def why_no_step(result: ModeResult, plan: ComparePlan, kind: str) -> str:
    """Why a mode has no step of this kind."""
    mode = result.mode
    if kind not in plan.kinds:
        return NOT_IN_PLAN
    if kind in plan.kinds_of(mode):
        return "failed" if result.failed else "not reached"
    if not mode.waits:
        return NO_DELAY
    return NO_BRIDGE if kind == "restart" else "messages would remain"


def why_no_figure(mode: Mode, name: str, figures: Figures) -> str:
    """Why a step that was measured lacks a figure."""
    if name.startswith(PROCESSES):
        return _takes_no_part(mode, name) or "other machine, or unknown"
    if not mode.waits:
        return NO_DELAY
    if name == "disordered":
        return "rounding separates them"
    if figures.get("lost") == figures.get("messages"):
        return NOTHING_ARRIVED
    if name in ("all_out_ms", "moved_max_ms"):
        return TOO_LATE
    return "too few messages"


def _takes_no_part(mode: Mode, name: str) -> str:
    """Why a mode does not use the process that a figure belongs to; "" if it does."""
    if name.startswith("bridge_") and not mode.bridged:
        return NO_BRIDGE
    return NO_STORE if name.startswith("store_") and mode.route_mode != "redis" else ""


def processor_us(mode: Mode, figures: Figures) -> float | None:
    """Processor time per message of all processes that take part; None if one of them is unknown."""
    names = [f"{name}_cpu_us" for name in PROCESSES]
    parts = [figures.get(name) for name in names if not _takes_no_part(mode, name)]
    return None if None in parts else sum(float(part or 0) for part in parts)
