"""``postdate deliver``: make parked messages due now."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.admin import verbs
from bridge.admin.desk import Desk
from bridge.admin.verbs import MessageResult
from bridge.app.open_desk import at_desk
from bridge.cli.audited import noted
from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, NoteOption, Output, OutputOption, RouteOption
from bridge.cli.results import answer
from bridge.cli.select import targets
from bridge.settings import settings_from


def deliver(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    note: NoteOption = "",
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make parked messages due now. A running postdate then publishes them."""
    settings = settings_from(config)

    async def work(desk: Desk) -> Sequence[MessageResult]:
        results = await verbs.deliver(desk, await targets(desk, settings, ids, key, route))
        return await noted(desk, "deliver", results, note)

    answer(output, at_desk(settings, work, route))
