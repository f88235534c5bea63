"""The pictures of a comparison. Needs matplotlib, the extra ``compare``.

A mode has the same colour and line style in all pictures. Each picture has a light and a dark version, with labels
beside the lines, both for the width of a phone (panels below each other) and for a wide screen (panels side by side).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from bridge.lab.compare import TIMELINE_BIN_S, CompareStep, Points
from bridge.lab.compare_modes import MODES, ComparePlan, Mode
from bridge.lab.compare_result import ModeResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import RcKeyType

#: Widths in inches for a phone and for a wide screen, where letters have the same size.
_WIDTH, _WIDE = 4.8, 11.0


@dataclass(frozen=True)
class Theme:
    """The colours and width of a picture. ``lines`` and ``letters`` (0 to 1) move a mode's colour towards ``ink``.

    Some colours are too pale for letters, others too dark for a dark ground.
    """

    ground: str
    ink: str
    dim: str
    faint: str
    lines: float
    letters: float
    wide: bool = False

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
#: Line styles, for readers who cannot tell two colours apart.
_DASHES: Sequence[Any] = ("-", "-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 2)), "-.")
#: The lowest lateness on a logarithmic axis: clocks are no more exact.
_LEAST_MS = 0.1
#: The approximate number of bars in a timeline.
_BARS = 110
#: The distance between labels of lines, as a share of the height.
_LABEL_GAP = 0.075
_SHARES = {0.5: "half", 0.9: "90 %", 0.99: "99 %", 0.999: "99.9 %", 0.9999: "99.99 %"}


@dataclass(frozen=True)
class Picture:
    """One picture, light and dark, for a phone and for a wide screen. ``text`` is its description and alternative."""

    name: str
    title: str
    text: str
    svg: bytes
    png: bytes
    dark_svg: bytes
    dark_png: bytes
    wide_svg: bytes
    wide_dark_svg: bytes


@dataclass(frozen=True)
class Drawing:
    """One version of a picture, not rendered yet."""

    name: str
    title: str
    text: str
    figure: Figure


Draw = Callable[[Sequence[ModeResult], ComparePlan, Theme], Drawing | None]


def pictures(results: Sequence[ModeResult], plan: ComparePlan) -> list[Picture]:
    """All pictures for which there are figures."""
    found = []
    for draw in (lateness, by_delay, throughput, burst):
        drawing = draw(results, plan, LIGHT)
        if drawing is None:
            continue
        light, dark = (_drawn(draw, results, plan, theme, ("svg", "png")) for theme in (LIGHT, DARK))
        wide = [_drawn(draw, results, plan, replace(theme, wide=True), ("svg",))[0] for theme in (LIGHT, DARK)]
        found.append(Picture(drawing.name, drawing.title, drawing.text, *light, *dark, *wide))
    return found


def _drawn(
    draw: Draw, results: Sequence[ModeResult], plan: ComparePlan, theme: Theme, kinds: Sequence[str]
) -> list[bytes]:
    """The drawing in each format; none if there are no figures for it."""
    with mpl.rc_context(theme.style()):
        drawing = draw(results, plan, theme)
        return [] if drawing is None else [_rendered(drawing.figure, kind) for kind in kinds]


def _rendered(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def lateness(results: Sequence[ModeResult], plan: ComparePlan, theme: Theme) -> Drawing | None:
    """A panel for each rate: lateness over the share of messages, with scales that show the tail."""
    rates = [rate for rate in plan.rates if any(result.at_rate(rate) for result in results)]
    if not rates:
        return None
    figure, panels = _panels(theme, len(rates), 3.0, columns=2)
    ends = [_curves(axes, results, rate, theme) for rate, axes in zip(rates, panels, strict=True)]
    _late_axis(panels[0])
    _share_axis(panels[0], max((x for panel in ends for x, _, _ in panel), default=2.0))
    # Last, because the position of a name depends on the scale that all panels share.
    for axes, found in zip(panels, ends, strict=True):
        _name_ends(axes, found, theme)
    _label_below(panels, "of all messages", columns=2, theme=theme)
    return Drawing(
        "lateness",
        "How late",
        "How late messages arrived, a line for each way; lower is better. Look above 99 %: one message in a hundred "
        "was later than that. Users notice the few latest, so they have the right half of the picture. Lateness counts "
        "from the rounded due time; the next picture includes the rounding.",
        figure,
    )


def _curves(
    axes: Axes, results: Sequence[ModeResult], rate: float, theme: Theme
) -> list[tuple[float, float, ModeResult]]:
    """Draw a line for each mode at one rate. Return the end of each line."""
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


def by_delay(results: Sequence[ModeResult], plan: ComparePlan, theme: Theme) -> Drawing | None:
    """Each dot is a message: its requested delay, and how much later it arrived."""
    rate = plan.rates[-1]
    drawn = [(result, step) for result in results if (step := result.at_rate(rate)) is not None and step.by_delay]
    if not drawn:
        return None
    figure, panels = _panels(theme, len(drawn), 1.9, columns=3)
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
    _label_below(panels, "requested delay", columns=3, theme=theme)
    return Drawing(
        "delays",
        "Short delays and long ones",
        "Each dot is a message: how much later than requested it arrived, rounding included, at "
        f"{rate:,g} messages a second. A flat, low band is best. A slope is rounding up, or, in one TTL queue, a short "
        "delay behind a long one. A single low dot asked for exactly a level, or in a ladder for a whole second: that "
        "is not rounded.",
        figure,
    )


def throughput(results: Sequence[ModeResult], plan: ComparePlan, theme: Theme) -> Drawing | None:
    """Two bars for each mode."""
    drawn = [(result, flood) for result in results if (flood := result.figures("flood"))]
    if not drawn:
        return None
    figure, (axes,) = _panels(theme, 1, 0.5 + 0.75 * len(drawn), columns=1)
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
        "messages published per second. Full: messages delivered per second, once they were due. That is how fast a "
        "flood drains, and no rate that can be held. If delivery is slower than publishing, messages are late.",
        figure,
    )


def burst(results: Sequence[ModeResult], plan: ComparePlan, theme: Theme) -> Drawing | None:
    """A panel for each mode: publishing and arrivals around the common due moment."""
    drawn = [(result, step) for result in results for step in result.of("burst") if step.timeline]
    if not drawn:
        return None
    figure, panels = _panels(theme, len(drawn), 1.9, columns=3)
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
    _label_below(panels, "from the moment at which all are due", columns=3, theme=theme)
    return Drawing(
        "burst",
        "Around a burst",
        f"{plan.count:,} messages that are due at one moment: when and how fast they were published (grey) and "
        "delivered (coloured). High and narrow, just behind the dashed line, is best. A start far behind it means "
        "rounding: then the due times spread over as long a time as the publishing took.",
        figure,
    )


def _published(step: CompareStep) -> float:
    """The average rate of publishing a burst, in thousands per second."""
    return float(step.figures.get("publish_per_s") or 0) / 1000


def wider(timeline: Points, bins: int) -> Points:
    """The timeline with ``bins`` of its bins merged into one, aligned to multiples of the new width."""
    counts: dict[int, float] = {}
    for start, count in timeline:
        place = round(start / TIMELINE_BIN_S) // bins
        counts[place] = counts.get(place, 0) + count
    return [(round(place * bins * TIMELINE_BIN_S, 4), count) for place, count in counts.items()]


def _panels(theme: Theme, count: int, height: float, columns: int) -> tuple[Figure, list[Axes]]:
    """A figure of panels with shared scales, below each other or, on a wide screen, in ``columns``.

    Each panel has axis numbers of its own: on a phone the last is far away. ``height`` is that of a panel, in inches.
    """
    across = min(columns, count) if theme.wide else 1
    down = -(-count // across)
    figure = Figure(figsize=(_WIDE if theme.wide else _WIDTH, 0.45 + height * down), layout="constrained")
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    for unused in panels[count:]:
        unused.remove()
    for axes in panels[:count]:
        axes.tick_params(axis="x", labelbottom=True)
        axes.tick_params(axis="y", labelleft=True)
    return figure, panels[:count]


def _label_below(panels: Sequence[Axes], text: str, columns: int, theme: Theme) -> None:
    """Name the horizontal axis below the last panel of each column."""
    for axes in panels[-columns:] if theme.wide else panels[-1:]:
        axes.set_xlabel(text)


def _from_end(share: float, messages: float | int | bool | None) -> float:
    """1 / (1 - share): 2 for half, 1000 for 99.9 %. The maximum is placed by its single message."""
    return 1 / max(1 - share, 1 / max(float(messages or 1), 1.0))


def _in_seconds(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.locator_params(axis="x", nbins=6)


def _late_axis(axes: Axes) -> None:
    """Limit the axis to the lowest lateness. Lines below it leave the picture instead of being clamped."""
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


def _name_ends(axes: Axes, ends: list[tuple[float, float, ModeResult]], theme: Theme) -> None:
    """The modes' names at the right ends of their lines, moved apart where they overlap."""
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
    """Rising heights, moved as little as possible to lie ``gap`` apart. Neighbours that are too near share the move."""
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
