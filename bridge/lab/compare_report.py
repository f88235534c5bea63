"""The report of a comparison: the document, and the tables for a terminal, the page and a README."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.lab.command import shared_settings
from bridge.lab.compare_modes import ComparePlan, caution
from bridge.lab.compare_result import (
    NOT_IN_PLAN,
    PROCESSES,
    Cell,
    ModeResult,
    cell,
    complaints,
    processor_us,
    why_no_figure,
    why_no_step,
)
from bridge.lab.compare_verdict import headline, scope, verdict
from bridge.lab.figures import number
from bridge.settings import Settings
from bridge.telemetry.printable import say

#: The version of the document. Raise it when a figure changes its name or meaning.
FORMAT = 1
_MIB = 1024 * 1024
_QUANTILES = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}

#: Faults with a column in the table. Lost order has a group of its own.
_COUNTED = ("lost", "duplicates", "early", "refused")
#: Steps that only a full run has.
_LEFT_TO_A_FULL_RUN = {"backlog": "memory of waiting messages", "restart": "a restart of the bridge"}
#: The width of the shortest cell, and the gap between two columns on a terminal.
_CELL_LEAST, _GAP = 7, 2


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
        "verdict": [f"{scope(plan)}:", *map(str, verdict(results, plan, left_out))],
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
    """A question and each mode's answer, or why it has none. Lines of one ``group`` form one table.

    ``note`` explains what the label leaves open.
    """

    group: str
    label: str
    cells: tuple[Cell, ...]
    note: str = ""

    @property
    def in_words(self) -> bool:
        """Whether the answers are words, which are aligned left."""
        return any(cell.text[:1].isalpha() for cell in self.cells)


class Question(NamedTuple):
    """A line of the table before it is filled in. ``answer`` gives a mode's cell."""

    group: str
    label: str
    answer: Callable[[ModeResult], Cell]
    note: str = ""


def lines(results: Sequence[ModeResult], plan: ComparePlan) -> list[TableLine]:
    """All lines that at least one mode has an answer to."""
    found = [
        TableLine(one.group, one.label, tuple(map(one.answer, results)), one.note)
        for one in (*_rate_questions(plan), *_other_questions(plan))
    ]
    return [line for line in found if any(cell.text for cell in line.cells)]


def _rate_questions(plan: ComparePlan) -> Iterator[Question]:
    for rate in plan.rates:
        for label, name in _QUANTILES.items():
            yield Question(f"Lateness at {rate:,g} a second, ms", label, _at_rate(plan, rate, name))
    rate = plan.rates[-1]
    group = f"Delays of {plan.span}, at {rate:,g} a second, ms"
    yield Question(
        group,
        "short behind long",
        _at_rate(plan, rate, "short_behind_long_ms"),
        "Short behind long: the median lateness of the quarter with the shortest delays, minus that of the quarter "
        "with the longest. It is about 0 if a short delay can pass a longer one. Below 0 nothing was early: the long "
        "delays were later, for example in a ladder, where they pass more queues.",
    )
    yield Question(group, "rounded, p50", _at_rate(plan, rate, "rounding_p50_ms"))
    yield Question(group, "rounded, max", _at_rate(plan, rate, "rounding_max_ms"))


def _other_questions(plan: ComparePlan) -> Iterator[Question]:
    rate = plan.rates[-1]
    group = f"One flood of {plan.count:,} at once, a second"
    yield Question(group, "published", _of(plan, "flood", "publish_per_s"))
    yield Question(group, "delivered", _of(plan, "flood", "deliver_per_s"))
    group = "Messages, all runs"
    yield Question(group, "sent", lambda result: Cell(number(result.messages())))
    for name in _COUNTED:
        yield Question(group, name, _fault(plan, name))
    group = "Came after one that was published later"
    yield Question(group, "due at one moment", _fault(plan, "disordered"))
    yield Question(group, "with one delay", partial(_out_of_order, plan))
    group = f"{plan.count:,} due at one moment, ms"
    yield Question(group, "all out after", _of(plan, "burst", "all_out_ms"))
    yield Question(
        group,
        "of it rounding",
        _of(plan, "burst", "moved_max_ms"),
        "Counted from the requested moment. Of it rounding: how far the mode's own rule moves that moment, for the "
        "message that it moves furthest.",
    )
    for name in PROCESSES:
        yield Question(f"Processor at {rate:,g} a second, µs a message", name, _at_rate(plan, rate, f"{name}_cpu_us"))
    group = f"{plan.backlog:,} waiting"
    yield Question(
        group,
        "broker, bytes each",
        _bytes_each(plan, "broker"),
        "Growth of the broker's process per message. With redis no message waits on the broker: "
        "it is memory that RabbitMQ has not released after passing the messages on.",
    )
    yield Question(group, "store, bytes each", _bytes_each(plan, "store"))
    yield Question(group, "bridge, MiB", partial(_bridge_mib, plan))
    yield Question("Bridge restarted, ms", "none came for", _of(plan, "restart", "standstill_ms"))
    yield Question("What waits", "can be cancelled", lambda result: Cell(result.mode.cancel))


def _at_rate(plan: ComparePlan, rate: float, name: str) -> Callable[[ModeResult], Cell]:
    def answer(result: ModeResult) -> Cell:
        step = result.at_rate(rate)
        return cell(result, plan, "rate", name, None if step is None else step.figures)

    return answer


def _fault(plan: ComparePlan, name: str) -> Callable[[ModeResult], Cell]:
    """The sum over all steps that can detect this fault. Only a burst detects disorder."""

    def answer(result: ModeResult) -> Cell:
        if any(name in step.figures for step in result.steps):
            return Cell(number(result.faults().get(name, 0)))
        kind = "burst" if name == "disordered" else "rate"
        return cell(result, plan, kind, name, result.figures(kind) or None)

    return answer


def _of(plan: ComparePlan, kind: str, name: str) -> Callable[[ModeResult], Cell]:
    return lambda result: cell(result, plan, kind, name, result.figures(kind) or None)


def _bytes_each(plan: ComparePlan, name: str) -> Callable[[ModeResult], Cell]:
    """Memory per message, unless the server released more than it took."""

    def answer(result: ModeResult) -> Cell:
        found = _of(plan, "backlog", f"{name}_grew_bytes")(result)
        if not found.text:
            return found
        backlog = result.figures("backlog")
        grew = float(backlog[f"{name}_grew_bytes"] or 0)
        return Cell(number(grew / (backlog["messages"] or 1))) if grew > 0 else Cell("", "its memory shrank")

    return answer


def _out_of_order(plan: ComparePlan, result: ModeResult) -> Cell:
    found = _of(plan, "flood", "out_of_order")(result)
    flood = result.figures("flood")
    if not found.text or not flood["out_of_order"]:
        return found
    return Cell(f"{float(flood['out_of_order']) / float(flood['messages'] or 1):.1%} of the flood")


def _bridge_mib(plan: ComparePlan, result: ModeResult) -> Cell:
    found = _of(plan, "backlog", "bridge_bytes")(result)
    return Cell(f"{float(result.figures('backlog')['bridge_bytes'] or 0) / _MIB:,.0f}") if found.text else found


def not_measured(plan: ComparePlan) -> str:
    """A sentence about steps that the plan leaves out for every mode; "" if there are none."""
    missing = [words for kind, words in _LEFT_TO_A_FULL_RUN.items() if kind not in plan.kinds]
    return f"{NOT_IN_PLAN.capitalize()}: {', '.join(missing)}." if missing else ""


def print_table(results: Sequence[ModeResult], plan: ComparePlan, left_out: Mapping[str, str]) -> None:
    """Print the verdict, and a table for each group, with a row for each mode.

    In a pipe, print one tab-separated row per figure. The verdict goes to standard error.
    """
    if not sys.stdout.isatty():
        _print_piped(results, plan, left_out)
        return
    console = Console()
    console.print(f"{scope(plan)}:", style="bold", highlight=False)
    for judgement in verdict(results, plan, left_out):
        console.print(f"- {judgement}", highlight=False, markup=False)
    console.print()
    widest = max(len(result.mode.title) for result in results)
    for group, members in groupby(lines(results, plan), key=lambda line: line.group):
        found = list(members)
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
        table.add_column(width=widest)
        for line in found:
            table.add_column(line.label, justify="left" if line.in_words else "right", min_width=_CELL_LEAST)
        for place, result in enumerate(results):
            cells = [line.cells[place] for line in found]
            table.add_row(result.mode.title, *(one.text or Text(one.why, style="dim") for one in cells))
        console.print(group, style="bold", highlight=False)
        console.print(table)
    if not_measured(plan):
        console.print(not_measured(plan), highlight=False)


def _print_piped(results: Sequence[ModeResult], plan: ComparePlan, left_out: Mapping[str, str]) -> None:
    """One row for each figure of each mode, for programs. A figure that is missing has no row."""
    for sentence in (f"{scope(plan)}:", *map(str, verdict(results, plan, left_out))):
        say(sentence)
    print("group", "figure", "mode", "value", sep="\t")
    for line in lines(results, plan):
        for result, one in zip(results, line.cells, strict=True):
            if one.text:
                print(line.group, line.label, result.mode.title, one.text, sep="\t")


# -- the table for a README -------------------------------------------------------------------------------------------


def markdown(results: Sequence[ModeResult], plan: ComparePlan, about: Mapping[str, Any]) -> str:
    """A table in Markdown with a row for each mode.

    Above it: the verdict in short. Below it: how to read it, and when and where it was measured.
    """
    titles, answers = zip(("way", lambda result: Cell(result.mode.title)), *_columns(plan), strict=True)
    rows = [[one.text or f"({one.why})" for one in (answer(result) for answer in answers)] for result in results]
    table = [titles, ["---", *("--:" for _ in titles[1:])], *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    parts = (headline(results, plan), text, " ".join(notes(plan)), _where(about))
    return "\n\n".join(filter(None, parts)) + "\n"


def notes(plan: ComparePlan) -> tuple[str, ...]:
    """What a reader must know to read the figures right."""
    found = (
        "Lateness counts from the rounded due time. The rounding comes on top.",
        f"It depends on the delays, here {plan.span}: levels that lie further apart round by more, those of the "
        "default list 61 minutes to 2 hours.",
        "Short behind long: below 0 nothing was early, the long delays were the later ones.",
        f"At once: how fast one flood of {plan.count:,} drains, and no rate that can be held.",
        caution(plan),
        not_measured(plan),
    )
    return tuple(filter(None, found))


def _columns(plan: ComparePlan) -> Iterator[tuple[str, Callable[[ModeResult], Cell]]]:
    for rate in plan.rates:
        yield f"late at {rate:,g}/s: p50, p99, ms", partial(_late, plan, rate)
    rate = plan.rates[-1]
    yield "short behind long, ms", _at_rate(plan, rate, "short_behind_long_ms")
    yield f"delays of {plan.span} rounded by up to, ms", _at_rate(plan, rate, "rounding_max_ms")
    yield f"{plan.count:,} at once, out/s", _of(plan, "flood", "deliver_per_s")
    yield f"{plan.count:,} due at one moment, all out after, ms (of it rounding)", partial(_all_out, plan)
    yield f"processor at {rate:,g}/s, µs a message", partial(_processor, plan, rate)
    yield (
        "lost, early",
        lambda result: Cell(f"{result.faults().get('lost', 0)}, {result.faults().get('early', 0)}"),
    )


def _late(plan: ComparePlan, rate: float, result: ModeResult) -> Cell:
    half, most = (_at_rate(plan, rate, name)(result) for name in ("p50_ms", "p99_ms"))
    return Cell(f"{half.text}, {most.text}") if half.text and most.text else most


def _all_out(plan: ComparePlan, result: ModeResult) -> Cell:
    """Counted from the requested moment, because users wait for that."""
    found, moved = _of(plan, "burst", "all_out_ms")(result), result.figures("burst").get("moved_max_ms")
    return Cell(f"{found.text} ({number(moved)})") if found.text and moved else found


def _processor(plan: ComparePlan, rate: float, result: ModeResult) -> Cell:
    """The sum of all processes that take part."""
    step = result.at_rate(rate)
    if step is None:
        return Cell("", why_no_step(result, plan, "rate"))
    total = processor_us(result.mode, step.figures)
    return Cell(number(total)) if total is not None else Cell("", why_no_figure(result.mode, "broker_", step.figures))


def _where(about: Mapping[str, Any]) -> str:
    machine, versions = about["machine"], about["versions"]
    programs = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "postdate")
    return f"{about['date'][:10]}, {machine['cpu']}, {machine['cores']} cores; {programs}."
