"""The pictures of a comparison. Needs matplotlib, the extra ``compare``.

One colour and one kind of line a mode in all of them, each picture on white and on dark; each thing is named where it
is drawn. Sizes are such that a picture that is scaled down to the width of a phone can still be read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from bridge.lab.compare.measure import TIMELINE_BIN_S, Points, Step
from bridge.lab.compare.modes import MODES, Mode
from bridge.lab.compare.plan import Plan
from bridge.lab.compare.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import RcKeyType

_WIDTH = 4.8


@dataclass(frozen=True)
class Theme:
    """What a picture is drawn on and with. ``lines`` and ``letters`` say how far a mode's colour is moved towards
    ``ink`` (0 to 1): the paler of them are too pale for letters, the darker ones too dark for a dark ground."""

    ground: str
    ink: str
    dim: str
    faint: str
    lines: float
    letters: float

    def line(self, mode: Mode) -> tuple[float, float, float]:
        """The mode's colour for lines and bars."""
        return self._moved(mode.colour, self.lines)

    def letter(self, mode: Mode) -> tuple[float, float, float]:
        """The mode's colour for text."""
        return self._moved(mode.colour, self.letters)

    def style(self) -> dict[RcKeyType, Any]:
        """matplotlib's settings."""
        return {
            "font.family": "DejaVu Sans",
            "font.size": 11,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": self.dim,
            "axes.facecolor": self.ground,
            "axes.labelcolor": self.ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": self.ink,
            "xtick.color": self.ink,
            "ytick.color": self.ink,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "figure.facecolor": self.ground,
            "svg.hashsalt": "postdate",
        }

    def _moved(self, colour: str, share: float) -> tuple[float, float, float]:
        red, green, blue = (
            one + (other - one) * share for one, other in zip(to_rgb(colour), to_rgb(self.ink), strict=True)
        )
        return red, green, blue


LIGHT = Theme("#ffffff", "#222222", "#777777", "#dddddd", lines=0, letters=0.4)
DARK = Theme("#0d1117", "#e6edf3", "#8b949e", "#30363d", lines=0.2, letters=0.45)
#: Who cannot tell two colours apart can tell these.
_DASHES: Sequence[Any] = ("-", "-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 2)), "-.")
#: Below this a lateness is not worth a decade of paper: clocks are read to about as much.
_LEAST_MS = 0.1
#: About so many bars fit into a timeline.
_BARS = 110
#: Labels of lines stay so far apart, as a share of the height.
_LABEL_GAP = 0.075
_SHARES = {0.5: "half", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"}


@dataclass(frozen=True)
class Picture:
    """One picture, in two formats and on two grounds; ``text`` says in a sentence what it shows, also to who cannot see
    it."""

    name: str
    title: str
    text: str
    svg: bytes
    png: bytes
    dark_svg: bytes
    dark_png: bytes


@dataclass(frozen=True)
class Drawing:
    """A picture on one ground."""

    name: str
    title: str
    text: str
    figure: Figure


def pictures(results: Sequence[Result], plan: Plan) -> list[Picture]:
    """All that there is something to draw for."""
    found = []
    for draw in (lateness, by_delay, throughput, burst):
        light, dark = (_drawn(draw, results, plan, theme) for theme in (LIGHT, DARK))
        if light is not None and dark is not None:
            drawing, svg, png = light
            found.append(Picture(drawing.name, drawing.title, drawing.text, svg, png, *dark[1:]))
    return found


def _drawn(
    draw: Callable[[Sequence[Result], Plan, Theme], Drawing | None],
    results: Sequence[Result],
    plan: Plan,
    theme: Theme,
) -> tuple[Drawing, bytes, bytes] | None:
    with mpl.rc_context(theme.style()):
        drawing = draw(results, plan, theme)
        if drawing is None:
            return None
        svg, png = io.BytesIO(), io.BytesIO()
        drawing.figure.savefig(svg, format="svg", dpi=200, metadata={"Date": None})
        drawing.figure.savefig(png, format="png", dpi=200)
    return drawing, svg.getvalue(), png.getvalue()


def lateness(results: Sequence[Result], plan: Plan, theme: Theme) -> Drawing | None:
    """A panel for each rate: the share of messages along, the lateness up, both so that the tail can be seen."""
    rates = [rate for rate in plan.rates if any(result.at_rate(rate) for result in results)]
    if not rates:
        return None
    figure = _figure(0.4 + 3.0 * len(rates))
    panels = _panels(figure, len(rates))
    ends = [_curves(axes, results, rate, theme) for rate, axes in zip(rates, panels, strict=True)]
    _late_axis(panels[0])
    _share_axis(panels[0], max((x for panel in ends for x, _, _ in panel), default=2.0))
    # Only now, because a name's place depends on the scale, and all panels have one.
    for axes, found in zip(panels, ends, strict=True):
        _name_ends(axes, found, theme)
    panels[-1].set_xlabel("of all messages")
    return Drawing(
        "lateness",
        "How late",
        "How late messages came, a line for each way; lower is better. Look above 99 %: one message in a hundred "
        "came later than that. The few latest are what users notice, so they have the right half of "
        "the picture. Late counts from the moment to which a way rounds the delay; the next picture has both.",
        figure,
    )


def _curves(axes: Axes, results: Sequence[Result], rate: float, theme: Theme) -> list[tuple[float, float, Result]]:
    """A line for each mode at one rate; where each of them ends."""
    ends = []
    for result in results:
        step = result.at_rate(rate)
        if step is None or not step.curve:
            continue
        xs = [_from_end(share, step.figures["messages"]) for share, _ in step.curve]
        ys = [ms for _, ms in step.curve]
        axes.plot(xs, ys, color=theme.line(result.mode), linewidth=2, linestyle=_dashes(result.mode))
        ends.append((xs[-1], max(ys[-1], _LEAST_MS), result))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{rate:,g} messages a second")
    axes.set_ylabel("late by at most, ms")
    _plain_numbers(axes.yaxis)
    axes.grid(axis="y", color=theme.faint, linewidth=0.8)
    axes.set_axisbelow(True)
    return ends


def by_delay(results: Sequence[Result], plan: Plan, theme: Theme) -> Drawing | None:
    """Each dot a message: the delay it asked for, and by how much it came later than that."""
    rate = plan.rates[-1]
    drawn = [(result, step) for result in results if (step := result.at_rate(rate)) is not None and step.by_delay]
    if not drawn:
        return None
    figure = _figure(0.5 + 1.9 * len(drawn))
    panels = _panels(figure, len(drawn))
    for (result, step), axes in zip(drawn, panels, strict=True):
        xs, ys = zip(*((asked / 1000, max(late, _LEAST_MS)) for asked, late in step.by_delay), strict=True)
        axes.scatter(xs, ys, s=7, color=theme.line(result.mode), linewidths=0, alpha=0.7, rasterized=True)
        axes.set_yscale("log")
        axes.set_title(result.mode.title, color=theme.letter(result.mode))
        axes.set_ylabel("ms later")
        _plain_numbers(axes.yaxis)
        axes.grid(axis="y", color=theme.faint, linewidth=0.8)
        axes.set_axisbelow(True)
    _in_seconds(panels[0])
    panels[-1].set_xlabel("delay that was asked for")
    return Drawing(
        "delays",
        "Short delays and long ones",
        "Each dot is a message: how much later it came than the delay it asked for, with what its way rounds that up "
        f"by, at {rate:,g} messages a second. A flat band, low down, is what one wants. A slope is rounding up, or, in "
        "one TTL queue, a short delay behind a long one. A lone dot low down asked for exactly a level, or in a ladder "
        "for a whole second: that is not rounded.",
        figure,
    )


def throughput(results: Sequence[Result], plan: Plan, theme: Theme) -> Drawing | None:
    """Two bars for each mode."""
    drawn = [(result, flood) for result in results if (flood := result.figures("flood"))]
    if not drawn:
        return None
    figure = _figure(0.9 + 0.75 * len(drawn))
    axes = figure.subplots()
    most = max(float(flood[name] or 0) for _, flood in drawn for name in ("publish_per_s", "deliver_per_s"))
    for place, (result, flood) in enumerate(drawn):
        for offset, name, shade, word in ((-0.19, "publish_per_s", 0.45, "in"), (0.19, "deliver_per_s", 1.0, "out")):
            value = float(flood[name] or 0)
            axes.barh(place + offset, value, 0.34, color=theme.line(result.mode), alpha=shade)
            axes.text(value + most * 0.012, place + offset, f"{value:,.0f} {word}", va="center", fontsize=10)
    axes.set_yticks(range(len(drawn)), [result.mode.title for result, _ in drawn])
    axes.invert_yaxis()
    axes.set_xlim(0, most * 1.25)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("messages a second")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return Drawing(
        "throughput",
        "How many",
        f"One flood: {plan.count:,} messages with the same delay, published as fast as the broker confirms them. Pale: "
        "how many it took in a second. Full: how many came out in a second, once they were due; that is how fast a "
        "flood drains, and no rate that can be held. What comes out more slowly than it went in comes late.",
        figure,
    )


def burst(results: Sequence[Result], plan: Plan, theme: Theme) -> Drawing | None:
    """A panel for each mode: when it was published, and what came when, around the moment at which all are due."""
    drawn = [(result, step) for result in results for step in result.of("burst") if step.timeline]
    if not drawn:
        return None
    figure = _figure(0.5 + 1.9 * len(drawn))
    panels = _panels(figure, len(drawn))
    begin = min(float(step.figures["published_from_s"] or 0) for _, step in drawn)
    end = max(at for _, step in drawn for at, _ in step.timeline)
    bins = max(1, round((end - begin) / TIMELINE_BIN_S / _BARS))
    for (result, step), axes in zip(drawn, panels, strict=True):
        bars = wider(step.timeline, bins)
        width = bins * TIMELINE_BIN_S
        edges = [*(start for start, _ in bars), bars[-1][0] + width]
        axes.stairs([count / width / 1000 for _, count in bars], edges, fill=True, color=theme.line(result.mode))
        since, until = (float(step.figures[name] or 0) for name in ("published_from_s", "published_to_s"))
        axes.stairs([_published(step)], [since, until], fill=True, color=theme.dim, alpha=0.6)
        axes.axvline(0, color=theme.ink, linewidth=1, linestyle=(0, (3, 3)))
        axes.set_title(result.mode.title, color=theme.letter(result.mode))
        axes.set_ylabel("thousands\na second")
        axes.locator_params(axis="y", nbins=4)
    first = panels[0]
    since = float(drawn[0][1].figures["published_from_s"] or 0)
    top = (since, _published(drawn[0][1]))
    first.annotate("published", top, (0, 5), textcoords="offset points", fontsize=10, color=theme.dim)
    first.text(0, 1.0, "due ", transform=first.get_xaxis_transform(), fontsize=10, ha="right", va="top")
    panels[-1].set_xlim(begin - 0.1, max(end, 0.3) + 0.2)
    _in_seconds(panels[0])
    panels[-1].set_xlabel("from the moment at which all are due")
    return Drawing(
        "burst",
        "Around a burst",
        f"{plan.count:,} messages that are due at one moment: when and how fast they were published (grey), and came "
        "(coloured). "
        "High and narrow, just behind the dashed line, is what one wants. What begins far behind it was rounded up, "
        "and came due over as long a time as it was published in.",
        figure,
    )


def _published(step: Step) -> float:
    """Thousands of messages a second, on the average of a burst."""
    return float(step.figures.get("publish_per_s") or 0) / 1000


def wider(timeline: Points, bins: int) -> Points:
    """The timeline with so many of its bins made one, each of them beginning at a multiple of its width."""
    counts: dict[int, float] = {}
    for start, count in timeline:
        place = round(start / TIMELINE_BIN_S) // bins
        counts[place] = counts.get(place, 0) + count
    return [(round(place * bins * TIMELINE_BIN_S, 4), count) for place, count in counts.items()]


def _figure(height: float) -> Figure:
    return Figure(figsize=(_WIDTH, height), layout="constrained")


def _panels(figure: Figure, count: int) -> list[Axes]:
    """Panels below each other with the same scales, so that they can be compared. Each has its numbers along, because
    on a phone those of the last are two screens away."""
    panels = list(figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0])
    for axes in panels:
        axes.tick_params(axis="x", labelbottom=True)
    return panels


def _from_end(share: float, messages: float | int | bool | None) -> float:
    """1 / (1 - share): 2 for the half, 1000 for 99.9 %. The maximum stands where its one message does."""
    return 1 / max(1 - share, 1 / max(float(messages or 1), 1.0))


def _in_seconds(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.locator_params(axis="x", nbins=6)


def _late_axis(axes: Axes) -> None:
    """What is less than the least comes into the picture from below: nothing is drawn where it is not."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, _LEAST_MS), max(high, 10 * _LEAST_MS))


def _share_axis(axes: Axes, last: float) -> None:
    ticks = {1 / (1 - share): name for share, name in _SHARES.items() if 1 / (1 - share) <= last}
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.xaxis.set_major_formatter(FixedFormatter(list(ticks.values())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(1, last * 1.02)


def _plain_numbers(axis: Any) -> None:
    axis.set_major_locator(LogLocator(numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _name_ends(axes: Axes, ends: list[tuple[float, float, Result]], theme: Theme) -> None:
    """The modes' names at the right ends of their lines, pushed apart where they would cover each other."""
    low, high = map(log, axes.get_ylim())
    ordered = sorted(ends, key=lambda end: end[1])
    drawn_at = [(log(y) - low) / (high - low) for _, y, _ in ordered]
    for height, (x, y, result) in zip(apart(drawn_at, _LABEL_GAP), ordered, strict=True):
        axes.annotate(
            result.mode.title,
            xy=(x, y),
            xytext=(1.06, height),
            textcoords="axes fraction",
            color=theme.letter(result.mode),
            fontsize=10,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": theme.line(result.mode),
                "linewidth": 0.8,
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def _dashes(mode: Mode) -> Any:
    return _DASHES[[one.name for one in MODES].index(mode.name) % len(_DASHES)]


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights, moved as little as makes them lie ``gap`` apart: those that are too near share the way."""
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _bottom(groups[-1], gap) - _top(groups[-2], gap) < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_bottom(group, gap) + place * gap for group in groups for place in range(len(group))]


def _bottom(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[float], gap: float) -> float:
    return _bottom(group, gap) + gap * (len(group) - 1)
