"""``postdate cancel``: delete parked messages and dead letters."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.options import (
    ConfigOption,
    IdsArgument,
    KeyOption,
    NoteOption,
    Output,
    OutputOption,
    ReasonOption,
    RouteOption,
    YesOption,
)
from bridge.cli.select import at_dead_letters, at_messages
from bridge.core.errors import SettingsError
from bridge.desk.rows import Filter
from bridge.operate.verbs import CANCEL
from bridge.settings import settings_from


def cancel(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="Delete all dead letters, or those that match --route and --reason.")
    ] = False,
    reason: ReasonOption = None,
    note: NoteOption = "",
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete parked messages or dead letters. They are never delivered.

    A claimed message is being sent already: it stays, and the exit code is 5.
    """
    settings = settings_from(config)
    if dead:
        if ids or key is not None:
            raise SettingsError("--dead selects by filter. Leave out ids and --key.")
        return at_dead_letters(CANCEL, settings, Filter(route=route, reason=reason), note, yes, output)
    if reason is not None:
        raise SettingsError("--reason selects dead letters. Add --dead.")
    return at_messages(CANCEL, settings, ids, key, route, note, output)
