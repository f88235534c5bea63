"""The report of a comparison as one HTML file that needs nothing else: no network, no script. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bridge.compare.lines import Line
from bridge.compare.modes import Mode
from bridge.compare.result import Result

if TYPE_CHECKING:
    from bridge.compare.plots import Picture

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto; max-width: 46rem;
  padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0.5rem 0; } h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; }
p { margin: 0.5rem 0; } small, .faint { color: #555; }
img { width: 100%; height: auto; display: block; }
figure { margin: 1rem 0 2rem; break-inside: avoid; } figcaption { font-size: 0.9rem; color: #444; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 0.2rem 0.4rem; text-align: right; vertical-align: top; }
th:first-child { text-align: left; font-weight: normal; min-width: 6.5rem; }
thead th { border-bottom: 2px solid #222; vertical-align: bottom; }
tbody th.group { font-weight: bold; padding-top: 0.8rem; text-align: left; }
tbody tr + tr:not(.head) td, tbody tr + tr:not(.head) th { border-top: 1px solid #e5e5e5; }
dt { font-weight: bold; margin-top: 0.8rem; } dd { margin: 0; }
.mark { display: inline-block; width: 0.7em; height: 0.7em; margin-right: 0.4em; }
@media (max-width: 30rem) { table { font-size: 0.75rem; } th, td { padding: 0.15rem 0.2rem; }
  th:first-child { min-width: 5rem; } }
@media print { body { max-width: none; padding: 0; } .scroll { overflow: visible; } table { font-size: 0.7rem; } }
"""


def page(
    results: Sequence[Result],
    found: Sequence[Line],
    pictures: Sequence[Picture],
    left_out: Mapping[str, str],
    about: Mapping[str, Any],
    said: Sequence[str],
) -> str:
    """The whole file. ``said`` are sentences that stand at the top: what is wrong, what was not finished."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Ways to wait, {escape(about['date'][:10])}</title><style>{_STYLE}</style></head><body>",
        "<h1>Ways to wait, measured on one broker</h1>",
        f'<p class="faint">{escape(_about(about))}</p>',
        *(f"<p><strong>{escape(sentence)}</strong></p>" for sentence in said),
        *(_figure(picture) for picture in pictures),
        "<h2>All figures</h2>",
        _table(results, found),
        "<h2>The ways</h2><dl>",
        *(_described(result.mode) for result in results),
        "</dl>",
        *(f"<p>Left out: {escape(name)}, because {escape(reason)}.</p>" for name, reason in left_out.items()),
        "<h2>How it was measured</h2>",
        *(f"<p>{escape(sentence)}</p>" for sentence in EXPLANATION),
        f'<p class="faint">{escape(_settings(about))}</p>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


EXPLANATION = (
    "Lateness is arrival at the consumer minus the moment the producer asked for, both by the clock of the measuring "
    "machine, so it holds the way to the broker and back: the line of no delay shows how much that is. Where a way "
    "rounds delays up by its own rule, lateness counts from the rounded delay, and the rounding is told apart; early "
    "counts from what was asked.",
    "Every way got the same messages: the same number, size and delays, from the same seed, persistent and with "
    "publisher confirms, to one classic queue that is consumed without acknowledgements.",
    "Short behind long is the median lateness of the quarter of messages with the shortest delays minus that of the "
    "quarter with the longest. Out of order are messages that came after one published later, all with the same delay.",
    "The broker's processor time and memory are those of its whole process, whatever else it did; they are left out "
    "where it is not on this machine, and memory where it gave back more meanwhile than it took. One run, one "
    "machine: figures that differ by a fifth are the same.",
)


def _about(about: Mapping[str, Any]) -> str:
    date, machine = about["date"][:16].replace("T", " "), about["machine"]
    memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
    programs = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return f"{date}. {machine['cpu']}, {machine['cores']} cores{memory}, {machine['system']}. {programs}."


def _settings(about: Mapping[str, Any]) -> str:
    return "Settings: " + ", ".join(f"{name} = {value}" for name, value in about["settings"].items()) + "."


def _figure(picture: Picture) -> str:
    data = b64encode(picture.svg).decode()
    return (
        f"<h2>{escape(picture.title)}</h2><figure>"
        f'<img alt="{escape(picture.text)}" src="data:image/svg+xml;base64,{data}">'
        f"<figcaption>{escape(picture.text)}</figcaption></figure>"
    )


def _table(results: Sequence[Result], found: Sequence[Line]) -> str:
    head = "".join(f"<th>{_mark(result.mode)}{escape(result.mode.title)}</th>" for result in results)
    rows = [f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>']
    for group, lines in groupby(found, key=lambda line: line.group):
        rows.append(f'<tr class="head"><th class="group" colspan="{len(results) + 1}">{escape(group)}</th></tr>')
        for line in lines:
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in line.cells)
            rows.append(f"<tr><th>{escape(line.label)}</th>{cells}</tr>")
    return "\n".join([*rows, "</tbody></table></div>"])


def _described(mode: Mode) -> str:
    return (
        f"<dt>{_mark(mode)}{escape(mode.title)}</dt><dd>{escape(mode.how)} It cannot {escape(mode.cannot)}. "
        f"Can be cancelled: {escape(mode.cancel)}.</dd>"
    )


def _mark(mode: Mode) -> str:
    return f'<span class="mark" style="background:{mode.colour}"></span>'
