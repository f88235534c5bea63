"""The verdict of a comparison, by fixed rules from its figures. Pure.

The rules compare modes at the highest rate. Two figures count as equal if they differ by less than a fifth or by less
than a millisecond. A mode is in one class only: blocked, rounded, late, or on time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.lab.compare_modes import BY_NAME, ComparePlan, Mode, Rounding, caution
from bridge.lab.compare_result import ModeComparison, ModeResult
from bridge.lab.figures import FAULTS, Figures, number

#: Later than this (ms, 99 % of messages) is late, whatever the mode.
LATE_MS = 100
#: A short delay waits behind longer ones if the shortest quarter is later than the longest by more than this (ms).
BLOCKED_MS = 100
#: The machine or broker is busy if messages without a delay need longer than this (ms, 99 % of messages).
BUSY_MS = 20
_CLOSE_SHARE, _CLOSE_MS = 0.2, 1.0
_FAULT_WORDS = {"duplicates": "duplicated", "disordered": "out of order"}


@dataclass(frozen=True)
class Judgement:
    """One line of the verdict: a label, and what holds for which modes."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


def verdict(comparison: ModeComparison) -> list[Judgement]:
    """All judgements, the most important first. Modes that cannot be judged have a judgement of their own."""
    plan, results = comparison.plan, comparison.measured
    steps = [(result, result.step("rate", plan.rates[-1])) for result in results]
    judged = [(result, step.figures) for result, step in steps if step and step.figures.get("p99_ms") is not None]
    found = [
        *_by_class([(result, figures) for result, figures in judged if result.mode.waits]),
        _faults(results),
        _processor(judged),
        _not_judged(results, [result for result, _ in judged], comparison.left_out),
        _careful(judged, plan),
    ]
    return [judgement for judgement in found if judgement is not None]


def sentences(comparison: ModeComparison) -> list[str]:
    return [f"{scope(comparison.plan)}:", *map(str, verdict(comparison))]


def scope(plan: ComparePlan) -> str:
    """What the judgements on lateness refer to."""
    return f"At {plan.rates[-1]:,g} messages a second with delays of {plan.span}"


def headline(comparison: ModeComparison) -> str:
    """One or two sentences for a README: the best class that a mode reached, and the faults; "" without figures."""
    found = verdict(comparison)
    best = next((judgement for judgement in found if judgement.label in _CLASSES.values()), None)
    faults = [str(judgement) for judgement in found if judgement.label == _FAULTS]
    load = scope(comparison.plan)
    return " ".join([f"{best.label}, {load[0].lower()}{load[1:]}: {best.text}", *faults]) if best else ""


# -- the classes of lateness ------------------------------------------------------------------------------------------

#: Labels by class, the best class first.
_CLASSES = {"on time": "Any delay on time", "rounded": "Rounded", "late": "Late", "blocked": "Short delays blocked"}


def class_of(result: ModeResult, figures: Figures) -> str:
    """The class of a mode with a delay: a key of ``_CLASSES``."""
    behind = figures.get("short_behind_long_ms")
    if behind is not None and behind > BLOCKED_MS:
        return "blocked"
    if float(figures["p99_ms"] or 0) > LATE_MS:
        return "late"
    return "on time" if result.mode.rounding is Rounding.NONE else "rounded"


def _by_class(waiting: Sequence[tuple[ModeResult, Figures]]) -> list[Judgement]:
    found = []
    for name, label in _CLASSES.items():
        members = [(result, figures) for result, figures in waiting if class_of(result, figures) == name]
        members.sort(key=lambda entry: _late_in_all(entry[1]))
        parts = "; ".join(
            f"{result.mode.title} ({_reached(name, result.mode, figures)})" for result, figures in members
        )
        close = _close([(result.mode.title, _late_in_all(figures)) for result, figures in members], _CLOSE_MS)
        if members:
            found.append(Judgement(label, f"{parts}.{close if name != 'blocked' else ''}"))
    return found


def _late_in_all(figures: Figures) -> float:
    """The lateness of 99 % of messages (ms) with the most that rounding adds."""
    return float(figures["p99_ms"] or 0) + float(figures.get("rounding_max_ms") or 0)


def _reached(name: str, mode: Mode, figures: Figures) -> str:
    """What a mode of this class reached."""
    if name == "blocked":
        return f"the shortest delays came {number(figures['short_behind_long_ms'])} ms later than the longest"
    growing = ", and lateness still grew" if figures.get("growing") else ""
    late = f"99 % at most {number(figures['p99_ms'])} ms late{growing}"
    if name != "rounded":
        return late
    most = number(figures.get("rounding_max_ms"))
    return f"{mode.rounding.value}, here by at most {most} ms; counted from there {late}"


def _close(named: Sequence[tuple[str, float]], least: float) -> str:
    """A sentence about neighbours, in rising order, whose figures count as equal; "" if there are none."""
    groups: list[list[tuple[str, float]]] = []
    for entry in sorted(named, key=lambda entry: entry[1]):
        if groups and is_close(groups[-1][0][1], entry[1], least):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    equal = [" ≈ ".join(name for name, _ in group) for group in groups if len(group) > 1]
    return f" Too close to rank: {'; '.join(equal)}." if equal else ""


def is_close(low: float, high: float, least: float) -> bool:
    """Whether two figures count as equal."""
    return high - low < max(least, _CLOSE_SHARE * high)


# -- faults, cost, and what is missing --------------------------------------------------------------------------------

_FAULTS = "Faults"


def _faults(results: Sequence[ModeResult]) -> Judgement | None:
    """Lost, duplicated, early, refused and disordered messages of all steps."""
    total = sum(result.messages() for result in results)
    parts = []
    for result in results:
        by_rule = " by its rounding" if result.mode.rounding is Rounding.NEAREST else ""
        words = (
            f"{_FAULT_WORDS.get(name, name)} {count:,}{by_rule if name == 'early' else ''}"
            for name, count in result.faults().items()
        )
        if found := ", ".join(words):
            parts.append(f"{result.mode.title} ({found})")
    none = f"none in {total:,} messages ({', '.join(_FAULT_WORDS.get(name, name) for name in FAULTS)})"
    return Judgement(_FAULTS, f"{'; '.join(parts) or none}.") if total else None


def _processor(judged: Sequence[tuple[ModeResult, Figures]]) -> Judgement | None:
    """Processor time of all processes together, the cheapest mode first. Only modes whose every process is known."""
    known = [(result.mode, us) for result, figures in judged if (us := result.processor_us(figures)) is not None]
    ranked = sorted(((mode.title, us) for mode, us in known if mode.waits), key=lambda entry: entry[1])
    if not ranked:
        return Judgement("Processor", "not known, because the broker runs on another machine.") if judged else None
    parts = "; ".join(f"{title} {number(us)}" for title, us in ranked)
    scale = "".join(f" No delay: {number(us)}." for mode, us in known if not mode.waits)
    return Judgement("Processor, µs a message", f"{parts}.{scale}{_close(ranked, 0)}")


def _not_judged(
    results: Sequence[ModeResult], judged: Sequence[ModeResult], left_out: Mapping[str, str]
) -> Judgement | None:
    missing = [f"{result.mode.title} ({_why(result)})" for result in results if result not in judged]
    missing += [f"{BY_NAME[name].title} ({reason})" for name, reason in left_out.items()]
    return Judgement("Not judged", f"{'; '.join(missing)}.") if missing else None


def _why(result: ModeResult) -> str:
    if result.failed:
        return "failed"
    return "nothing arrived" if result.step("rate") else "not measured at this rate"


def _careful(judged: Sequence[tuple[ModeResult, Figures]], plan: ComparePlan) -> Judgement | None:
    """Why the figures may say less than they seem to."""
    busy = [
        f"Even without a delay 99 % took up to {number(figures['p99_ms'])} ms: the machine or the broker was busy."
        for result, figures in judged
        if not result.mode.waits and float(figures["p99_ms"] or 0) > BUSY_MS
    ]
    text = " ".join(filter(None, [*busy, caution(plan)]))
    return Judgement("Caution", text) if text else None
