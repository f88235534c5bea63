"""``postdate deliver``: make parked messages due now."""

from __future__ import annotations

from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, NoteOption, Output, OutputOption, RouteOption
from bridge.cli.select import at_messages
from bridge.operate.verbs import DELIVER
from bridge.settings import settings_from


def deliver(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    note: NoteOption = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make parked messages due now. A running postdate then publishes them."""
    at_messages(DELIVER, settings_from(config), ids, key, route, note, output)
