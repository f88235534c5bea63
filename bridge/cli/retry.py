"""``postdate retry``: park dead letters again, due now."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.admin.desk import Desk, Filter
from bridge.app.open_desk import at_desk
from bridge.cli.options import (
    ConfigOption,
    IdsArgument,
    KeyOption,
    Output,
    OutputOption,
    ReasonOption,
    RouteOption,
    YesOption,
)
from bridge.cli.results import BEING_SENT, MessageResult, answer, judged, with_due
from bridge.cli.select import at_dead_letters, targets
from bridge.core.errors import REFUSED, SettingsError
from bridge.core.state import State
from bridge.delay.trust import is_cancellation
from bridge.settings import settings_from

_PARKED = "it is parked, not dead. `postdate deliver` makes it due now"
_CANCELLATION = (
    "it is a cancellation that was refused, and is never delivered. Delete it with `postdate cancel`, and cancel "
    "the message it meant with `postdate cancel --key`"
)


def retry(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    reason: ReasonOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Retry all dead letters.")] = False,
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
            lambda row: is_cancellation(row.reason),
        )
    if everything or reason is not None:
        raise SettingsError("--all and --reason select by filter. Leave out ids and --key.")

    async def work(desk: Desk) -> list[dict[str, object]]:
        return await _retry(desk, await targets(desk, settings, ids, key, route))

    return answer(output, at_desk(settings, work, route))


async def _retry(desk: Desk, meant: list[bytes]) -> list[dict[str, object]]:
    """Retry these messages; return a row for each."""
    rows = await desk.look(meant, 0)
    states = {row.id: row.state.value for row in rows}
    never = {row.id for row in rows if row.state is State.DEAD and is_cancellation(row.reason)}
    await desk.retry([one for one in meant if states.get(one) == "dead" and one not in never])
    refused = {"claimed": BEING_SENT, "parked": _PARKED}
    results = [
        MessageResult(one, "dead", _CANCELLATION, REFUSED)
        if one in never
        else judged(one, states.get(one, "none"), {"dead": "parked"}, refused)
        for one in meant
    ]
    return await with_due(desk, results)


async def _retry_many(desk: Desk, ids: list[bytes]) -> int:
    return await desk.retry(ids)
