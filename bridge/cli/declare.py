"""``postdate setup``: create the exchanges, queues, bindings and topics that the routes need."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import typer

from bridge.app.topology import declare_topology, plan_topology, replay_reach
from bridge.cli.options import ConfigOption, DryRunOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.core.errors import FINE, BrokerUnavailable
from bridge.desk.topology import Finding, counts
from bridge.operate.journals import set_up
from bridge.settings import Settings, settings_with_routes
from bridge.telemetry.printable import say

#: Text output sums up the parts in these states where a route has more than ``_MANY``.
_MANY = 12
_CALM = ("made", "there", "planned")


def setup(config: ConfigOption = None, output: OutputOption = Output.TEXT, dry_run: DryRunOption = False) -> None:
    """Create the exchanges, queues and topics that the routes need.

    Bindings between them are created, too. AMQP cannot ask for one, so a dry run plans each. Existing parts stay as
    they are. A difference that would lose messages is refused (exit code 5).

    The queue of a retry route's consumers must dead-letter to postdate. `setup` prints the arguments for that queue. It
    sets the same as a policy if RabbitMQ's management API allows it and no other policy governs the queue.

    A Kafka intake topic gets as many partitions as its destination topic. If the destination is missing, `setup` skips
    the intake topic (exit code 1).

    The tables of the journal are created or upgraded first. With --dry-run their SQL goes to standard error.

    `postdate levels setup` does the same only for routes without a store.
    """
    settings = settings_with_routes(config)
    for statement in asyncio.run(set_up(settings, dry_run)):
        say(f"{statement};" if dry_run else f"Journal: {statement.partition('(')[0].strip()}")
    make(settings, output, dry_run)


def make(settings: Settings, output: Output, dry_run: bool) -> None:
    """Create what these settings need, or only compare, and print a row for each part."""
    found, warnings, code = plan_topology(settings) if dry_run else declare_topology(settings)
    parts = [_row(finding) for finding in found]
    shown = [_with(row) for row in _brief(parts)] if output is Output.TEXT else parts
    rows(output, ["kind", "name", "route", "state", "with"], shown)
    for warning in warnings:
        say(f"Warning: {warning}.")
    with suppress(BrokerUnavailable):  # a dry run has said so already
        for route, text in replay_reach(settings):
            say(f"Route {route}: {text}.")
    if code != FINE:
        raise typer.Exit(code)


def _row(finding: Finding) -> dict[str, Any]:
    part = finding.part
    return {
        "kind": part.name.kind,
        "name": part.name.name,
        "route": part.route,
        "state": finding.state.value,
        "arguments": dict(part.arguments),
        **({"text": finding.text} if finding.text else {}),
    }


def _brief(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace many parts of a route by one row for each state, with the number of each kind; problems stay."""
    shown = []
    for route in dict.fromkeys(row["route"] for row in found):
        parts = [row for row in found if row["route"] == route]
        calm = [row for row in parts if row["state"] in _CALM] if len(parts) > _MANY else []
        for state in dict.fromkeys(row["state"] for row in calm):
            name = counts(row["kind"] for row in calm if row["state"] == state)
            shown.append({"kind": "", "name": name, "route": route, "state": state, "arguments": {}})
        shown += [row for row in parts if row not in calm]
    return shown


def _with(row: dict[str, Any]) -> dict[str, Any]:
    """Add the arguments as text. A header argument without a value matches any value of the header."""
    written = (name if value is None else f"{name}={_value(value)}" for name, value in row["arguments"].items())
    return {**row, "with": " ".join(written)}


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
