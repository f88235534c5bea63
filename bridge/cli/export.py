"""``postdate export``: all that waits, as lines of JSON that `postdate import` reads."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from bridge.cli.acting import user
from bridge.cli.filters import Filters, criteria_in, with_filters
from bridge.cli.listing import Looking
from bridge.cli.options import ConfigOption
from bridge.cli.output import line
from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.desk.past import AuditEntry
from bridge.desk.protocol import Desk
from bridge.operate.export import exported
from bridge.operate.select import judge_reason, unknown_route
from bridge.operate.stores import at_desk
from bridge.settings import settings_from
from bridge.telemetry.printable import say


@with_filters
def export(
    config: ConfigOption = None,
    state: Annotated[
        Literal["parked", "claimed", "dead"] | None,
        typer.Option("--state", help="Only messages in this state. Default: all."),
    ] = None,
    *,
    filters: Filters,
) -> None:
    """Write all messages of the store to standard output. `postdate import` puts them back.

    One line of JSON is one message, with its bytes. The first line says what was exported and when, and the last one
    how many messages. postdate may run meanwhile. A message that is stored all the time is in the file.

    The file has bodies in it. Keep it as safe as the messages.
    """
    settings, route = settings_from(config), filters["route"]
    judge_reason(filters["reason"])

    async def write(desk: Desk) -> int:
        wanted = criteria_in(filters, await desk.now_ms())
        count, looking = -2, Looking("Exported")  # the first line and the last one are no messages
        async for document in exported(desk, State(state) if state else None, wanted):
            line(document)
            looking(count := count + 1)
        which = " ".join(f"{name}={value}" for name, value in wanted.given().items())
        await desk.note(AuditEntry(user(), "export", which or "all messages", count))
        return count

    count = at_desk(settings, write)
    say(f"Messages: {count}.")
    if not count and route not in (None, *settings.routes):
        raise SettingsError(unknown_route(settings.routes, route))
