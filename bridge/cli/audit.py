"""``postdate audit``: what people did to messages and routes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bridge.cli.acting import operate, settings_for
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.operate.documents import AuditFacts

_COLUMNS = ["at", "who", "via", "verb", "messages", "what", "reason"]


def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows.")] = 50,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show what people did to messages and routes, newest first. The store keeps about 10,000 entries."""
    page = operate(settings_for(config), lambda operator: operator.audit(limit))
    rows(output, _COLUMNS, [_row(entry) for entry in page.audit])


def _row(entry: AuditFacts) -> dict[str, Any]:
    return {**entry.model_dump(exclude={"id"}), "reason": entry.reason or None}
