"""The verdict of a comparison, by fixed rules from its figures. Pure.

The rules compare modes at the highest rate. Two figures count as equal if they differ by less than a fifth or by less
than a millisecond. A mode is in one class only: blocked, rounded, late, or on time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bridge.lab.compare_modes import BY_NAME, ComparePlan, Rounding, caution
from bridge.lab.compare_result import ModeResult, processor_us
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


def verdict(results: Sequence[ModeResult], plan: ComparePlan, left_out: Mapping[str, str]) -> list[Judgement]:
    """All judgements, the most important first. Modes that cannot be judged have a judgement of their own."""
    rate = plan.rates[-1]
    judged = [(result, step.figures) for result in results if (step := result.at_rate(rate)) and _arrived(step.figures)]
    waiting = [(result, figures) for result, figures in judged if result.mode.waits]
    found = [
        *_by_class(waiting),
        _faults(results),
        _processor(judged, rate),
        _not_judged(results, [result for result, _ in judged], left_out),
        _careful(judged, plan),
    ]
    return [judgement for judgement in found if judgement is not None]


def scope(plan: ComparePlan) -> str:
    """What the judgements on lateness refer to."""
    return f"At {plan.rates[-1]:,g} messages a second with delays of {plan.span}"


def headline(results: Sequence[ModeResult], plan: ComparePlan) -> str:
    """One or two sentences for a README: the best class that a mode reached, and the faults; "" without figures."""
    found = verdict(results, plan, {})
    best = next((str(judgement) for judgement in found if judgement.label in _CLASSES.values()), "")
    if not best:
        return ""
    faults = [str(judgement) for judgement in found if judgement.label == _FAULTS]
    return " ".join([f"{scope(plan)}, {best[0].lower()}{best[1:]}", *faults])


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
    how: Mapping[str, Callable[[ModeResult, Figures], str]] = {"rounded": _rounded, "blocked": _blocked}
    found = []
    for name, label in _CLASSES.items():
        members = sorted(
            (entry for entry in waiting if class_of(*entry) == name), key=lambda entry: _late_in_all(entry[1])
        )
        if not members:
            continue
        say = how.get(name, _late)
        parts = "; ".join(f"{result.mode.title} ({say(result, figures)})" for result, figures in members)
        close = _close([(result.mode.title, _late_in_all(figures)) for result, figures in members], _CLOSE_MS)
        found.append(Judgement(label, f"{parts}.{close if name != 'blocked' else ''}"))
    return found


def _late_in_all(figures: Figures) -> float:
    """The lateness of 99 % of messages (ms) with the most that rounding adds."""
    return float(figures["p99_ms"] or 0) + float(figures.get("rounding_max_ms") or 0)


def _late(result: ModeResult, figures: Figures) -> str:
    growing = ", and lateness still grew" if figures.get("growing") else ""
    return f"99 % at most {number(figures['p99_ms'])} ms late{growing}"


def _rounded(result: ModeResult, figures: Figures) -> str:
    most = number(figures.get("rounding_max_ms"))
    return f"{result.mode.rounding.value}, here by at most {most} ms; counted from there {_late(result, figures)}"


def _blocked(result: ModeResult, figures: Figures) -> str:
    return f"the shortest delays came {number(figures['short_behind_long_ms'])} ms later than the longest"


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
    if not total:
        return None
    words = [_FAULT_WORDS.get(name, name) for name in FAULTS]
    wrong = [
        f"{result.mode.title} ({', '.join(_fault(result, name, count) for name, count in faults.items())})"
        for result in results
        if (faults := result.faults())
    ]
    if wrong:
        return Judgement(_FAULTS, f"{'; '.join(wrong)}.")
    return Judgement(_FAULTS, f"none in {total:,} messages ({', '.join(words)}).")


def _fault(result: ModeResult, name: str, count: int) -> str:
    by_rule = name == "early" and result.mode.rounding is Rounding.NEAREST
    return f"{_FAULT_WORDS.get(name, name)} {count:,}{' by its rounding' if by_rule else ''}"


def _processor(judged: Sequence[tuple[ModeResult, Figures]], rate: float) -> Judgement | None:
    """Processor time of all processes together, the cheapest mode first. Only modes whose every process is known."""
    known = [(result, us) for result, figures in judged if (us := processor_us(result.mode, figures)) is not None]
    ranked = sorted(((result.mode.title, us) for result, us in known if result.mode.waits), key=lambda entry: entry[1])
    if not ranked:
        return Judgement("Processor", "not known, because the broker runs on another machine.") if judged else None
    parts = "; ".join(f"{title} {number(us)}" for title, us in ranked)
    scale = "".join(f" No delay: {number(us)}." for result, us in known if not result.mode.waits)
    return Judgement("Processor, µs a message", f"{parts}.{scale}{_close(ranked, 0)}")


def _not_judged(
    results: Sequence[ModeResult], judged: Sequence[ModeResult], left_out: Mapping[str, str]
) -> Judgement | None:
    missing = [(result.mode.title, _why(result)) for result in results if result not in judged]
    missing += [(BY_NAME[name].title, reason) for name, reason in left_out.items()]
    if not missing:
        return None
    return Judgement("Not judged", "; ".join(f"{title} ({why})" for title, why in missing) + ".")


def _why(result: ModeResult) -> str:
    if any(step.kind == "rate" for step in result.steps) and not result.failed:
        return "nothing arrived"
    return "failed" if result.failed else "not measured at this rate"


def _careful(judged: Sequence[tuple[ModeResult, Figures]], plan: ComparePlan) -> Judgement | None:
    """Why the figures may say less than they seem to."""
    busy = [
        f"Even without a delay 99 % took up to {number(figures['p99_ms'])} ms: the machine or the broker was busy."
        for result, figures in judged
        if not result.mode.waits and float(figures["p99_ms"] or 0) > BUSY_MS
    ]
    sentences = [*busy, *filter(None, [caution(plan)])]
    return Judgement("Caution", " ".join(sentences)) if sentences else None


def _arrived(figures: Figures) -> bool:
    return figures.get("p99_ms") is not None
