"""``postdate audit``: what people did to messages and routes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bridge.admin.desk import Desk
from bridge.app.open_desk import at_desk
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.delay.duration import write_moment
from bridge.settings import settings_from

_COLUMNS = ["at", "who", "via", "verb", "messages", "what", "reason"]


def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what people did to messages and routes, newest first. The store keeps about 10,000 entries."""
    settings = settings_from(config)

    async def gather(desk: Desk) -> list[dict[str, Any]]:
        return [
            {
                "at": write_moment(entry.at_ms),
                "at_ms": entry.at_ms,
                "who": entry.who,
                "via": entry.via,
                "verb": entry.verb,
                "messages": entry.messages,
                "what": entry.what,
                "reason": entry.reason or None,
            }
            for entry in await desk.audit(limit)
        ]

    rows(output, _COLUMNS, at_desk(settings, gather))
