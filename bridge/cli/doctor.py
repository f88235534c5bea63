"""``postdate doctor``: what is wrong with this installation, and what to do."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Annotated

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import rows
from bridge.core.errors import WRONG, SettingsError
from bridge.desk.severity import CheckResult, Severity, fail
from bridge.operate.doctor import examine_all, exit_code
from bridge.operate.remote import ApiAddress, HttpOperator, api_address, client_of
from bridge.settings import settings_with_routes
from bridge.telemetry.printable import ended, printable, say

#: The page with all sentences, in the repository and on the documentation's site.
_PAGE = "deploy/messages.md"


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

    With --api it asks the API, which examines the installation where it is served.

    Exit code 0: all is well. 1: there are warnings. 2: something failed, or the settings are wrong.
    """
    try:
        address = api_address()
        if address is None:
            found = examine_all(settings_with_routes(config), probe)
        elif probe:
            raise SettingsError("--probe needs the settings. Run it without --api, where postdate runs")
        else:
            found = asyncio.run(_examined_by(address))
    except SettingsError as error:
        found = [fail("settings", str(error), WRONG)]
    if output is Output.TEXT and sys.stdout.isatty():
        for result in found:
            _print(result)
    else:
        rows(output, ["level", "subject", "text", "advice"], [result.finding() for result in found])
    counted = Counter(result.level for result in found)
    say(", ".join(f"{level.value}: {counted[level]}" for level in Severity))
    if code := exit_code(found):
        say(f"{_PAGE} says what each sentence means, and what to do.")
        raise typer.Exit(code)


async def _examined_by(address: ApiAddress) -> list[CheckResult]:
    operator = HttpOperator(client_of(address))
    try:
        return await operator.doctor()
    finally:
        await operator.close()


def _print(result: CheckResult) -> None:
    """Print a result for a person: the fact, and what to do on a line below it."""
    print(printable(f"{result.level.value:<4}  {result.subject}: {ended(result.text)}"))
    if result.advice:
        print(printable(f"      -> {ended(result.advice)}"))
