"""``postdate migrate``: move to postdate from other ways to delay messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bridge.app.brokers import migration_of
from bridge.cli.options import ConfigOption, Output, OutputOption, example
from bridge.cli.output import rows
from bridge.core.errors import FINE, REFUSED, NotFound, Refused, SettingsError
from bridge.desk.migration import Means, Migration, Progress
from bridge.settings import load
from bridge.telemetry.printable import complain, printable, say

migrate = typer.Typer(
    help="Move to postdate from other ways to delay messages.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)


@migrate.callback()
def group() -> None:
    """Keep `plugin` a command of its own: a group with one command would become that command."""


@migrate.command(
    epilog=example(
        "postdate migrate plugin",
        "postdate migrate plugin --apply --exchange orders --rabbitmqctl 'docker exec rabbit rabbitmqctl'",
    )
)
def plugin(
    config: ConfigOption = None,
    exchange: Annotated[
        list[str] | None, typer.Option("--exchange", metavar="NAME", help="Only this exchange. Repeatable.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do the steps, as far as they can go.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the steps. This is the default.")] = False,
    rabbitmqctl: Annotated[
        str, typer.Option("--rabbitmqctl", metavar="COMMAND", help="How to run rabbitmqctl on a node of the broker.")
    ] = "",
    paused: Annotated[
        bool, typer.Option("--paused", help="All that publishes to these exchanges is paused for the moment.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Move exchanges of RabbitMQ's delayed-message plugin to postdate.

    Producers keep the exchange's name and x-delay. Without --apply the steps are printed, and nothing is changed.
    A step that cannot be done safely is refused, with what to do. After a kill, run the same command again.

    It needs the management API. Replacing an exchange also needs --rabbitmqctl: for less than a second it holds the
    plugin, and moves what waits there to another exchange of the plugin. With --paused and no waiting message it does
    without.

    Exit code 1: a step is not done yet. 5: a step is refused.
    """
    if apply and dry_run:
        raise SettingsError("--apply and --dry-run exclude each other.")
    settings, means = load(config, os.environ), Means(rabbitmqctl, paused)
    moving = migration_of("rabbitmq")
    wanted = _wanted(moving.survey(settings, means), exchange)
    worst = FINE
    for migration in wanted if apply else ():
        try:
            moving.advance(settings, migration.name, means, say)
        except Refused as error:
            complain(f"{error}.")
            worst = REFUSED
    found = wanted
    if apply:
        left = {migration.name: migration for migration in moving.survey(settings, means)}
        found = [left.get(migration.name, migration.finished()) for migration in wanted]
    _print(output, found)
    worst = max([worst, *(migration.code for migration in found)])
    if worst:
        raise typer.Exit(worst)


def _wanted(found: Sequence[Migration], names: Sequence[str] | None) -> list[Migration]:
    """Return the named migrations, or all. Raises ``NotFound``."""
    known = {migration.name for migration in found}
    if unknown := [name for name in names or () if name not in known]:
        raise NotFound(f"No exchange of the plugin's has this name: {', '.join(unknown)}. Known: {_listed(known)}.")
    return [migration for migration in found if not names or migration.name in names]


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _print(output: Output, found: Sequence[Migration]) -> None:
    if output is not Output.TEXT:
        rows(output, (), map(_row, found))
        return
    if not found:
        say("No exchange has the plugin's type, and no migration is under way.")
        return
    steps = [
        {"exchange": migration.name, "step": number, "state": step.progress.value, "what": step.text}
        for migration in found
        for number, step in enumerate(migration.steps, 1)
    ]
    rows(output, ["exchange", "step", "state", "what"], steps)
    waiting = ", ".join(
        f"{migration.name}: {'unknown' if migration.waiting is None else migration.waiting}" for migration in found
    )
    say(f"Messages that wait in the plugin: {waiting}.")
    for migration in found:
        if any(step.progress is Progress.YOURS for step in migration.steps):
            print("\n" + "\n".join(map(printable, migration.toml.splitlines())))


def _row(migration: Migration) -> dict[str, Any]:
    return {
        "exchange": migration.name,
        "type": migration.kind,
        "waiting": migration.waiting,
        "steps": [{"state": step.progress.value, "text": step.text} for step in migration.steps],
        "route": migration.toml,
    }
