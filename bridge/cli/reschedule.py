"""``postdate reschedule``: change when parked messages are due."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.admin import verbs
from bridge.admin.desk import Desk
from bridge.admin.moments import due_ms, read_due
from bridge.admin.verbs import MessageResult
from bridge.app.open_desk import at_desk
from bridge.cli.audited import noted
from bridge.cli.options import (
    AtOption,
    ConfigOption,
    IdsArgument,
    InOption,
    KeyOption,
    NoteOption,
    Output,
    OutputOption,
    RouteOption,
)
from bridge.cli.results import answer
from bridge.cli.select import targets
from bridge.settings import settings_from


def reschedule(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    after: InOption = None,
    at: AtOption = None,
    note: NoteOption = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change when parked messages are due. A time in the past means now."""
    due = read_due(after, at)
    settings = settings_from(config)

    async def work(desk: Desk) -> Sequence[MessageResult]:
        moment_ms = due_ms(due, await desk.now_ms(), settings.limits.max_delay)
        results = await verbs.reschedule(desk, await targets(desk, settings, ids, key, route), moment_ms)
        return await noted(desk, "reschedule", results, note)

    answer(output, at_desk(settings, work, route))
