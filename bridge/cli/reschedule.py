"""``postdate reschedule``: change when parked messages are due."""

from __future__ import annotations

from bridge.cli.options import (
    AtOption,
    ConfigOption,
    IdsArgument,
    InOption,
    KeyOption,
    NoteOption,
    Output,
    OutputOption,
    RouteOption,
)
from bridge.cli.select import at_messages
from bridge.operate.moments import read_due
from bridge.operate.verbs import RESCHEDULE
from bridge.settings import settings_from


def reschedule(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    after: InOption = None,
    at: AtOption = None,
    note: NoteOption = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change when parked messages are due. A time in the past means now."""
    due = read_due(after, at)
    at_messages(RESCHEDULE, settings_from(config), ids, key, route, note, output, due)
