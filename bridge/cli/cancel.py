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
    from bridge.desk import Desk, Filter
    from bridge.settings import Settings


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
    from bridge.cli.targets import targets
    from bridge.cli.verdicts import ON_ITS_WAY, answer, judged, with_due
    from bridge.cli.wiring import at_desk, settings_from
    from bridge.desk import Filter
    from bridge.errors import SettingsError

    settings = settings_from(config)
    if dead:
        if ids or key is not None:
            raise SettingsError("--dead is for many: leave out ids and --key.")
        return _cancel_dead(settings, Filter(route=route, reason=reason), yes, output)
    if reason is not None:
        raise SettingsError("--reason needs --dead.")

    async def work(desk: Desk) -> list[dict[str, object]]:
        meant = await targets(desk, settings, ids, key, route)
        words = await desk.cancel(meant)
        gone = {"parked": "gone", "dead": "gone"}
        return await with_due(desk, [judged(one, words[one], gone, {"claimed": ON_ITS_WAY}) for one in meant])

    return answer(output, at_desk(settings, work), {"gone": "cancelled"})


def _cancel_dead(settings: Settings, wanted: Filter, yes: bool, output: Output) -> None:
    from bridge.cli.bulk import on_dead_letters
    from bridge.cli.output import facts
    from bridge.cli.targets import warn_of_strange_route
    from bridge.cli.wiring import at_desk

    async def work(desk: Desk) -> int:
        async def act(some: list[bytes]) -> int:
            return list((await desk.cancel(some)).values()).count("dead")

        return await on_dead_letters(desk, wanted, "cancel", yes, act)

    done = at_desk(settings, work)
    if not done:
        warn_of_strange_route(settings, wanted.route)
    facts(output, {"cancelled": done}, [("cancelled", str(done))])
