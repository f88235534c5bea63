"""``postdate levels``: the queues and topics in which the messages of routes without a store wait."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.admin.leftovers import Intake, Place, Use
from bridge.admin.topology import Name
from bridge.cli.options import BeforeOption, ConfigOption, DryRunOption, Output, OutputOption, example

if TYPE_CHECKING:
    from bridge.settings import Settings

_COLUMNS = ["route", "kind", "name", "messages", "state"]
#: States that are no difference.
_CALM = ("same", "old", "no route", "few")
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
    from bridge.app.leftovers import survey_levels
    from bridge.app.topology import verify_topology
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.output import rows
    from bridge.core.errors import FAILED

    settings = settings_with_routes(config)
    found = [
        _standing(one.part.route, one.part.name, one.state, one.text)
        for one in verify_topology(_without_store(settings))
    ]
    places, unknown = survey_levels(settings, _before(before))
    for place in places:
        if place.use in (Use.OLD, Use.NO_ROUTE):
            found.append(_standing(place.route, Name(place.kind, place.name), place.use, place.text))
    rows(output, ["route", "what", "state", "text"], found)
    _say_unknown(unknown, found)
    if any(row["state"] not in _CALM for row in found):
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
    from bridge.app.leftovers import never_removed, remove_levels
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.output import rows
    from bridge.core.errors import REFUSED
    from bridge.telemetry.printable import complain, say

    settings, old = settings_with_routes(config), _before(before)
    found = remove_levels(settings, old, everything, force, dry_run)
    gone = "removable" if dry_run else "removed"
    rows(output, _COLUMNS, [_place(one, "kept" if one.kept else gone, one.kept) for one in found])
    if not found:
        say("There is nothing to remove.")
    for text in never_removed(settings, old):
        say(f"{text[0].upper()}{text[1:]}.")
    kept = [one for one in found if one.kept]
    for one in kept:
        complain(f"{one.kind} '{one.name}' stays: {one.kept}.")
    if kept:
        raise typer.Exit(REFUSED)


@levels.command(epilog=example("postdate levels stats", "postdate levels stats -o json"))
def stats(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Count the messages in each queue or topic, and in the intakes of these routes. One that RabbitMQ is moving on at
    this moment is not counted."""
    from bridge.app.leftovers import count_intakes, survey_levels
    from bridge.app.wiring import settings_with_routes
    from bridge.cli.output import rows

    settings = settings_with_routes(config)
    places, unknown = survey_levels(settings, _before(before))
    found = [*map(_intake, count_intakes(settings)), *(_place(one, one.use, one.text) for one in places)]
    rows(output, _COLUMNS, found)
    _say_unknown(unknown, found)


def _standing(route: str, name: Name, state: str, text: str) -> dict[str, Any]:
    return {"route": route, "what": str(name), "state": str(state), "text": text}


def _place(one: Place, state: str, text: str) -> dict[str, Any]:
    return {
        "route": one.route,
        "kind": one.kind,
        "name": one.name,
        "messages": one.messages,
        "state": str(state),
        "text": text,
        "is_dead": one.is_dead,
        "uncounted": one.uncounted,
    }


def _intake(one: Intake) -> dict[str, Any]:
    state = "intake" if one.readers else "intake, nobody takes"
    return {**_place(Place(one.route, one.kind, one.name, one.messages, Use.IN_USE), state, "")}


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
