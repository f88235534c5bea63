"""``postdate levels``: the queues and topics in which the messages of routes without a store wait."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.options import BeforeOption, ConfigOption, DryRunOption, Output, OutputOption, example

if TYPE_CHECKING:
    from bridge.settings import Settings

_NONE = "No route has mode levels or ladder, and none has left any of it."

levels = typer.Typer(
    help="Routes without a store (mode levels or ladder): make, compare, count and remove their queues and topics.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@levels.command(epilog=example("postdate levels setup --dry-run", "postdate levels setup"))
def setup(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    dry_run: DryRunOption = False,
) -> None:
    """Make the queues and topics of routes with mode levels or ladder, and of no others.

    `postdate setup` makes these too, with all that the other routes need. What is there already stays; a difference is
    refused.
    """
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.setup import make
    from bridge.core.errors import SettingsError

    settings = _without_store(settings_with_routes(config))
    if not settings.routes:
        raise SettingsError('No route has mode = "levels" or mode = "ladder": there is nothing to make.')
    make(settings, output, dry_run)


@levels.command(epilog=example("postdate levels verify", "postdate levels verify --before old.toml"))
def verify(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Compare with what the broker has, and name what settings of before have left. Exit code 1: not the same.

    An old queue or topic that still drains is no difference. Also of routes that have a store now.
    """
    from bridge.app.leftovers import level_places
    from bridge.app.wiring import settings_with_routes, verify_topology
    from bridge.cli.output import rows
    from bridge.core.errors import FAILED

    settings = settings_with_routes(config)
    found = [
        {"route": row["route"], "what": row["what"], "state": row["state"], "text": row["text"]}
        for row in verify_topology(_without_store(settings))
    ]
    places, unknown = level_places(settings, _before(before))
    for row in places:
        if row["state"] in ("old", "no route"):
            what = f"{row['kind']} '{row['name']}'"
            found.append({"route": row["route"], "what": what, "state": row["state"], "text": row["text"]})
    rows(output, ["route", "what", "state", "text"], found)
    _say_unknown(unknown, found)
    if any(row["state"] not in ("same", "old", "no route", "few") for row in found):
        raise typer.Exit(FAILED)


@levels.command(epilog=example("postdate levels remove --dry-run", "postdate levels remove --before old.toml"))
def remove(
    config: ConfigOption = None,
    before: BeforeOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Those in use, too, and RabbitMQ's exchanges; the intake stays.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete the messages in them, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print it.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete the queues and topics that settings of before have left, and that are empty and not in use.

    Also those of routes that have a store now. Exit code 5: some stay, with the reason.
    """
    from bridge.app.leftovers import fronts_left, remove_level_places
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.output import rows
    from bridge.core.errors import REFUSED
    from bridge.telemetry.printable import complain, say

    settings, old = settings_with_routes(config), _before(before)
    found = remove_level_places(settings, old, everything, force, dry_run)
    rows(output, ["route", "kind", "name", "messages", "state"], found)
    if not found:
        say("There is nothing to remove.")
    for text in fronts_left(settings, old).values():
        say(f"{text[0].upper()}{text[1:]}.")
    kept = [row for row in found if row["state"] == "kept"]
    for row in kept:
        complain(f"{row['kind']} '{row['name']}' stays: {row['text']}.")
    if kept:
        raise typer.Exit(REFUSED)


@levels.command(epilog=example("postdate levels stats", "postdate levels stats -o json"))
def stats(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Count the messages in each queue or topic, and in the intakes of these routes. One that RabbitMQ is moving on at
    this moment is not counted."""
    from bridge.app.leftovers import level_places
    from bridge.app.unread import intake_places
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.output import rows

    settings = settings_with_routes(config)
    levels_found, unknown = level_places(settings, _before(before))
    found = [*intake_places(settings), *levels_found]
    rows(output, ["route", "kind", "name", "messages", "state"], found)
    _say_unknown(unknown, found)


def _say_unknown(unknown: list[str], found: list[dict[str, Any]]) -> None:
    """What cannot be told; or, where all is known, that there is nothing."""
    from bridge.telemetry.printable import say

    for text in unknown:
        say(f"Warning: {text}.")
    if not found and not unknown:
        say(_NONE)


def _without_store(settings: Settings) -> Settings:
    """The routes that need levels now."""
    return settings.only(name for name, route in settings.routes.items() if route.mode != "redis")


def _before(files: list[Path] | None) -> list[Any]:
    from bridge.app.wiring import settings_of_file

    return [settings_of_file(file) for file in files or []]
