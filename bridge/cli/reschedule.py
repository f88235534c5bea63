"""``postdate reschedule``: change when parked messages are due."""

from __future__ import annotations

from bridge.admin.desk import Desk
from bridge.app.open_desk import at_desk
from bridge.cli.options import (
    AtOption,
    ConfigOption,
    IdsArgument,
    InOption,
    KeyOption,
    Output,
    OutputOption,
    RouteOption,
    due_ms,
    read_due,
)
from bridge.cli.results import BEING_SENT, DEAD, answer, judged, with_due
from bridge.cli.select import targets
from bridge.settings import settings_from


def reschedule(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    after: InOption = None,
    at: AtOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change when parked messages are due. A time in the past means now."""
    delay_ms, time_ms = read_due(after, at)
    settings = settings_from(config)

    async def work(desk: Desk) -> list[dict[str, object]]:
        now_ms = await desk.now_ms()
        due = due_ms(delay_ms, time_ms, now_ms, settings.limits.max_delay)
        meant = await targets(desk, settings, ids, key, route)
        return await move(desk, meant, due if due > now_ms else 0)

    answer(output, at_desk(settings, work, route))


async def move(desk: Desk, meant: list[bytes], due_ms: int) -> list[dict[str, object]]:
    """Move messages to a due time (Unix ms, 0 for now); return a row for each."""
    words = await desk.reschedule(meant, due_ms)
    refused = {"claimed": BEING_SENT, "dead": DEAD}
    return await with_due(desk, [judged(one, words[one], {"parked": "parked"}, refused) for one in meant])
