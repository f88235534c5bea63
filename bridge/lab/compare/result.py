"""What a comparison found, mode by mode, and the document that keeps it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bridge.lab.bench.figures import FAULTS, Figures
from bridge.lab.compare.measure import Step
from bridge.lab.compare.modes import Mode, Rounding
from bridge.lab.compare.plan import Plan

#: The version of the document: raised when a figure changes its name or its meaning.
FORMAT = 1


@dataclass
class Result:
    """One mode's steps, as far as they came."""

    mode: Mode
    steps: list[Step] = field(default_factory=list)

    def of(self, kind: str) -> list[Step]:
        """The steps of one kind."""
        return [step for step in self.steps if step.kind == kind]

    def figures(self, kind: str) -> Figures:
        """Those of the one step of a kind; nothing where it was not measured."""
        return next((step.figures for step in self.of(kind)), {})

    def at_rate(self, rate: float) -> Step | None:
        """The step in which that rate was held."""
        return next((step for step in self.of("rate") if step.figures["rate_per_s"] == rate), None)

    def faults(self) -> dict[str, int]:
        """How many messages of all steps were lost, came twice, came early, were refused."""
        counts = {name: sum(step.faults().get(name, 0) for step in self.steps) for name in FAULTS}
        return {name: count for name, count in counts.items() if count}

    def messages(self) -> int:
        """How many were to come, over all steps."""
        return sum(int(step.figures["messages"] or 0) for step in self.steps if step.kind != "backlog")


def complaints(results: Sequence[Result]) -> list[str]:
    """A sentence for each of postdate's own modes in which messages were not as they must be."""
    return [
        f"{result.mode.name}: " + ", ".join(f"{count} {name}" for name, count in faults.items())
        for result in results
        if result.mode.ours and (faults := _broken(result))
    ]


def _broken(result: Result) -> dict[str, int]:
    """Its faults, but for what its own rule does: the nearest level may be a shorter one."""
    by_rule = {"early"} if result.mode.rounding is Rounding.NEAREST else set()
    return {name: count for name, count in result.faults().items() if name not in by_rule}


def unfinished(results: Sequence[Result], modes: Sequence[Mode], plan: Plan) -> list[str]:
    """A sentence about the modes that were not measured to their end; none where all were."""
    done = {result.mode.name: len(result.steps) for result in results}
    short = [mode.name for mode in modes if done.get(mode.name, 0) < len(plan.titles([mode]))]
    return [f"It ended before all was measured: {', '.join(short)} lack figures."] if short else []


def document(
    results: Sequence[Result], left_out: Mapping[str, str], plan: Plan, about: Mapping[str, Any], complete: bool
) -> dict[str, Any]:
    """Everything: ``about`` (date, machine, versions, settings), the plan, the steps of each mode with what is drawn of
    them, and why a mode was left out."""
    return {
        "format": FORMAT,
        **about,
        "plan": {**asdict(plan), "backlog": plan.backlog},
        "ok": complete and not complaints(results),
        "modes": [_mode(result) for result in results],
        "left_out": dict(left_out),
    }


def _mode(result: Result) -> dict[str, Any]:
    mode = result.mode
    return {
        "name": mode.name,
        "title": mode.title,
        "how": mode.how,
        "cannot": mode.cannot,
        "can_be_cancelled": mode.cancel,
        "rounding": mode.rounding.value,
        "steps": [{key: value for key, value in asdict(step).items() if value != []} for step in result.steps],
    }
