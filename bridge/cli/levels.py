"""``postdate levels``: the queues and topics in which the messages of routes without a store wait."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.options import ConfigOption, Output, OutputOption, example

if TYPE_CHECKING:
    from bridge.settings import Settings

levels = typer.Typer(
    help="Routes without a store (mode levels or ladder): declare, compare, count and remove their queues and topics.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

BeforeOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--before",
        metavar="FILE",
        help="A settings file of before; its queues of RabbitMQ are looked for, too.",
    ),
]


@levels.command(epilog=example("postdate levels setup --dry-run", "postdate levels setup"))
def setup(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print it.")] = False,
) -> None:
    """Declare what the routes without a store need. What is there already stays; a difference is refused."""
    from bridge.cli.output import say
    from bridge.cli.setup import print_topology
    from bridge.cli.wiring import declare_topology, planned_topology

    settings = _settings(config)
    if dry_run:
        print_topology(output, planned_topology(settings))
        return
    found, warnings = declare_topology(settings)
    print_topology(output, found)
    for warning in warnings:
        say(f"Warning: {warning}.")


@levels.command(epilog=example("postdate levels verify", "postdate levels verify --before old.toml"))
def verify(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Compare with what the broker has, and name what settings of before have left. Exit code 1: not the same.

    An old queue or topic that still drains is no difference.
    """
    from bridge.cli.exits import FAILED
    from bridge.cli.output import rows
    from bridge.cli.wiring import level_places, verify_topology

    settings = _settings(config)
    found = [
        {"route": row["route"], "what": row["what"], "state": row["state"], "text": row["text"]}
        for row in verify_topology(settings)
    ]
    for row in level_places(settings, _before(before)):
        if row["state"] == "old":
            what = f"{row['kind']} '{row['name']}'"
            found.append({"route": row["route"], "what": what, "state": "old", "text": row["text"]})
    rows(output, ["route", "what", "state", "text"], found)
    if any(row["state"] not in ("same", "old") for row in found):
        raise typer.Exit(FAILED)


@levels.command(epilog=example("postdate levels remove --dry-run", "postdate levels remove --before old.toml"))
def remove(
    config: ConfigOption = None,
    before: BeforeOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Those in use, too, and the exchanges; the intake stays.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete the messages in them, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print it.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete the queues and topics that settings of before have left, when they are empty."""
    from bridge.cli.output import rows, say
    from bridge.cli.wiring import remove_level_places

    removed = remove_level_places(_settings(config), _before(before), everything, force, dry_run)
    rows(output, ["route", "kind", "name", "messages"], removed)
    if not removed:
        say("There is nothing to remove.")


@levels.command(epilog=example("postdate levels stats", "postdate levels stats -o json"))
def stats(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Count the messages in each queue or topic. One that RabbitMQ is moving on at this moment is not counted."""
    from bridge.cli.output import rows
    from bridge.cli.wiring import level_places

    found = level_places(_settings(config), _before(before))
    rows(output, ["route", "kind", "name", "messages", "state"], found)


def _settings(config: Path | None) -> Settings:
    """The settings, with the routes without a store alone. Raises ``SettingsError``."""
    from bridge.cli.wiring import settings_with_routes
    from bridge.errors import SettingsError

    settings = settings_with_routes(config)
    routes = {name: route for name, route in settings.routes.items() if route.mode != "redis"}
    if not routes:
        raise SettingsError('No route has mode = "levels" or mode = "ladder": there are no levels.')
    return settings.model_copy(update={"routes": routes})


def _before(files: list[Path] | None) -> list[Any]:
    from bridge.cli.wiring import settings_of_file

    return [settings_of_file(file) for file in files or []]
