"""The report folder of a comparison: the document, the table, the pictures, and a page without network or script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from bridge.lab.command import write_whole
from bridge.lab.compare_modes import ComparePlan, Mode
from bridge.lab.compare_result import ModeResult, complaints
from bridge.lab.compare_table import TableLine, lines, markdown, notes
from bridge.lab.compare_verdict import scope, verdict

NO_PICTURES = "no pictures, because matplotlib is not installed: pip install matplotlib"
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Ways to wait, {date}</title><style>
:root {{ color-scheme: light dark; --faint: #8884; --dim: light-dark(#555, #9da7b1); }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem;
  color: light-dark(#222, #e6edf3); background: light-dark(#fff, #0d1117); }}
figure {{ margin: 1rem 0 2rem; overflow-x: auto; }} img {{ width: 100%; min-width: 36rem; }}
table {{ border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; width: 100%;
  margin: 0.3rem 0 1.4rem; }}
caption {{ text-align: left; font-weight: bold; }} .faint, .why, figcaption, dd {{ color: var(--dim); }}
th, td {{ padding: 0.2rem 0 0.2rem 0.6rem; text-align: right; font-weight: normal; }}
th:first-child {{ text-align: left; padding-left: 0; }} tr > * {{ border-bottom: 1px solid var(--faint); }}
.why, .note, figcaption {{ font-size: 0.8rem; }}
.mark {{ display: inline-block; width: 0.7em; height: 0.7em; margin-right: 0.4em; }}
</style></head><body>
<h1>Ways to wait, measured on one broker</h1>
<p class="faint">{about}</p>
{warnings}
<h2>Verdict</h2><p>{scope}:</p><ul>{verdict}</ul>
<h2>The ways</h2><dl>{ways}</dl>
{figures}
<h2>All figures</h2><p>{notes}</p>
{tables}
<h2>How it was measured</h2>{method}
<p class="faint">Settings: {settings}.</p>
</body></html>
"""
METHOD = (
    "Lateness is the arrival at the consumer minus the requested moment, both by the measuring machine's clock. It "
    "includes the round trip to the broker: the line of no delay shows how much that is. Where a way rounds delays by "
    "its own rule, lateness counts from the rounded delay, and the rounding has figures of its own. Early counts from "
    "the requested moment.",
    "Every way got the same messages: the same number, size and delays, from the same seed, persistent and with "
    "publisher confirms, to one classic queue that is consumed without acknowledgements.",
    "Where a way rounds, the order of messages that are due at one moment is not checked. The broker's processor time "
    "and memory are those of its whole process, whatever else it did. They are left out if it runs on another machine. "
    "One run on one machine: figures that differ by a fifth are the same.",
)


class Picture(NamedTuple):
    """One picture as PNG, on a light ground and on a dark one. ``text`` is its description and alternative."""

    name: str
    title: str
    text: str
    light: bytes
    dark: bytes


def missing() -> str:
    """What the report will lack, in a sentence, before the measurement; "" if nothing."""
    return "" if find_spec("matplotlib") else f"There will be no report and {NO_PICTURES}."


def write_figures(
    folder: Path, found: Mapping[str, Any], results: Sequence[ModeResult], plan: ComparePlan, about: Mapping[str, Any]
) -> None:
    """Write the document and the table to an existing folder. Raises ``PostdateError``."""
    write_whole(folder / "compare.json", json.dumps(found, indent=1) + "\n")
    write_whole(folder / "table.md", markdown(results, plan, about))


def write_pictures(
    folder: Path,
    results: Sequence[ModeResult],
    left_out: Mapping[str, str],
    plan: ComparePlan,
    about: Mapping[str, Any],
    warnings: Sequence[str],
) -> str:
    """Write the pictures and the page beside the figures. Return a sentence about all files.

    Raises ``PostdateError``.
    """
    try:
        from bridge.lab.compare_plots import DARK, LIGHT, charts
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        return f"Written to {folder}: compare.json and table.md; no report and {NO_PICTURES}."
    pictures = [
        Picture(chart.name, chart.title, chart.text, chart.png(LIGHT), chart.png(DARK))
        for chart in charts(results, plan)
    ]
    for picture in pictures:
        write_whole(folder / f"{picture.name}.png", picture.light)
        write_whole(folder / f"{picture.name}-dark.png", picture.dark)
    sentences = [*warnings, *(f"Faults: {sentence}." for sentence in complaints(results))]
    text = page(results, lines(results, plan), pictures, left_out, about, sentences, plan)
    write_whole(folder / "report.html", text)
    return f"Written to {folder}: report.html, compare.json, table.md and {len(pictures)} pictures."


def page(
    results: Sequence[ModeResult],
    found: Sequence[TableLine],
    pictures: Sequence[Picture],
    left_out: Mapping[str, str],
    about: Mapping[str, Any],
    warnings: Sequence[str],
    plan: ComparePlan,
) -> str:
    """The HTML file. ``warnings`` are sentences for its top: faults, and what is incomplete."""
    absent = (f"<p>Left out: {escape(name)}, because {escape(reason)}.</p>" for name, reason in left_out.items())
    judgements = verdict(results, plan, left_out)
    return _PAGE.format(
        date=escape(about["date"][:10]),
        about=escape(_about(about)),
        warnings="\n".join(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in warnings),
        scope=escape(scope(plan)),
        verdict="".join(f"<li><b>{escape(each.label)}:</b> {escape(each.text)}</li>" for each in judgements),
        ways="\n".join([*(_described(result.mode) for result in results), *absent]),
        figures="\n".join(map(_figure, pictures)),
        notes=escape(" ".join(notes(plan))),
        tables="\n".join(_tables(results, found)),
        method="".join(f"<p>{escape(paragraph)}</p>" for paragraph in METHOD),
        settings=escape(", ".join(f"{name} = {value}" for name, value in about["settings"].items())),
    )


def _about(about: Mapping[str, Any]) -> str:
    machine, moment = about["machine"], datetime.fromisoformat(about["date"])
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    programs = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    when = f"{moment.day} {moment:%B %Y, %H:%M %Z}"
    return f"{when}. {machine['cpu']}, {machine['cores']} cores{memory}, {machine['system']}. {programs}."


def _described(mode: Mode) -> str:
    return (
        f"<dt>{_mark(mode)}<b>{escape(mode.title)}</b></dt><dd>{escape(mode.how)} It cannot {escape(mode.cannot)}. "
        f"Can be cancelled: {escape(mode.cancel)}.</dd>"
    )


def _figure(picture: Picture) -> str:
    light, dark = (f"data:image/png;base64,{b64encode(png).decode()}" for png in (picture.light, picture.dark))
    return (
        f'<h2>{escape(picture.title)}</h2><figure><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{dark}"><img alt="{escape(picture.text)}" src="{light}"></picture>'
        f"<figcaption>{escape(picture.text)}</figcaption></figure>"
    )


def _tables(results: Sequence[ModeResult], found: Sequence[TableLine]) -> Iterator[str]:
    """A table for each group, a row for each mode: no wider than a phone."""
    for group, members in groupby(found, key=lambda line: line.question.group):
        lines = list(members)
        head = "".join(f"<th>{escape(line.question.label)}</th>" for line in lines)
        rows = [f"<table><caption>{escape(group)}</caption><thead><tr><th></th>{head}</tr></thead><tbody>"]
        for place, result in enumerate(results):
            cells = "".join(
                f"<td>{escape(cell.text)}</td>" if cell.text else f'<td class="why">{escape(cell.why)}</td>'
                for cell in (line.cells[place] for line in lines)
            )
            rows.append(f"<tr><th>{_mark(result.mode)}{escape(result.mode.title)}</th>{cells}</tr>")
        notes_below = (f'<p class="note">{escape(line.question.note)}</p>' for line in lines if line.question.note)
        yield "\n".join([*rows, "</tbody></table>", *notes_below])


def _mark(mode: Mode) -> str:
    return f'<span class="mark" style="background:{mode.colour}"></span>'
