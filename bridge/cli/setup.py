"""``postdate setup``: makes the exchanges, queues, bindings and topics that the routes need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from bridge.cli.options import ConfigOption, DryRunOption, Output, OutputOption
from bridge.telemetry.plural import counted

if TYPE_CHECKING:
    from bridge.admin.topology import Finding
    from bridge.settings import Settings


#: A route with more parts than this is told of in one line, and what its parts may be for that.
_MANY = 12
_CALM = ("made", "there", "planned")


def setup(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    dry_run: DryRunOption = False,
) -> None:
    """Make what all routes need: exchanges, queues and bindings on RabbitMQ, topics on Kafka.

    It includes what `postdate levels setup` makes, which is for routes with mode levels or ladder alone. What is there
    already stays as it is; a difference that would lose messages is refused. An intake topic gets as many partitions as
    the topic where it leads; as long as that is missing it waits, and the exit code is 1. It is 5 for what is refused,
    and 4 where a broker cannot be reached.
    """
    from bridge.app.wiring import settings_with_routes

    make(settings_with_routes(config), output, dry_run)


def make(settings: Settings, output: Output, dry_run: bool) -> None:
    """Make what these settings need, or only look, and print a row for each part."""
    from bridge.app.topology import declare_topology, plan_topology
    from bridge.cli.output import rows
    from bridge.core.errors import FINE
    from bridge.telemetry.printable import say

    found, warnings, code = plan_topology(settings) if dry_run else declare_topology(settings)
    made = [_row(one) for one in found]
    shown = [_with(row) for row in _brief(made)] if output is Output.TEXT else made
    rows(output, ["kind", "name", "route", "state", "with"], shown)
    for warning in warnings:
        say(f"Warning: {warning}.")
    if code != FINE:
        raise typer.Exit(code)


def _row(one: Finding) -> dict[str, Any]:
    part = one.part
    return {
        "kind": part.name.kind,
        "name": part.name.name,
        "route": part.route,
        "state": one.state.value,
        "arguments": dict(part.arguments),
    }


def _brief(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a route with very many parts, a line for each state that is no problem, with the number of each kind."""
    shown = []
    for route in dict.fromkeys(row["route"] for row in found):
        rows = [row for row in found if row["route"] == route]
        calm = [row for row in rows if row["state"] in _CALM] if len(rows) > _MANY else []
        for state in dict.fromkeys(row["state"] for row in calm):
            name = counts(row["kind"] for row in calm if row["state"] == state)
            shown.append({"kind": "", "name": name, "route": route, "state": state, "arguments": {}})
        shown += [row for row in rows if row not in calm]
    return shown


def counts(kinds: Iterable[str]) -> str:
    """Pure: how many of each kind: "2 queues, 1 exchange"."""
    numbers = Counter(kinds)
    return ", ".join(counted(number, kind) for kind, number in numbers.items())


def _with(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments as text; a header without a value stands for any value of it."""
    written = (name if value is None else f"{name}={_value(value)}" for name, value in row["arguments"].items())
    return {**row, "with": " ".join(written)}


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
