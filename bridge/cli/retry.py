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
    from bridge.desk import Desk


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
    """Retry dead letters: they become due now, with all their tries before them. Ids, a key, or a filter."""
    from bridge.cli.bulk import at_dead_letters
    from bridge.cli.stores import at_desk
    from bridge.cli.targets import targets
    from bridge.cli.verdicts import answer
    from bridge.cli.wiring import settings_from
    from bridge.desk import Filter
    from bridge.errors import SettingsError

    settings = settings_from(config)
    if not ids and key is None:
        if not (everything or route is not None or reason is not None):
            raise SettingsError("Give ids, --key with --route, a filter (--route, --reason), or --all.")
        return at_dead_letters(
            settings, Filter(route=route, reason=reason), ("retry", "retried"), yes, output, _retry_many
        )
    if everything or reason is not None:
        raise SettingsError("--all and --reason are for many: leave out ids and --key.")

    async def work(desk: Desk) -> list[dict[str, object]]:
        return await _retry(desk, await targets(desk, settings, ids, key, route))

    return answer(output, at_desk(settings, work, route))


async def _retry(desk: Desk, meant: list[bytes]) -> list[dict[str, object]]:
    """Some of them; a row each."""
    from bridge.cli.verdicts import ON_ITS_WAY, judged, with_due

    states = {row.id: row.state.value for row in await desk.look(meant, 0)}
    await desk.retry([one for one in meant if states.get(one) == "dead"])
    refused = {"claimed": ON_ITS_WAY, "parked": "it is parked and no dead letter: `postdate deliver` makes it due now"}
    verdicts = [judged(one, states.get(one, "none"), {"dead": "parked"}, refused) for one in meant]
    return await with_due(desk, verdicts)


async def _retry_many(desk: Desk, ids: list[bytes]) -> int:
    return await desk.retry(ids)
