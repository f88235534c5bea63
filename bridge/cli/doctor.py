"""``postdate doctor``: what is wrong with this installation, and what to do."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import typer

from bridge.admin.diagnosis import CheckResult, Severity, fail
from bridge.app.doctor import examine_all, exit_code
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.core.errors import WRONG, SettingsError
from bridge.settings import settings_with_routes
from bridge.telemetry.printable import printable, say


def doctor(
    config: ConfigOption = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Send a message of postdate's own through each broker, and wait for it.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Find out what is wrong, and say what to do. Nothing is changed.

    It makes all checks of `postdate check`, asks Redis and the brokers about themselves, and looks at the running
    instances.

    Exit code 0: all is well. 1: there are warnings. 2: something failed, or the settings are wrong.
    """
    try:
        found = examine_all(settings_with_routes(config), probe)
    except SettingsError as error:
        found = [fail("settings", str(error), WRONG)]
    if output is Output.TEXT and sys.stdout.isatty():
        for one in found:
            _print(one)
    else:
        rows(output, ["level", "subject", "text", "advice"], [_row(one) for one in found])
    counted = Counter(one.level for one in found)
    say(", ".join(f"{level.value}: {counted[level]}" for level in Severity))
    if code := exit_code(found):
        raise typer.Exit(code)


def _print(one: CheckResult) -> None:
    """Print a result for a person: the fact, and what to do on a line below it."""
    print(printable(f"{one.level.value:<4}  {one.subject}: {one.text}."))
    if one.advice:
        print(printable(f"      -> {one.advice}."))


def _row(one: CheckResult) -> dict[str, str]:
    return {"level": one.level.value, "subject": one.subject, "text": one.text, "advice": one.advice}
