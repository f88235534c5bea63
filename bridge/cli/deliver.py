"""``postdate deliver``: make parked messages due now."""

from __future__ import annotations

from bridge.admin.desk import Desk
from bridge.app.open_desk import at_desk
from bridge.cli.options import ConfigOption, IdsArgument, KeyOption, Output, OutputOption, RouteOption
from bridge.cli.reschedule import move
from bridge.cli.results import answer
from bridge.cli.select import targets
from bridge.settings import settings_from


def deliver(
    ids: IdsArgument = None,
    key: KeyOption = None,
    route: RouteOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Make parked messages due now. A running postdate then publishes them."""
    settings = settings_from(config)

    async def work(desk: Desk) -> list[dict[str, object]]:
        return await move(desk, await targets(desk, settings, ids, key, route), 0)

    answer(output, at_desk(settings, work, route))
