"""``postdate cancel``: what is parked, or dead, goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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

if TYPE_CHECKING:
    from bridge.admin.desk import Desk


def cancel(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    dead: Annotated[bool, typer.Option("--dead", help="All dead letters, or those of --route and --reason.")] = False,
    reason: ReasonOption = None,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Cancel messages: they are deleted and never delivered. One that is claimed is on its way and stays (exit 5)."""
    from bridge.admin.desk import Filter
    from bridge.app.open_desk import at_desk
    from bridge.app.wiring import settings_from
    from bridge.cli.bulk import at_dead_letters
    from bridge.cli.results import ON_ITS_WAY, answer, judged, with_due
    from bridge.cli.select import targets
    from bridge.core.errors import SettingsError

    settings = settings_from(config)
    if dead:
        if ids or key is not None:
            raise SettingsError("--dead is for many: leave out ids and --key.")
        return at_dead_letters(
            settings, Filter(route=route, reason=reason), ("cancel", "cancelled"), yes, output, _cancel
        )
    if reason is not None:
        raise SettingsError("--reason needs --dead.")

    async def work(desk: Desk) -> list[dict[str, object]]:
        meant = await targets(desk, settings, ids, key, route)
        words = await desk.cancel(meant)
        gone = {"parked": "gone", "dead": "gone"}
        return await with_due(desk, [judged(one, words[one], gone, {"claimed": ON_ITS_WAY}) for one in meant])

    return answer(output, at_desk(settings, work, route), {"gone": "cancelled"})


async def _cancel(desk: Desk, ids: list[bytes]) -> int:
    return sum(answer == "dead" for answer in (await desk.cancel(ids)).values())
