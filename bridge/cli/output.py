"""What commands print: data to standard output, messages for people to standard error.

Nothing printed here contains what a terminal would obey.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.cli.options import Output
from bridge.core.errors import FAILED, SettingsError
from bridge.delay.duration import write_duration
from bridge.telemetry.printable import printable, say

#: One row of output, by column.
Cells = Mapping[str, Any]

_ENDLESS = 1000
#: Spaces after each column of a table in which every row is one line.
_GAP = 2


def document(value: Any) -> None:
    """Print one JSON document. ASCII only: escapes of other characters are valid JSON and harmless to a terminal."""
    print(json.dumps(value, indent=2, default=str))


def line(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, separators=(",", ":"), default=str))


def as_json(output: Output, value: Any) -> None:
    """Print one JSON document, as ``-o json`` or ``-o jsonl`` has it."""
    (document if output is Output.JSON else line)(value)


def rows(
    output: Output, columns: Sequence[str], found: Iterable[Cells], shown: Mapping[str, str] | None = None
) -> None:
    """Print rows of data: all their values in JSON, those of ``columns`` in text. ``shown`` renames headings.

    A pipe gets a header line and tabs: the same columns in the same order, whatever is in the rows.
    """
    if output is Output.JSON:
        document([dict(row) for row in found])
    elif output is Output.JSONL:
        for row in found:
            line(dict(row))
    elif sys.stdout.isatty():
        table(columns, list(found), shown or {})
    else:
        print("\t".join((shown or {}).get(column, column) for column in columns))
        for row in found:
            print("\t".join(_cell(row.get(column)) for column in columns))


def facts(output: Output, found: Mapping[str, Any], text: Iterable[tuple[str, str]]) -> None:
    """Print one thing: all of it in JSON, ``text`` (name and value) for people."""
    if output is Output.TEXT:
        pairs = list(text)
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            print(f"{printable(name):<{width}}  {printable(value)}".rstrip())
    else:
        as_json(output, found)


def wait(due_ms: int, now_ms: int) -> str:
    """Return how far a time is from now, for people: "in 4m 12s", "3s ago"."""
    away = rounded(abs(due_ms - now_ms), 10_000)
    return f"in {away}" if due_ms > now_ms else f"{away} ago"


def rounded(ms: int, from_ms: int = 1000) -> str:
    """Return a duration in whole seconds, from ``from_ms`` on."""
    return write_duration(ms if ms < from_ms else ms // 1000 * 1000)


def confirm(verb: str, what: str, count: int | str, sample: Iterable[str]) -> None:
    """Ask whether to act on that many. Raises as ``ask``."""
    ask(f"{what.capitalize()} to {verb}: {count}.", f"{verb.capitalize()} these {what} ({count})?", sample)


def ask(fact: str, question: str, sample: Iterable[str] = ()) -> None:
    """Ask a question after the lines of ``sample``. Raises ``SettingsError`` with the fact where there is no terminal
    to ask on, ``typer.Exit`` where the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(f"{fact} Confirm with --yes, because there is no terminal to ask on.")
    for text in sample:
        say(printable(text))
    if not typer.confirm(question, err=True):
        say("Nothing was done.")
        raise typer.Exit(FAILED)


def _cell(value: Any) -> str:
    return "" if value is None else printable(str(value))


def width() -> int:
    """Return the width of the terminal. One of unknown width counts as endless, so that nothing is cut for it."""
    return shutil.get_terminal_size((_ENDLESS, 0)).columns


def table(
    columns: Sequence[str], found: Sequence[Cells], shown: Mapping[str, str], cut: Sequence[tuple[str, int]] = ()
) -> None:
    """Print a table on the terminal, without columns that are empty in all rows.

    With ``cut`` every row is one line, as ``fitted`` lays it out.
    """
    console = Console(width=width())
    kept = [column for column in columns if not found or any(_cell(row.get(column)) for row in found)]
    heads = {column: shown.get(column, column) for column in kept}
    if cut:
        needs = {
            column: max(cell_len(head), *(cell_len(_cell(row.get(column))) for row in found), 0)
            for column, head in heads.items()
        }
        widths = fitted(needs, cut, console.width)
        kept = list(widths)
        drawn = Table(box=None, padding=(0, _GAP, 0, 0))
        for column in kept:
            drawn.add_column(heads[column], no_wrap=True, overflow="ellipsis", width=widths[column])
    else:
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in kept:
            drawn.add_column(heads[column], overflow="fold", no_wrap=column == "id")
    for row in found:
        # Text, because rich would read [brackets] in a plain string as markup.
        drawn.add_row(*(Text(_cell(row.get(column))) for column in kept))
    console.print(drawn)


def fitted(needs: Mapping[str, int], cut: Sequence[tuple[str, int]], room: int) -> dict[str, int]:
    """Return the width of each column on a line of ``room`` characters. Pure.

    The columns of ``cut`` shrink in that order, each to its given width; one with width 0 is dropped. Room that is left
    then goes back to them in reverse order.
    """
    widths = dict(needs)

    def excess() -> int:
        return sum(widths.values()) + _GAP * len(widths) - room

    for column, least in cut:
        if column in widths and excess() > 0:
            widths[column] = min(widths[column], max(least, widths[column] - excess() if least else 0))
            if not widths[column]:
                del widths[column]
    for column, _ in reversed(cut):
        if column in widths:
            widths[column] += max(0, min(-excess(), needs[column] - widths[column]))
    return widths
