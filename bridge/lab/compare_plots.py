"""The pictures of a comparison. Needs matplotlib, the extra ``compare``.

A mode has the same colour and line style in all pictures. Each picture has a light and a dark version.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from bridge.lab.compare_modes import BY_NAME, Mode
from bridge.lab.compare_result import TIMELINE_BIN_S, CompareStep, ModeComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Inches. Panels stand side by side, and narrow screens show the picture smaller.
_WIDTH, _PANEL_HEIGHT = 9.0, 2.4


class Theme(NamedTuple):
    """The colours of a picture. ``lift`` (0 to 1) moves a mode's colour towards ``ink``, away from a dark ground."""

    ground: str
    ink: str
    faint: str
    lift: float

    def colour(self, mode: Mode) -> tuple[float, float, float]:
        pairs = zip(to_rgb(mode.colour), to_rgb(self.ink), strict=True)
        red, green, blue = (own + (ink - own) * self.lift for own, ink in pairs)
        return red, green, blue

    def style(self) -> dict[Any, Any]:
        inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        return {
            **dict.fromkeys(inked, self.ink),
            **dict.fromkeys(("axes.facecolor", "figure.facecolor"), self.ground),
            "font.family": "DejaVu Sans",
            "axes.titlesize": "medium",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.color": self.faint,
            "legend.frameon": False,
        }


LIGHT, DARK = Theme("#ffffff", "#222222", "#dddddd", 0), Theme("#0d1117", "#e6edf3", "#30363d", 0.2)
#: Line styles, for readers who cannot tell two colours apart.
_DASHES: Sequence[Any] = ("-", "-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 2)), "-.")
#: The lowest lateness on a logarithmic axis: clocks are no more exact.
_LEAST_MS = 0.1
#: The approximate number of bars in a timeline.
_BARS = 110
_SHARES = {0.5: "half", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"}
#: Title and description of each picture.
_TEXTS = {
    "lateness": (
        "How late",
        "How late messages arrived, a line for each way; lower is better. Look above 99 %: one message in a hundred "
        "was later than that. Lateness counts from the rounded due time; the next picture includes the rounding.",
    ),
    "delays": (
        "Short delays and long ones",
        "Each dot is a message: how much later than requested it arrived, rounding included, at {rate:,g} messages a "
        "second. A flat, low band is best. A slope is rounding up or, in one TTL queue, a short delay behind a long "
        "one. A single low dot asked for exactly a level or a whole second.",
    ),
    "throughput": (
        "How many",
        "One flood: {count:,} messages with the same delay, published as fast as the broker confirms them. Pale: "
        "messages published per second. Full: messages delivered per second, once they were due. That is how fast a "
        "flood drains, and no rate that can be held.",
    ),
    "burst": (
        "Around a burst",
        "{count:,} messages that are due at one moment: when and how fast they were published (grey) and delivered "
        "(coloured). High and narrow, just behind the dashed line, is best. A start far behind it is rounding.",
    ),
}
#: What is drawn of each mode.
_Drawn = Sequence[tuple[Mode, CompareStep]]


@dataclass
class Chart:
    """What a picture shows. ``text`` is its description and alternative, ``draw`` makes its figure in a theme."""

    name: str
    title: str
    text: str
    draw: Callable[[Theme], Figure]

    @cached_property
    def light(self) -> bytes:
        return self._png(LIGHT)

    @cached_property
    def dark(self) -> bytes:
        return self._png(DARK)

    def _png(self, theme: Theme) -> bytes:
        file = io.BytesIO()
        with mpl.rc_context(theme.style()):
            self.draw(theme).savefig(file, format="png", dpi=160)
        return file.getvalue()


def charts(comparison: ModeComparison) -> list[Chart]:
    """The charts for which there are figures, in the order of the page."""

    def drawn(kind: str, rate: float = 0) -> _Drawn:
        return [(result.mode, step) for result in comparison.measured if (step := result.step(kind, rate))]

    plan = comparison.plan
    rates = {rate: steps for rate in plan.rates if (steps := drawn("rate", rate))}
    dots = [(mode, step) for mode, step in drawn("rate", plan.rates[-1]) if step.by_delay]
    bursts = [(mode, step) for mode, step in drawn("burst") if step.timeline]
    found: dict[str, tuple[Callable[[Any, Theme], Figure], Any]] = {
        "lateness": (_lateness, rates),
        "delays": (_delays, dots),
        "throughput": (_throughput, drawn("flood")),
        "burst": (_burst, bursts),
    }
    texts = {name: text.format(rate=plan.rates[-1], count=plan.count) for name, (_, text) in _TEXTS.items()}
    return [
        Chart(name, _TEXTS[name][0], texts[name], partial(draw, steps))
        for name, (draw, steps) in found.items()
        if steps
    ]


def _panels(titles: Sequence[str], columns: int, below: str, left: str) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title. All share their scales, and each has its own axis numbers."""
    across = min(columns, len(titles))
    down = -(-len(titles) // across)
    figure = Figure(figsize=(_WIDTH, 0.6 + _PANEL_HEIGHT * down), layout="constrained")
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for unused in panels[len(titles) :]:
        unused.remove()
    for title, axes in zip(titles, panels, strict=False):
        axes.set_title(title)
        axes.tick_params(axis="both", labelbottom=True, labelleft=True)
        axes.grid(axis="y")
    figure.supxlabel(below, fontsize="medium")
    figure.supylabel(left, fontsize="medium")
    return figure, panels[: len(titles)]


def _lateness(rates: dict[float, _Drawn], theme: Theme) -> Figure:
    """A panel for each rate: lateness over the share of messages, with scales that show the tail."""
    titles = [f"{rate:,g} messages a second" for rate in rates]
    figure, panels = _panels(titles, 2, "of all messages", "late by at most, ms")
    last = 2.0
    for axes, steps in zip(panels, rates.values(), strict=True):
        for mode, step in steps:
            if not step.curve:
                continue
            # 1 / (1 - share): 2 for half, 1000 for 99.9 %. The maximum is placed by its single message.
            least = 1 / max(float(step.figures["messages"] or 1), 1.0)
            xs = [1 / max(1 - share, least) for share, _ in step.curve]
            dashes = _DASHES[list(BY_NAME).index(mode.name) % len(_DASHES)]
            ys = [ms for _, ms in step.curve]
            axes.plot(xs, ys, color=theme.colour(mode), linewidth=2, linestyle=dashes, label=mode.title)
            last = max(last, xs[-1])
        axes.set(xscale="log")
        _late_axis(axes)
    ticks = {1 / (1 - share): name for share, name in _SHARES.items() if 1 / (1 - share) <= last}
    panels[0].xaxis.set_major_locator(FixedLocator(list(ticks)))
    panels[0].xaxis.set_major_formatter(FixedFormatter(list(ticks.values())))
    panels[0].xaxis.set_minor_locator(NullLocator())
    panels[0].set_xlim(1, last * 1.02)
    named = {text: line for axes in panels for line, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(BY_NAME))
    return figure


def _delays(drawn: _Drawn, theme: Theme) -> Figure:
    """Each dot is a message: its requested delay, and how much later it arrived."""
    figure, panels = _panels([mode.title for mode, _ in drawn], 4, "requested delay", "later by, ms")
    for (mode, step), axes in zip(drawn, panels, strict=True):
        xs, ys = zip(*((asked / 1000, max(late, _LEAST_MS)) for asked, late in step.by_delay), strict=True)
        axes.scatter(xs, ys, s=5, color=theme.colour(mode), linewidths=0, alpha=0.7, rasterized=True)
        _late_axis(axes)
    _in_seconds(panels[0])
    return figure


def _throughput(floods: _Drawn, theme: Theme) -> Figure:
    """Two bars for each mode."""
    figure = Figure(figsize=(_WIDTH, 0.6 + 0.6 * len(floods)), layout="constrained")
    axes = figure.subplots()
    for place, (mode, flood) in enumerate(floods):
        for offset, name, shade, word in ((-0.19, "publish_per_s", 0.45, "in"), (0.19, "deliver_per_s", 1.0, "out")):
            value = float(flood.figures[name] or 0)
            bar = axes.barh(place + offset, value, 0.34, color=theme.colour(mode), alpha=shade)
            axes.bar_label(bar, [f"{value:,.0f} {word}"], padding=4)
    axes.set_yticks(range(len(floods)), [mode.title for mode, _ in floods])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("messages a second")
    return figure


def _burst(bursts: _Drawn, theme: Theme) -> Figure:
    """A panel for each mode: publishing and arrivals around the common due moment."""
    below = "from the moment at which all are due"
    figure, panels = _panels([mode.title for mode, _ in bursts], 4, below, "thousands a second")
    begin = min(float(step.figures["published_from_s"] or 0) for _, step in bursts)
    end = max(at for _, step in bursts for at, _ in step.timeline)
    width = TIMELINE_BIN_S * max(1, round((end - begin) / TIMELINE_BIN_S / _BARS))
    # Multiples of the width, so that no bar spans the due moment.
    edges = [place * width for place in range(floor(begin / width), floor(end / width) + 2)]
    for (mode, step), axes in zip(bursts, panels, strict=True):
        middles = [start + TIMELINE_BIN_S / 2 for start, _ in step.timeline]
        weights = [count / width / 1000 for _, count in step.timeline]
        axes.hist(middles, edges, weights=weights, histtype="stepfilled", color=theme.colour(mode))
        since, until = (float(step.figures[name] or 0) for name in ("published_from_s", "published_to_s"))
        rate = float(step.figures.get("publish_per_s") or 0) / 1000
        axes.stairs([rate], [since, until], fill=True, color=theme.ink, alpha=0.4)
        axes.axvline(0, color=theme.ink, linewidth=1, linestyle=(0, (3, 3)))
    panels[-1].set_xlim(begin - 0.1, max(end, 0.3) + 0.2)
    _in_seconds(panels[0])
    return figure


def _late_axis(axes: Axes) -> None:
    """Limit the axis to the lowest lateness. Lines below it leave the picture instead of being clamped."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, _LEAST_MS), max(high, 10 * _LEAST_MS))
    axes.yaxis.set_major_locator(LogLocator(numticks=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _in_seconds(axes: Axes) -> None:
    axes.xaxis.set_major_formatter("{x:g} s")
    axes.locator_params(axis="x", nbins=5)
