"""What a comparison found: results by mode, the document, the tables, and the files of the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bridge.lab.command import shared_settings
from bridge.lab.compare import CompareStep
from bridge.lab.compare_modes import ComparePlan, Mode, Rounding, caution
from bridge.lab.figures import FAULTS, Figures, faults_sentence, number
from bridge.settings import Settings
from bridge.telemetry.printable import say

#: The version of the document. Raise it when a figure changes its name or meaning.
FORMAT = 1
_MIB = 1024 * 1024
_PROCESSES = ("bridge", "broker", "store")
_QUANTILES = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}

#: Faults with a column in the table. Lost order has a group of its own.
_COUNTED = ("lost", "duplicates", "early", "refused")
#: The width of the shortest cell, and the gap between two columns on a terminal.
_CELL_LEAST, _GAP = 7, 2


@dataclass
class ModeResult:
    """The steps of one mode that were measured."""

    mode: Mode
    steps: list[CompareStep] = field(default_factory=list)

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
    return [f"The measurement is incomplete. Modes without all figures: {', '.join(short)}."] if short else []


def document(
    results: Sequence[ModeResult],
    left_out: Mapping[str, str],
    plan: ComparePlan,
    about: Mapping[str, Any],
    complete: bool,
) -> dict[str, Any]:
    """Everything: ``about`` (date, machine, versions, settings), plan, steps with drawn points, modes left out."""
    return {
        "format": FORMAT,
        **about,
        "plan": {**asdict(plan), "backlog": plan.backlog},
        "ok": complete and not complaints(results),
        "modes": [_mode(result) for result in results],
        "left_out": dict(left_out),
    }


def _mode(result: ModeResult) -> dict[str, Any]:
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


def report_settings(settings: Settings) -> dict[str, Any]:
    """The settings that influence the figures. No addresses and no secrets."""
    return {
        **shared_settings(settings),
        "rabbitmq.queue_type": settings.rabbitmq.queue_type,
        "levels.queue_type": settings.levels.queue_type or settings.rabbitmq.queue_type,
        "levels.rounding": settings.levels.rounding,
    }


# -- the table on the terminal and the page ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TableLine:
    """A question and each mode's answer, "" if it has none. Lines of one ``group`` form one table.

    ``note`` explains what the label leaves open.
    """

    group: str
    label: str
    cells: tuple[str, ...]
    note: str = ""


class Question(NamedTuple):
    """A line of the table before it is filled in. ``answer`` gives a mode's cell."""

    group: str
    label: str
    answer: Callable[[ModeResult], str]
    note: str = ""


def lines(results: Sequence[ModeResult], plan: ComparePlan) -> list[TableLine]:
    """All lines that at least one mode has an answer to."""
    found = [
        TableLine(one.group, one.label, tuple(map(one.answer, results)), one.note)
        for one in (*_rate_questions(plan), *_other_questions(plan))
    ]
    return [line for line in found if any(line.cells)]


def _rate_questions(plan: ComparePlan) -> Iterator[Question]:
    for rate in plan.rates:
        for label, name in _QUANTILES.items():
            yield Question(f"Lateness at {rate:,g} a second, ms", label, _at_rate(rate, name))
    rate = plan.rates[-1]
    group = f"Delays of {plan.span}, at {rate:,g} a second, ms"
    yield Question(
        group,
        "short behind long",
        _at_rate(rate, "short_behind_long_ms"),
        "Short behind long: the median lateness of the quarter with the shortest delays, minus that of the quarter "
        "with the longest. It is about 0 if a short delay can pass a longer one. Below 0 nothing was early: the long "
        "delays were later, for example in a ladder, where they pass more queues.",
    )
    yield Question(group, "rounded, p50", _at_rate(rate, "rounding_p50_ms"))
    yield Question(group, "rounded, max", _at_rate(rate, "rounding_max_ms"))


def _other_questions(plan: ComparePlan) -> Iterator[Question]:
    rate = plan.rates[-1]
    group = f"One flood of {plan.count:,} at once, a second"
    yield Question(group, "published", _of("flood", "publish_per_s"))
    yield Question(group, "delivered", _of("flood", "deliver_per_s"))
    group = "Messages, all runs"
    yield Question(group, "sent", lambda result: number(result.messages()))
    for name in _COUNTED:
        yield Question(group, name, _fault(name))
    group = "Came after one that was published later"
    yield Question(group, "due at one moment", _fault("disordered"))
    yield Question(group, "with one delay", _out_of_order)
    group = f"{plan.count:,} due at one moment, ms"
    yield Question(group, "all out after", _of("burst", "all_out_ms"))
    yield Question(
        group,
        "of it rounding",
        _of("burst", "moved_max_ms"),
        "Counted from the requested moment. Of it rounding: how far the mode's own rule moves that moment, for the "
        "message that it moves furthest.",
    )
    for name in _PROCESSES:
        yield Question(f"Processor at {rate:,g} a second, µs a message", name, _at_rate(rate, f"{name}_cpu_us"))
    group = f"{plan.backlog:,} waiting"
    yield Question(
        group,
        "broker, bytes each",
        _bytes_each("broker"),
        "Growth of the broker's process per message; blank if it shrank. With redis no message waits on the broker: "
        "it is memory that RabbitMQ has not released after passing the messages on.",
    )
    yield Question(group, "store, bytes each", _bytes_each("store"))
    yield Question(group, "bridge, MiB", lambda result: _mib(result.figures("backlog").get("bridge_bytes")))
    yield Question("Bridge restarted, ms", "none came for", _of("restart", "standstill_ms"))
    yield Question("What waits", "can be cancelled", lambda result: result.mode.cancel)


def _at_rate(rate: float, name: str) -> Callable[[ModeResult], str]:
    def answer(result: ModeResult) -> str:
        step = result.at_rate(rate)
        return "" if step is None else number(step.figures.get(name))

    return answer


def _fault(name: str) -> Callable[[ModeResult], str]:
    """The sum over all steps; blank if no step can detect this fault."""

    def answer(result: ModeResult) -> str:
        seen = any(name in step.figures for step in result.steps)
        return number(result.faults().get(name, 0)) if seen else ""

    return answer


def _of(kind: str, name: str) -> Callable[[ModeResult], str]:
    return lambda result: number(result.figures(kind).get(name))


def _bytes_each(name: str) -> Callable[[ModeResult], str]:
    """Memory per message; blank if the server released more than it took."""

    def answer(result: ModeResult) -> str:
        backlog = result.figures("backlog")
        grew = backlog.get(f"{name}_grew_bytes") or 0
        return number(grew / (backlog["messages"] or 1)) if grew > 0 else ""

    return answer


def _out_of_order(result: ModeResult) -> str:
    flood = result.figures("flood")
    if flood.get("out_of_order") is None or not flood["messages"]:
        return ""
    share = float(flood["out_of_order"] or 0) / float(flood["messages"])
    return "0" if not flood["out_of_order"] else f"{share:.1%} of the flood"


def _mib(value: float | None) -> str:
    return "" if value is None else f"{value / _MIB:,.0f}"


def print_table(results: Sequence[ModeResult], plan: ComparePlan) -> None:
    """Print a table for each group, with a row for each mode. In a pipe, print one tab-separated row per figure."""
    if not sys.stdout.isatty():
        _print_piped(results, plan)
        return
    console = Console()
    widest = max(len(result.mode.title) for result in results)
    for group, members in groupby(lines(results, plan), key=lambda line: line.group):
        found = list(members)
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
        table.add_column(width=widest)
        for line in found:
            words = any(cell[:1].isalpha() for cell in line.cells)
            table.add_column(line.label, justify="left" if words else "right", min_width=_CELL_LEAST)
        for place, result in enumerate(results):
            cells = [line.cells[place] for line in found]
            if any(cells):
                table.add_row(result.mode.title, *cells)
        console.print(group, style="bold", highlight=False)
        console.print(table)
    if caution(plan):
        console.print(caution(plan), highlight=False)


def _print_piped(results: Sequence[ModeResult], plan: ComparePlan) -> None:
    """One row for each figure of each mode, for programs."""
    print("group", "figure", "mode", "value", sep="\t")
    for line in lines(results, plan):
        for result, cell in zip(results, line.cells, strict=True):
            if cell:
                print(line.group, line.label, result.mode.title, cell, sep="\t")
    if caution(plan):
        say(caution(plan))


# -- the table for a README -------------------------------------------------------------------------------------------


def markdown(results: Sequence[ModeResult], plan: ComparePlan, about: Mapping[str, Any]) -> str:
    """A table in Markdown with a row for each mode. Below it: how to read it, and when and where it was measured."""
    titles, answers = zip(("way", lambda result: result.mode.title), *_columns(plan), strict=True)
    rows = [[answer(result) for answer in answers] for result in results]
    table = [titles, ["---", *("--:" for _ in titles[1:])], *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return f"{text}\n\n{' '.join(notes(plan))}\n\n{_where(about)}\n"


def notes(plan: ComparePlan) -> tuple[str, ...]:
    """What a reader must know to read the figures right."""
    found = (
        "Lateness counts from the rounded due time. The rounding comes on top.",
        f"It depends on the delays, here {plan.span}: levels that lie further apart round by more, those of the "
        "default list 61 minutes to 2 hours.",
        "Short behind long: below 0 nothing was early, the long delays were the later ones.",
        f"At once: how fast one flood of {plan.count:,} drains, and no rate that can be held.",
        caution(plan),
    )
    return tuple(filter(None, found))


def _columns(plan: ComparePlan) -> Iterator[tuple[str, Callable[[ModeResult], str]]]:
    for rate in plan.rates:
        yield f"late at {rate:,g}/s: p50, p99, ms", partial(_late, rate)
    rate = plan.rates[-1]
    yield "short behind long, ms", lambda result: _at(result, rate, "short_behind_long_ms")
    yield f"delays of {plan.span} rounded by up to, ms", lambda result: _at(result, rate, "rounding_max_ms")
    yield f"{plan.count:,} at once, out/s", lambda result: number(result.figures("flood").get("deliver_per_s"))
    yield f"{plan.count:,} due at one moment, all out after, ms (of it rounding)", _all_out
    yield f"processor at {rate:,g}/s, µs a message", lambda result: _processor(result, rate)
    yield "lost, early", lambda result: f"{result.faults().get('lost', 0)}, {result.faults().get('early', 0)}"


def _late(rate: float, result: ModeResult) -> str:
    return ", ".join(filter(None, (_at(result, rate, name) for name in ("p50_ms", "p99_ms"))))


def _at(result: ModeResult, rate: float, name: str) -> str:
    step = result.at_rate(rate)
    return "" if step is None else number(step.figures.get(name))


def _all_out(result: ModeResult) -> str:
    """Counted from the requested moment, because users wait for that."""
    burst = result.figures("burst")
    text, moved = number(burst.get("all_out_ms")), burst.get("moved_max_ms")
    return f"{text} ({number(moved)})" if text and moved else text


def _processor(result: ModeResult, rate: float) -> str:
    """The sum of all processes; blank if the broker's is unknown."""
    step = result.at_rate(rate)
    if step is None or step.figures.get("broker_cpu_us") is None:
        return ""
    return number(sum(float(step.figures.get(f"{name}_cpu_us") or 0) for name in _PROCESSES))


def _where(about: Mapping[str, Any]) -> str:
    machine, versions = about["machine"], about["versions"]
    programs = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "postdate")
    return f"{about['date'][:10]}, {machine['cpu']}, {machine['cores']} cores; {programs}."
