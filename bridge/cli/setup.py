"""``postdate setup``: makes the exchanges, queues, bindings and topics that the routes need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.settings import Settings


def setup(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look at what is there, and print it.")] = False,
) -> None:
    """Make what the routes need: exchanges, queues and bindings on RabbitMQ, topics on Kafka.

    What is there already stays as it is; a difference that would lose messages is refused. An intake topic gets as many
    partitions as the topic where it leads; as long as that is missing it waits, and the exit code is 1.
    """
    from bridge.cli.wiring import settings_with_routes

    make(settings_with_routes(config), output, dry_run)


def make(settings: Settings, output: Output, dry_run: bool) -> None:
    """Make what these settings need, or only look, and print a row for each part."""
    from bridge.cli.exits import FAILED
    from bridge.cli.output import rows, say
    from bridge.cli.wiring import declare_topology, planned_topology

    found, warnings = (planned_topology if dry_run else declare_topology)(settings)
    shown = [_with(row) if output is Output.TEXT else row for row in found]
    rows(output, ["kind", "name", "route", "state", "with"], shown)
    for warning in warnings:
        say(f"Warning: {warning}.")
    if not dry_run and any(row["state"] == "waits" for row in found):
        raise typer.Exit(FAILED)


def _with(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments as text; a header without a value stands for any value of it."""
    written = (name if value is None else f"{name}={_value(value)}" for name, value in row["arguments"].items())
    return {**row, "with": " ".join(written)}


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
