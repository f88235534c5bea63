"""``postdate cancel``, ``reschedule``, ``deliver`` and ``retry``: the verbs of messages."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.acting import settings_for
from bridge.cli.options import (
    AtOption,
    ConfigOption,
    IdsArgument,
    InOption,
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
from bridge.operate.moments import read_due
from bridge.operate.verbs import CANCEL, DELIVER, RESCHEDULE, RETRY


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
    settings = settings_for(config)
    if dead:
        if ids or key is not None:
            raise SettingsError("--dead selects by filter. Leave out ids and --key.")
        return at_dead_letters(CANCEL, settings, Filter(route=route, reason=reason), note, yes, output)
    if reason is not None:
        raise SettingsError("--reason selects dead letters. Add --dead.")
    return at_messages(CANCEL, settings, ids, key, route, note, output)


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
    at_messages(RESCHEDULE, settings_for(config), ids, key, route, note, output, due)


def deliver(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    note: NoteOption = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make parked messages due now. A running postdate then publishes them."""
    at_messages(DELIVER, settings_for(config), ids, key, route, note, output)


def retry(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    reason: ReasonOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Retry all dead letters.")] = False,
    note: NoteOption = "",
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Park dead letters again, due now. Each starts with its full number of tries.

    Select them by ids, by key, or by a filter. Refused cancellations are skipped, because they are never
    delivered.
    """
    settings = settings_for(config)
    if not ids and key is None:
        if not (everything or route is not None or reason is not None):
            raise SettingsError("Give ids, --key with --route, a filter (--route, --reason), or --all.")
        return at_dead_letters(RETRY, settings, Filter(route=route, reason=reason), note, yes, output)
    if everything or reason is not None:
        raise SettingsError("--all and --reason select by filter. Leave out ids and --key.")
    return at_messages(RETRY, settings, ids, key, route, note, output)
