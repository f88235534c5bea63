"""What a command prints: data to standard output, talk to standard error, and nothing that a terminal would obey."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bridge.cli.options import Output
from bridge.telemetry.printable import printable

Row = Mapping[str, Any]

_ENDLESS = 1000
#: Blanks after each column of a table in which every row is one line.
_GAP = 2


def document(value: Any) -> None:
    """One JSON document. ASCII only: escapes of other characters are valid JSON and harmless to a terminal."""
    print(json.dumps(value, indent=2, default=str))


def line(value: Any) -> None:
    """One JSON document on one line."""
    print(json.dumps(value, separators=(",", ":"), default=str))


def rows(output: Output, columns: Sequence[str], found: Iterable[Row], shown: Mapping[str, str] | None = None) -> None:
    """Rows of data: all their values in JSON, those of ``columns`` in text. ``shown`` gives columns other headings.

    A pipe gets a line of headings too, and tabs: the same columns in the same order, whatever is in the rows.
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
    """One thing: all of it in JSON, ``text`` (name and value) for people."""
    if output is Output.TEXT:
        pairs = list(text)
        width = max((len(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            print(f"{printable(name):<{width}}  {printable(value)}".rstrip())
    elif output is Output.JSON:
        document(found)
    else:
        line(found)


def _cell(value: Any) -> str:
    return "" if value is None else printable(str(value))


def width() -> int:
    """Of the terminal; one that does not tell has no end, so that nothing is cut for it."""
    return shutil.get_terminal_size((_ENDLESS, 0)).columns


def table(
    columns: Sequence[str], found: Sequence[Row], shown: Mapping[str, str], cut: Sequence[tuple[str, int]] = ()
) -> None:
    """A table on the terminal, without the columns that are empty in all rows.

    With ``cut`` every row is one line: see ``fitted``.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
        made = Table(box=None, padding=(0, _GAP, 0, 0))
        for column in kept:
            made.add_column(heads[column], no_wrap=True, overflow="ellipsis", width=widths[column])
    else:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in kept:
            made.add_column(heads[column], overflow="fold", no_wrap=column == "id")
    for row in found:
        # Text, because rich would read [brackets] in a plain string as markup.
        made.add_row(*(Text(_cell(row.get(column))) for column in kept))
    console.print(made)


def fitted(needs: Mapping[str, int], cut: Sequence[tuple[str, int]], room: int) -> dict[str, int]:
    """Pure: how wide each column is on a line with so much room. The columns of ``cut`` give way in that order, each to
    so many characters, or altogether where that is none; what is left over then goes back, last in, first out."""
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
