"""The report folder of a comparison: the document, the table, the pictures, and a page without network or script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.lab.command import write_whole
from bridge.lab.compare_modes import Mode
from bridge.lab.compare_result import ModeComparison
from bridge.lab.compare_table import Column, markdown, notes, tables
from bridge.lab.compare_verdict import scope, sentences, verdict

if TYPE_CHECKING:
    from bridge.lab.compare_plots import Chart

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


def missing() -> str:
    """What the report will lack, in a sentence, before the measurement; "" if nothing."""
    return "" if find_spec("matplotlib") else f"There will be no report and {NO_PICTURES}."


def write_figures(folder: Path, comparison: ModeComparison) -> dict[str, Any]:
    """Write the document and the table to an existing folder. Return the document. Raises ``PostdateError``."""
    found = comparison.document(sentences(comparison))
    write_whole(folder / "compare.json", json.dumps(found, indent=1) + "\n")
    write_whole(folder / "table.md", markdown(comparison))
    return found


def write_pictures(folder: Path, comparison: ModeComparison) -> str:
    """Write the pictures and the page beside the figures. Return a sentence about all files.

    Raises ``PostdateError``.
    """
    if not find_spec("matplotlib"):
        return f"Written to {folder}: compare.json and table.md; no report and {NO_PICTURES}."
    from bridge.lab.compare_plots import charts

    drawn = charts(comparison)
    for chart in drawn:
        write_whole(folder / f"{chart.name}.png", chart.light)
        write_whole(folder / f"{chart.name}-dark.png", chart.dark)
    write_whole(folder / "report.html", page(comparison, drawn))
    return f"Written to {folder}: report.html, compare.json, table.md and {len(drawn)} pictures."


def page(comparison: ModeComparison, drawn: Sequence[Chart] = ()) -> str:
    """The HTML file. Its top says which faults there are, and what is incomplete."""
    plan, about = comparison.plan, comparison.about
    modes = [result.mode for result in comparison.measured]
    warnings = [*comparison.unfinished(), *(f"Faults: {sentence}." for sentence in comparison.complaints())]
    absent = (f"<p>Left out: {escape(name)}, because {escape(why)}.</p>" for name, why in comparison.left_out.items())
    return _PAGE.format(
        date=escape(about["date"][:10]),
        about=escape(_about(about)),
        warnings="\n".join(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in warnings),
        scope=escape(scope(plan)),
        verdict="".join(f"<li><b>{escape(each.label)}:</b> {escape(each.text)}</li>" for each in verdict(comparison)),
        ways="\n".join([*map(_described, modes), *absent]),
        figures="\n".join(map(_figure, drawn)),
        notes=escape(" ".join(notes(plan))),
        tables="\n".join(_table(modes, title, columns) for title, columns in tables(comparison).items()),
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


def _figure(chart: Chart) -> str:
    light, dark = (f"data:image/png;base64,{b64encode(png).decode()}" for png in (chart.light, chart.dark))
    return (
        f'<h2>{escape(chart.title)}</h2><figure><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{dark}"><img alt="{escape(chart.text)}" src="{light}"></picture>'
        f"<figcaption>{escape(chart.text)}</figcaption></figure>"
    )


def _table(modes: Sequence[Mode], title: str, columns: Sequence[Column]) -> str:
    """A row for each mode: no wider than a phone."""
    head = "".join(f"<th>{escape(asked.label)}</th>" for asked, _ in columns)
    parts = [f"<table><caption>{escape(title)}</caption><thead><tr><th></th>{head}</tr></thead><tbody>"]
    for mode, *row in zip(modes, *(cells for _, cells in columns), strict=True):
        cells = (f"<td>{escape(text)}</td>" if text else f'<td class="why">{escape(why)}</td>' for text, why in row)
        parts.append(f"<tr><th>{_mark(mode)}{escape(mode.title)}</th>{''.join(cells)}</tr>")
    notes_below = (f'<p class="note">{escape(asked.note)}</p>' for asked, _ in columns if asked.note)
    return "\n".join([*parts, "</tbody></table>", *notes_below])


def _mark(mode: Mode) -> str:
    return f'<span class="mark" style="background:{mode.colour}"></span>'
