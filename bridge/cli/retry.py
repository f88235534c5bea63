"""``postdate retry``: park dead letters again, due now."""

from __future__ import annotations

from collections.abc import Sequence
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
        return at_dead_letters(
            settings,
            Filter(route=route, reason=reason),
            ("retry", "retried"),
            yes,
            output,
            _retry_many,
            verbs.is_dead_cancellation,
            reason=note,
        )
    if everything or reason is not None:
        raise SettingsError("--all and --reason select by filter. Leave out ids and --key.")

    async def work(desk: Desk) -> Sequence[MessageResult]:
        results = await verbs.retry(desk, await targets(desk, settings, ids, key, route))
        return await noted(desk, "retry", results, note)

    return answer(output, at_desk(settings, work, route))


async def _retry_many(desk: Desk, ids: list[bytes]) -> int:
    return await desk.retry(ids)
