"""``postdate cancel``: delete parked messages and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from bridge.admin import verbs
from bridge.admin.desk import Desk, Filter
from bridge.admin.verbs import MessageResult
from bridge.app.open_desk import at_desk
from bridge.cli.audited import noted
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
from bridge.cli.results import answer
from bridge.cli.select import at_dead_letters, targets
from bridge.core.errors import SettingsError
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
        return at_dead_letters(
            settings,
            Filter(route=route, reason=reason),
            ("cancel", "cancelled"),
            yes,
            output,
            partial(_cancel, note or "by an operator"),
            reason=note,
        )
    if reason is not None:
        raise SettingsError("--reason selects dead letters. Add --dead.")

    async def work(desk: Desk) -> Sequence[MessageResult]:
        results = await verbs.cancel(desk, await targets(desk, settings, ids, key, route), note)
        return await noted(desk, "cancel", results, note)

    return answer(output, at_desk(settings, work, route), gone="cancelled")


async def _cancel(reason: str, desk: Desk, ids: list[bytes]) -> int:
    return sum(answer == "dead" for answer in (await desk.cancel(ids, reason)).values())
