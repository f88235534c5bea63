"""``postdate retry``: park dead letters again, due now."""

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
from bridge.operate.verbs import RETRY
from bridge.settings import settings_from


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
    settings = settings_from(config)
    if not ids and key is None:
        if not (everything or route is not None or reason is not None):
            raise SettingsError("Give ids, --key with --route, a filter (--route, --reason), or --all.")
        return at_dead_letters(RETRY, settings, Filter(route=route, reason=reason), note, yes, output)
    if everything or reason is not None:
        raise SettingsError("--all and --reason select by filter. Leave out ids and --key.")
    return at_messages(RETRY, settings, ids, key, route, note, output)
