"""What the demo looks like: a live table on a terminal, a line for each event elsewhere, and the words at the end."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from types import TracebackType
from typing import Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bridge.lab.demo.fate import Act, Fate
from bridge.lab.demo.story import End
from bridge.telemetry.printable import printable

_STYLES = {
    End.DELIVERED.value: "green",
    End.DEAD.value: "red",
    End.CANCELLED.value: "yellow",
    "parked": "cyan",
}


class Show(Protocol):
    """Somebody who watches: told of the state of things many times a second."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def look(self, acts: Sequence[Act], now_ms: float) -> None:
        """The messages as they are at ``now_ms``."""


def show_on(console: Console) -> Show:
    """The table where it can be redrawn, lines elsewhere."""
    return Board(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)


class Board:
    """The live table."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def look(self, acts: Sequence[Act], now_ms: float) -> None:
        self._live.update(Group(*_with_gaps([_table(act, now_ms) for act in acts])), refresh=True)


class Lines:
    """A line whenever a message's state changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def look(self, acts: Sequence[Act], now_ms: float) -> None:
        first_ms = min((fate.sent_ms for act in acts for fate in act.fates if fate.sent_ms), default=now_ms)
        for act in acts:
            for fate in act.fates:
                state = fate.state()
                if state and self._said.get(fate.order.name) != state:
                    self._said[fate.order.name] = state
                    self._say((now_ms - first_ms) / 1000, act.title, fate, now_ms)

    def _say(self, at_s: float, title: str, fate: Fate, now_ms: float) -> None:
        cells = (fate.order.asked, state_text(fate, now_ms), late_text(fate))
        words = ", ".join(cell for cell in cells if cell)
        self._console.out(f"{at_s:5.2f} s  {title}, {fate.order.name}: {words}", highlight=False)


def state_text(fate: Fate, now_ms: float) -> str:
    """The state, and what is left of the wait."""
    state = fate.state()
    if state == "parked" and fate.sighting is not None:
        return f"parked, {max(0.0, fate.sighting.due_ms - now_ms) / 1000:.1f} s"
    return state


def late_text(fate: Fate) -> str:
    """How late it was, for people."""
    late_ms = fate.late_ms()
    return "" if late_ms is None else f"{max(0.0, late_ms):.1f} ms late"


def _with_gaps(tables: Sequence[Table]) -> Sequence[RenderableType]:
    return [part for table in tables for part in (Text(), table)][1:]


def _table(act: Act, now_ms: float) -> Table:
    # 60 columns in all, and always as many: the widths are those of the longest texts.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for title, width in ((act.title, 9), ("header", 23), ("state", 13)):
        table.add_column(title, no_wrap=True, width=width)
    table.add_column("late", no_wrap=True, justify="right", width=9)
    for fate in act.fates:
        state = Text(state_text(fate, now_ms), style=_STYLES.get(fate.state(), ""))
        table.add_row(fate.order.name, Text(fate.order.asked), state, late_text(fate).removesuffix(" late"))
    return table


def summary(act: Act, width: int) -> str:
    """What was delivered and how late, what became a dead letter and why, what was cancelled; in ``width`` columns."""
    lines = [act.title]
    for end in End:
        found = [fate for fate in act.fates if fate.state() == end.value]
        if found:
            words = printable(", ".join(map(_epitaph, found)))
            lines += wrap(f"{end.value:<13}{words}", width, subsequent_indent=" " * 13)
    return "\n".join(lines)


def _epitaph(fate: Fate) -> str:
    state = fate.state()
    if state == End.DELIVERED.value:
        return f"{fate.order.name} ({late_text(fate) or 'at once'})"
    if state == End.DEAD.value and fate.sighting is not None:
        return f"{fate.order.name} ({fate.sighting.reason})"
    return f"{fate.order.name} (never delivered)"
