"""``postdate reschedule``: another due moment for what is parked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, Output, OutputOption, RouteOption

if TYPE_CHECKING:
    from bridge.admin.desk import Desk


def reschedule(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    after: Annotated[str | None, typer.Option("--in", metavar="DURATION", help="So long from now: 5m, 1h 30m.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="MOMENT", help="RFC 3339 with an offset, or Unix ms.")
    ] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move parked messages to another due moment. One that has passed means now."""
    from bridge.app.open_desk import at_desk
    from bridge.app.wiring import settings_from
    from bridge.cli.moments import due_ms, read_due
    from bridge.cli.results import answer
    from bridge.cli.select import targets

    wait_ms, at_ms = read_due(after, at)
    settings = settings_from(config)

    async def work(desk: Desk) -> list[dict[str, object]]:
        now_ms = await desk.now_ms()
        due = due_ms(wait_ms, at_ms, now_ms, settings.limits.max_delay)
        meant = await targets(desk, settings, ids, key, route)
        return await move(desk, meant, due if due > now_ms else 0)

    answer(output, at_desk(settings, work, route))


async def move(desk: Desk, meant: list[bytes], due_ms: int) -> list[dict[str, object]]:
    """Move messages to a due moment (Unix ms, 0 for now); a row each."""
    from bridge.cli.results import DEAD, ON_ITS_WAY, judged, with_due

    words = await desk.reschedule(meant, due_ms)
    refused = {"claimed": ON_ITS_WAY, "dead": DEAD}
    return await with_due(desk, [judged(one, words[one], {"parked": "parked"}, refused) for one in meant])
