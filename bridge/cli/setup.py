"""``postdate setup``: declares the exchanges, queues and bindings that the routes need."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption


def setup(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print it.")] = False,
) -> None:
    """Declare exchanges, queues and bindings. What is there already stays as it is; a difference is refused."""
    from bridge.cli.output import say
    from bridge.cli.wiring import declare_topology, planned_topology, settings_with_routes

    settings = settings_with_routes(config)
    warnings: list[str] = []
    if dry_run:
        found = planned_topology(settings)
    else:
        found, warnings = declare_topology(settings)
    print_topology(output, found)
    for warning in warnings:
        say(f"Warning: {warning}.")


def print_topology(output: Output, found: list[dict[str, Any]]) -> None:
    """Rows of declarations."""
    from bridge.cli.output import rows

    shown = [_with(row) if output is Output.TEXT else row for row in found]
    rows(output, ["kind", "name", "route", "state", "with"], shown)


def _with(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments as text; a header without a value stands for any value of it."""
    written = (name if value is None else f"{name}={_value(value)}" for name, value in row["arguments"].items())
    return {**row, "with": " ".join(written)}


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
