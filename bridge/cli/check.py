"""``postdate check``: judge the settings, the stores and the topology without changing anything."""

from __future__ import annotations

import typer

from bridge.cli.options import BeforeOption, ConfigOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.core.errors import FINE
from bridge.operate.check import check_all
from bridge.settings import settings_of_file, settings_with_routes


def check(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Check settings, store and broker topology. Nothing is changed.

    Exit code 0: ready to run, possibly with warnings. 1: a check failed. 2: the settings are wrong. 4: the store or
    a broker is unreachable.
    """
    settings, old = settings_with_routes(config), [settings_of_file(file) for file in before or []]
    found = check_all(settings, old)
    rows(output, ["level", "subject", "text"], [result.row() for result in found])
    code = max(result.code for result in found)
    if code != FINE:
        raise typer.Exit(code)
