"""The tables of a comparison: for the terminal, for programs and for a README."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.lab.compare_modes import ComparePlan, caution
from bridge.lab.compare_result import PROCESSES, ModeComparison, ModeResult
from bridge.lab.compare_verdict import headline, sentences
from bridge.lab.figures import Figures, number
from bridge.telemetry.printable import say

_MIB = 1024 * 1024
_QUANTILES = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}
#: The kind of a question about all steps together. Other kinds are those of steps.
_ALL = "all"
_NOT_IN_PLAN = "not measured in --quick"
#: Steps that only a full run has.
_LEFT_TO_A_FULL_RUN = {"backlog": "memory of waiting messages", "restart": "a restart of the bridge"}
#: The width of the shortest cell, and the gap between two columns on a terminal.
_CELL_LEAST, _GAP = 7, 2


class Cell(NamedTuple):
    """A mode's figure as text or, if there is none, the reason in few words."""

    text: str
    why: str = ""


class Question(NamedTuple):
    """A figure that is asked of each mode. Questions of one ``group`` form one table.

    ``kind`` and ``rate`` choose the step, ``name`` its figure. ``note`` explains what the label leaves open. ``column``
    is the title in the README's table, "" for a question that is not there.
    """

    group: str
    label: str
    kind: str
    name: str
    rate: float = 0
    note: str = ""
    column: str = ""


#: A question and each mode's answer.
Column = tuple[Question, list[Cell]]


def tables(comparison: ModeComparison) -> dict[str, list[Column]]:
    """The columns of each group. Left out are questions that no mode has an answer to."""
    found: dict[str, list[Column]] = {}
    for asked in questions(comparison.plan):
        cells = [_cell(result, comparison.plan, asked) for result in comparison.measured]
        if any(cell.text for cell in cells):
            found.setdefault(asked.group, []).append((asked, cells))
    return found


def questions(plan: ComparePlan) -> Iterator[Question]:
    """Every question of this plan, in the order of the report."""
    for rate in plan.rates:
        for label, name in _QUANTILES.items():
            column = f"late at {rate:,g}/s: {label}, ms" if name in ("p50_ms", "p99_ms") else ""
            yield Question(f"Lateness at {rate:,g} a second, ms", label, "rate", name, rate, column=column)
    rate, count = plan.rates[-1], f"{plan.count:,}"
    group = f"Delays of {plan.span}, at {rate:,g} a second, ms"
    yield Question(
        group,
        "short behind long",
        "rate",
        "short_behind_long_ms",
        rate,
        "Short behind long: the median lateness of the quarter with the shortest delays, minus that of the quarter "
        "with the longest. It is about 0 if a short delay can pass a longer one. Below 0 nothing was early: the long "
        "delays were later, for example in a ladder, where they pass more queues.",
        "short behind long, ms",
    )
    yield Question(group, "rounded, p50", "rate", "rounding_p50_ms", rate)
    column = f"delays of {plan.span} rounded by up to, ms"
    yield Question(group, "rounded, max", "rate", "rounding_max_ms", rate, column=column)
    group = f"One flood of {count} at once, a second"
    yield Question(group, "published", "flood", "publish_per_s")
    yield Question(group, "delivered", "flood", "deliver_per_s", column=f"{count} at once, out/s")
    for name in ("sent", "lost", "duplicates", "early", "refused"):
        yield Question("Messages, all runs", name, _ALL, name, column=name if name in ("lost", "early") else "")
    group = "Came after one that was published later"
    yield Question(group, "due at one moment", "burst", "disordered")
    yield Question(group, "with one delay, % of the flood", "flood", "out_of_order_percent")
    group = f"{count} due at one moment, ms"
    yield Question(
        group, "all out after", "burst", "all_out_ms", column=f"{count} due at one moment, all out after, ms"
    )
    note = "Counted from the requested moment. Of it rounding: how far the mode's own rule moves the last message."
    yield Question(group, "of it rounding", "burst", "moved_max_ms", note=note)
    group = f"Processor at {rate:,g} a second, µs a message"
    yield Question(group, "all", "rate", "cpu_us", rate, column=f"processor at {rate:,g}/s, µs a message")
    for process in PROCESSES:
        column = "of it RabbitMQ" if process == "broker" else ""
        yield Question(group, process, "rate", f"{process}_cpu_us", rate, column=column)
    group = f"{plan.backlog:,} waiting"
    note = (
        "Growth of the broker's process per message. With redis no message waits on the broker: it is memory that "
        "RabbitMQ has not released after passing the messages on."
    )
    yield Question(group, "broker, bytes each", "backlog", "broker_bytes_each", note=note)
    yield Question(group, "store, bytes each", "backlog", "store_bytes_each")
    yield Question(group, "bridge, MiB", "backlog", "bridge_mib")
    yield Question("Bridge restarted, ms", "none came for", "restart", "standstill_ms")


def _cell(result: ModeResult, plan: ComparePlan, asked: Question) -> Cell:
    figures = _figures(result, asked)
    if figures is not None and (value := figures.get(asked.name)) is not None:
        return Cell(number(value))
    return Cell("", _why_missing(result, plan, asked, figures))


def _figures(result: ModeResult, asked: Question) -> Figures | None:
    """The figures of the step that a question is about, with those that follow from them; None if there is none."""
    if asked.kind == _ALL:
        none = dict.fromkeys(("lost", "duplicates", "early", "refused"), 0)
        return {"sent": result.messages(), **none, **result.faults()}
    step = result.step(asked.kind, asked.rate)
    if step is None:
        return None
    figures = {**step.figures, "cpu_us": result.processor_us(step.figures)}
    messages = float(figures["messages"] or 1)
    for process in PROCESSES:
        grew = float(figures.get(f"{process}_grew_bytes") or 0)
        figures[f"{process}_bytes_each"] = grew / messages if grew > 0 else None
    if (disordered := figures.get("out_of_order")) is not None:
        figures["out_of_order_percent"] = 100 * disordered / messages
    if bridge_bytes := figures.get("bridge_bytes"):
        figures["bridge_mib"] = bridge_bytes / _MIB
    return figures


def _why_missing(result: ModeResult, plan: ComparePlan, asked: Question, figures: Figures | None) -> str:
    """Why a mode has no answer, in few words."""
    mode, process = result.mode, asked.name.partition("_")[0]
    if asked.kind not in plan.kinds:
        return _NOT_IN_PLAN
    if process in PROCESSES and not result.takes_part(process):
        return f"no {process}"
    if figures is None and asked.kind in plan.kinds_of(mode):
        return "failed" if result.failed else "not reached"
    if process in (*PROCESSES, "cpu") and figures is not None:
        return "its memory shrank" if asked.kind == "backlog" else "other machine, or unknown"
    if not mode.waits:
        return "no delay"
    if figures is None:
        return "no bridge" if asked.kind == "restart" else "messages would remain"
    if asked.name == "disordered":
        return "rounding separates them"
    if figures.get("lost") == figures["messages"]:
        return "nothing arrived"
    return "published too late" if asked.kind == "burst" else "too few messages"


def notes(plan: ComparePlan) -> tuple[str, ...]:
    """What a reader must know to read the figures right."""
    found = (
        "Lateness counts from the rounded due time. The rounding comes on top.",
        f"Rounding depends on the delays, here {plan.span}. Levels that lie further apart round by more: the default "
        "list rounds a delay of 61 minutes to 2 hours.",
        "Short behind long: below 0 nothing was early, the long delays were the later ones.",
        f"At once: how fast one flood of {plan.count:,} drains, and no rate that can be held.",
        caution(plan),
        _not_measured(plan),
    )
    return tuple(filter(None, found))


def _not_measured(plan: ComparePlan) -> str:
    missing = [words for kind, words in _LEFT_TO_A_FULL_RUN.items() if kind not in plan.kinds]
    return f"{_NOT_IN_PLAN.capitalize()}: {', '.join(missing)}." if missing else ""


def print_table(comparison: ModeComparison) -> None:
    """Print the verdict, and a table for each group, with a row for each mode.

    In a pipe, print a tab-separated row for each figure of each mode. The verdict goes to standard error.
    """
    titles = [result.mode.title for result in comparison.measured]
    if not sys.stdout.isatty():
        for sentence in sentences(comparison):
            say(sentence)
        print("group", "figure", "mode", "value", sep="\t")
        for asked, cells in chain.from_iterable(tables(comparison).values()):
            for title, cell in zip(titles, cells, strict=True):
                if cell.text:
                    print(asked.group, asked.label, title, cell.text, sep="\t")
        return
    console = Console(highlight=False)
    console.print(*sentences(comparison), sep="\n- ", end="\n\n", markup=False)
    for group, columns in tables(comparison).items():
        table = Table(title=group, title_justify="left", box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column(width=max(map(len, titles)))
        for asked, _ in columns:
            table.add_column(asked.label, justify="right", min_width=_CELL_LEAST)
        for title, *row in zip(titles, *(cells for _, cells in columns), strict=True):
            table.add_row(title, *(cell.text or Text(cell.why, style="dim") for cell in row))
        console.print(table)
    console.print(_not_measured(comparison.plan))


def markdown(comparison: ModeComparison) -> str:
    """A table in Markdown with a row for each mode.

    Above it: the verdict in short. Below it: how to read it, and when and where it was measured.
    """
    plan, about = comparison.plan, comparison.about
    columns = [asked for asked in questions(plan) if asked.column and asked.rate in (0, plan.rates[-1])]
    rows = [["way", *(asked.column for asked in columns)], ["---", *("--:" for _ in columns)]]
    for result in comparison.measured:
        cells = [_cell(result, plan, asked) for asked in columns]
        rows.append([result.mode.title, *(cell.text or f"({cell.why})" for cell in cells)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    programs = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if name != "postdate")
    where = f"{about['date'][:10]}, {about['machine']['cpu']}, {about['machine']['cores']} cores; {programs}."
    return "\n\n".join(filter(None, (headline(comparison), table, " ".join(notes(plan)), where))) + "\n"
