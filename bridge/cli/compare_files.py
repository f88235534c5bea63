"""What ``compare`` leaves: a folder with the document, the page and the pictures, and a table on the terminal."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.cli.report_file import write_whole
from bridge.core.errors import SettingsError
from bridge.lab.compare.lines import lines
from bridge.lab.compare.page import page
from bridge.lab.compare.plan import Plan, caution
from bridge.lab.compare.result import Result, complaints
from bridge.lab.compare.summary import markdown
from bridge.settings import Settings
from bridge.telemetry.printable import say

if TYPE_CHECKING:
    from bridge.lab.compare.plots import Picture

#: How many letters an answer has at least, and the blanks between two.
_ANSWER_LEAST, _BETWEEN = 7, 2
_NO_PICTURES = "no pictures, because matplotlib is not installed: pip install matplotlib"


def before_it_starts() -> str:
    """What will be missing in the report, in a sentence, while it can still be had; "" where nothing will."""
    return "" if find_spec("matplotlib") else f"There will be no report and {_NO_PICTURES}."


def folder_for(out: Path | None, now: datetime) -> Path:
    """The folder of the report, made if need be, so that a wrong one is told of before anything is measured.

    Raises ``SettingsError`` where nothing can be written.
    """
    folder = out or Path(f"compare-{now:%Y-%m-%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise SettingsError(f"--out: nothing can be written to {folder} ({error.strerror})") from None
    return folder


def write_figures(
    folder: Path, found: Mapping[str, Any], results: Sequence[Result], plan: Plan, about: Mapping[str, Any]
) -> None:
    """Write the document and the table to a folder that is there. Raises ``PostdateError``."""
    write_whole(folder / "compare.json", json.dumps(found, indent=1) + "\n")
    write_whole(folder / "table.md", markdown(results, plan, about))


def write_pictures(
    folder: Path,
    results: Sequence[Result],
    left_out: Mapping[str, str],
    plan: Plan,
    about: Mapping[str, Any],
    open_ends: Sequence[str],
) -> str:
    """Write the pictures and the page beside the figures; a sentence about all files. Raises ``PostdateError``."""
    pictures = _pictures(results, plan)
    if pictures is None:
        return f"Written to {folder}: compare.json and table.md; no report and {_NO_PICTURES}."
    for picture in pictures:
        write_whole(folder / f"{picture.name}.png", picture.png)
        write_whole(folder / f"{picture.name}-dark.png", picture.dark_png)
    said = [*open_ends, *(f"Not as it must be. {sentence}." for sentence in complaints(results))]
    text = page(results, lines(results, plan), pictures, left_out, about, said, plan)
    write_whole(folder / "report.html", text)
    return f"Written to {folder}: report.html, compare.json, table.md and {len(pictures)} pictures."


def print_table(results: Sequence[Result], plan: Plan) -> None:
    """The figures for people: a table for each group of questions, a row for each mode. In a pipe there is
    a row for each figure of each mode, with tabs."""
    if not sys.stdout.isatty():
        _print_piped(results, plan)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    widest = max(len(result.mode.title) for result in results)
    for group, members in groupby(lines(results, plan), key=lambda line: line.group):
        found = list(members)
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _BETWEEN, 0, 0))
        table.add_column(width=widest)
        for line in found:
            words = any(cell[:1].isalpha() for cell in line.cells)
            table.add_column(line.label, justify="left" if words else "right", min_width=_ANSWER_LEAST)
        for place, result in enumerate(results):
            cells = [line.cells[place] for line in found]
            if any(cells):
                table.add_row(result.mode.title, *cells)
        console.print(group, style="bold", highlight=False)
        console.print(table)
    if caution(plan):
        console.print(caution(plan), highlight=False)


def _print_piped(results: Sequence[Result], plan: Plan) -> None:
    """A row for each figure of each mode, for programs."""
    print("group", "figure", "mode", "value", sep="\t")
    for line in lines(results, plan):
        for result, cell in zip(results, line.cells, strict=True):
            if cell:
                print(line.group, line.label, result.mode.title, cell, sep="\t")
    if caution(plan):
        say(caution(plan))


def settings_that_matter(settings: Settings) -> dict[str, Any]:
    """Those that move the figures. No addresses and no secrets."""
    return {
        "redis.durability": settings.redis.durability,
        "redis.shards": settings.redis.shards,
        "rabbitmq.queue_type": settings.rabbitmq.queue_type,
        "levels.queue_type": settings.levels.queue_type or settings.rabbitmq.queue_type,
        "levels.rounding": settings.levels.rounding,
        "bridge.workers": settings.bridge.workers,
        "dispatch.pace_ms": settings.dispatch.pace,
    }


def _pictures(results: Sequence[Result], plan: Plan) -> list[Picture] | None:
    """None where matplotlib is missing."""
    try:
        from bridge.lab.compare.plots import pictures
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        return None
    return pictures(results, plan)
