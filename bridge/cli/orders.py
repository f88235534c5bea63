"""``postdate pause``, ``resume`` and ``drain``: whether routes take messages in and deliver them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from bridge.cli.acting import operate, settings_for
from bridge.cli.options import ConfigOption, NoteOption, Output, OutputOption, YesOption
from bridge.cli.output import confirm
from bridge.cli.output import rows as print_rows
from bridge.core.errors import SettingsError
from bridge.operate.documents import RouteCounts
from bridge.operate.operator import Operator
from bridge.operate.verbs import DRAIN, PAUSE, RESUME, RouteVerb

RoutesArgument = Annotated[list[str] | None, typer.Argument(metavar="ROUTE", help="Names of routes.")]
AllOption = Annotated[bool, typer.Option("--all", help="All routes that have a store.")]
_COLUMNS = ["route", "state", "since", "by", "reason", "parked", "held"]


def _command(verb: RouteVerb) -> Callable[..., None]:
    def command(
        routes: RoutesArgument = None,
        every: AllOption = False,
        note: NoteOption = "",
        reason: Annotated[str | None, typer.Option("--reason", hidden=True)] = None,
        yes: YesOption = False,
        config: ConfigOption = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        if reason is not None:
            raise SettingsError("--reason selects messages. Say why with --note.")
        if bool(routes) is every:
            raise SettingsError("Name routes, or give --all.")

        async def work(operator: Operator) -> list[RouteCounts]:
            names = await operator.routes_for(verb.state, routes)
            if every and not yes:
                confirm(verb.name, "routes", len(names), [f"  {', '.join(names)}"])
            return await operator.order(names, verb.state, note)

        print_rows(output, _COLUMNS, [_row(counts) for counts in operate(settings_for(config), work)])

    command.__doc__ = verb.text
    return command


pause, resume, drain = _command(PAUSE), _command(RESUME), _command(DRAIN)


def _row(counts: RouteCounts) -> dict[str, Any]:
    found = counts.as_dict() | {"route": counts.name}
    return {column: found.get(column, 0 if column in ("parked", "held") else None) for column in _COLUMNS}
