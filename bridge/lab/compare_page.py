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
from typing import TYPE_CHECKING, Any

from bridge.lab.command import write_whole
from bridge.lab.compare_modes import ComparePlan, Mode
from bridge.lab.compare_report import TableLine, lines, markdown, notes
from bridge.lab.compare_result import Cell, ModeResult, cell, complaints
from bridge.lab.compare_verdict import scope, verdict

if TYPE_CHECKING:
    from bridge.lab.compare_plots import Picture

NO_PICTURES = "no pictures, because matplotlib is not installed: pip install matplotlib"
#: From this width on, pictures have their panels side by side.
_WIDE = "(min-width: 64rem)"
_DARK = "(prefers-color-scheme: dark)"
_STYLE = """
:root { color-scheme: light dark; --ink: #222; --dim: #555; --ground: #fff; --faint: #e5e5e5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9da7b1; --ground: #0d1117; --faint: #30363d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); margin: 0 auto;
  max-width: 46rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
p, dl, .verdict { margin: 0.5rem 0; max-width: 46rem; } .faint { color: var(--dim); }
.verdict { border-left: 0.25rem solid var(--dim); padding: 0.2rem 0 0.2rem 0.8rem; }
.verdict h2 { margin: 0; } .verdict ul { margin: 0.3rem 0; padding-left: 1.1rem; }
img { width: 100%; height: auto; display: block; }
figure { margin: 1rem 0 2rem; break-inside: avoid; }
figcaption { font-size: 0.9rem; color: var(--dim); max-width: 46rem; margin-top: 0.4rem; }
table { border-collapse: collapse; font-size: 0.85rem; line-height: 1.3; font-variant-numeric: tabular-nums;
  width: 100%; max-width: 60rem; margin: 0.3rem 0 1.4rem; break-inside: avoid; }
caption { text-align: left; font-weight: bold; padding: 0.2rem 0; }
th, td { padding: 0.2rem 0 0.2rem 0.6rem; text-align: right; vertical-align: baseline; font-weight: normal; }
th:first-child { text-align: left; padding-left: 0; } td.text, th.text { text-align: left; }
td.why { color: var(--dim); font-size: 0.75rem; }
thead th { border-bottom: 1px solid var(--dim); vertical-align: bottom; color: var(--dim); }
tbody tr + tr > * { border-top: 1px solid var(--faint); }
.note { font-size: 0.8rem; color: var(--dim); margin: -1rem 0 1.4rem; }
dt { font-weight: bold; margin-top: 0.8rem; } dd { margin: 0; }
.mark { display: inline-block; width: 0.7em; height: 0.7em; margin-right: 0.4em; }
@media (max-width: 30rem) { body { padding: 0.7rem; } table { font-size: 0.75rem; } td.why { font-size: 0.7rem; }
  th, td { padding-left: 0.35rem; } .mark { margin-right: 0.25em; } }
@media (min-width: 64rem) { body { max-width: 100rem; padding: 1.5rem 3rem; }
  .tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(30rem, 1fr)); gap: 0 3rem; } }
@media print { body { max-width: none; padding: 0; } .tables { display: block; } }
"""


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
    pictures = _pictures(results, plan)
    if pictures is None:
        return f"Written to {folder}: compare.json and table.md; no report and {NO_PICTURES}."
    for picture in pictures:
        write_whole(folder / f"{picture.name}.png", picture.png)
        write_whole(folder / f"{picture.name}-dark.png", picture.dark_png)
    said = [*warnings, *(f"Faults: {sentence}." for sentence in complaints(results))]
    text = page(results, lines(results, plan), pictures, left_out, about, said, plan)
    write_whole(folder / "report.html", text)
    return f"Written to {folder}: report.html, compare.json, table.md and {len(pictures)} pictures."


def _pictures(results: Sequence[ModeResult], plan: ComparePlan) -> list[Picture] | None:
    """None without matplotlib, which is optional."""
    try:
        from bridge.lab.compare_plots import pictures
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        return None
    return pictures(results, plan)


def page(
    results: Sequence[ModeResult],
    found: Sequence[TableLine],
    pictures: Sequence[Picture],
    left_out: Mapping[str, str],
    about: Mapping[str, Any],
    said: Sequence[str],
    plan: ComparePlan,
) -> str:
    """The HTML file. ``said`` are sentences for its top: faults, and what is incomplete."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Ways to wait, {escape(about['date'][:10])}</title><style>{_STYLE}</style></head><body>",
        "<h1>Ways to wait, measured on one broker</h1>",
        f'<p class="faint">{escape(_about(about))}</p>',
        *(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in said),
        _verdict(results, plan, left_out),
        f"<p>{escape(SUMMARY)}</p>",
        _in_short(results, plan),
        *(_figure(picture) for picture in pictures),
        "<h2>All figures</h2>",
        f"<p>{escape(' '.join(notes(plan)))}</p>",
        '<div class="tables">',
        *_tables(results, found),
        "</div>",
        "<h2>The ways in full</h2><dl>",
        *(_described(result.mode) for result in results),
        "</dl>",
        *(f"<p>Left out: {escape(name)}, because {escape(reason)}.</p>" for name, reason in left_out.items()),
        "<h2>How it was measured</h2>",
        *(f"<p>{escape(sentence)}</p>" for sentence in EXPLANATION),
        f'<p class="faint">{escape(_settings(about))}</p>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


SUMMARY = (
    "A message that is to arrive later has to wait somewhere. These are ways to do that. Each got the same messages, "
    "on the same machine and RabbitMQ. Below: pictures, all figures, and how they were measured."
)
EXPLANATION = (
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


def _about(about: Mapping[str, Any]) -> str:
    machine = about["machine"]
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    programs = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f"{_date(about['date'])}. {machine['cpu']}, {machine['cores']} cores{memory}, {machine['system']}. {programs}."
    )


def _date(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return f"{moment.day} {moment:%B %Y, %H:%M %Z}"


def _verdict(results: Sequence[ModeResult], plan: ComparePlan, left_out: Mapping[str, str]) -> str:
    """The verdict as a list."""
    found = verdict(results, plan, left_out)
    items = "".join(f"<li><b>{escape(one.label)}:</b> {escape(one.text)}</li>" for one in found)
    return f'<section class="verdict"><h2>Verdict</h2><p>{escape(scope(plan))}:</p><ul>{items}</ul></section>'


def _in_short(results: Sequence[ModeResult], plan: ComparePlan) -> str:
    """A table that introduces the ways and their main figures."""
    rate = plan.rates[-1]
    head = "".join(
        f"<th>{text}</th>" for text in ("half late by at most", "99 % late by at most", "and rounded by at most")
    )
    caption = f"The ways, at {rate:,g} messages a second with delays of {plan.span}; in milliseconds"
    rows = [f"<table><caption>{caption}</caption><thead><tr><th></th>{head}</tr></thead><tbody>"]
    for result in results:
        step, mode = result.at_rate(rate), result.mode
        figures = None if step is None else step.figures
        names = ("p50_ms", "p99_ms", "rounding_max_ms")
        cells = _cells([cell(result, plan, "rate", name, figures) for name in names], ["", "", ""])
        what = f'{_mark(mode)}<b>{escape(mode.title)}</b><br><span class="faint">{escape(mode.short)}</span>'
        rows.append(f"<tr><th>{what}</th>{cells}</tr>")
    return "\n".join([*rows, "</tbody></table>"])


def _settings(about: Mapping[str, Any]) -> str:
    return "Settings: " + ", ".join(f"{name} = {value}" for name, value in about["settings"].items()) + "."


def _figure(picture: Picture) -> str:
    return (
        f"<h2>{escape(picture.title)}</h2><figure><picture>"
        f'<source media="{_WIDE} and {_DARK}" srcset="{_embedded(picture.wide_dark_svg)}">'
        f'<source media="{_WIDE}" srcset="{_embedded(picture.wide_svg)}">'
        f'<source media="{_DARK}" srcset="{_embedded(picture.dark_svg)}">'
        f'<img alt="{escape(picture.text)}" src="{_embedded(picture.svg)}"></picture>'
        f"<figcaption>{escape(picture.text)}</figcaption></figure>"
    )


def _embedded(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


def _tables(results: Sequence[ModeResult], found: Sequence[TableLine]) -> Iterator[str]:
    """A table for each group, a row for each mode: no wider than a phone."""
    for group, members in groupby(found, key=lambda line: line.group):
        lines = list(members)
        kinds = [' class="text"' if line.in_words else "" for line in lines]
        head = "".join(f"<th{kind}>{escape(line.label)}</th>" for kind, line in zip(kinds, lines, strict=True))
        rows = [f"<div><table><caption>{escape(group)}</caption><thead><tr><th></th>{head}</tr></thead><tbody>"]
        for place, result in enumerate(results):
            cells = _cells([line.cells[place] for line in lines], kinds)
            rows.append(f"<tr><th>{_mark(result.mode)}{escape(result.mode.title)}</th>{cells}</tr>")
        notes_below = (f'<p class="note">{escape(line.note)}</p>' for line in lines if line.note)
        yield "\n".join([*rows, "</tbody></table>", *notes_below, "</div>"])


def _cells(cells: Sequence[Cell], kinds: Sequence[str]) -> str:
    """A row's cells. Neighbours without a figure for the same reason become one cell. ``kinds`` are attributes."""
    parts = []
    for why, members in groupby(zip(cells, kinds, strict=True), key=lambda one: "" if one[0].text else one[0].why):
        found = list(members)
        if why:
            span = f' colspan="{len(found)}"' if len(found) > 1 else ""
            parts.append(f'<td class="why"{span}>{escape(why)}</td>')
        else:
            parts += [f"<td{kind}>{escape(one.text)}</td>" for one, kind in found]
    return "".join(parts)


def _described(mode: Mode) -> str:
    return (
        f"<dt>{_mark(mode)}{escape(mode.title)}</dt><dd>{escape(mode.how)} It cannot {escape(mode.cannot)}. "
        f"Can be cancelled: {escape(mode.cancel)}.</dd>"
    )


def _mark(mode: Mode) -> str:
    return f'<span class="mark" style="background:{mode.colour}"></span>'
