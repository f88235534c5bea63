"""``postdate retry``: dead letters are parked again, due now."""

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


def retry(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    reason: ReasonOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Retry dead letters: they become due now, with all their tries before them. Ids, a key, or a filter.

    A cancellation that was refused is never delivered, so it is left alone.
    """
    from bridge.admin.desk import Filter
    from bridge.app.open_desk import at_desk
    from bridge.app.wiring import settings_from
    from bridge.cli.bulk import at_dead_letters
    from bridge.cli.results import answer
    from bridge.cli.select import targets
    from bridge.core.errors import SettingsError
    from bridge.delay.trust import is_cancellation

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
        raise SettingsError("--all and --reason are for many: leave out ids and --key.")

    async def work(desk: Desk) -> list[dict[str, object]]:
        return await _retry(desk, await targets(desk, settings, ids, key, route))

    return answer(output, at_desk(settings, work, route))


_NEVER = "it is a cancellation, which is never delivered. Cancel it, and what it meant by `postdate cancel --key`"


async def _retry(desk: Desk, meant: list[bytes]) -> list[dict[str, object]]:
    """Some of them; a row each."""
    from bridge.cli.results import ON_ITS_WAY, Verdict, judged, with_due
    from bridge.core.errors import REFUSED
    from bridge.core.state import State
    from bridge.delay.trust import is_cancellation

    rows = await desk.look(meant, 0)
    states = {row.id: row.state.value for row in rows}
    never = {row.id for row in rows if row.state is State.DEAD and is_cancellation(row.reason)}
    await desk.retry([one for one in meant if states.get(one) == "dead" and one not in never])
    refused = {"claimed": ON_ITS_WAY, "parked": "it is parked and no dead letter: `postdate deliver` makes it due now"}
    verdicts = [
        Verdict(one, "dead", _NEVER, REFUSED)
        if one in never
        else judged(one, states.get(one, "none"), {"dead": "parked"}, refused)
        for one in meant
    ]
    return await with_due(desk, verdicts)


async def _retry_many(desk: Desk, ids: list[bytes]) -> int:
    return await desk.retry(ids)
