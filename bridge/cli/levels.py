"""``postdate levels``: the queues and topics in which messages of routes without a store wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bridge.app.survey import count_intakes, never_removed, remove_levels, survey_levels
from bridge.app.topology import verify_topology
from bridge.cli.declare import make
from bridge.cli.options import BeforeOption, ConfigOption, DryRunOption, Output, OutputOption, example
from bridge.cli.output import rows
from bridge.core.errors import FAILED, REFUSED, SettingsError
from bridge.desk.leftovers import Use
from bridge.desk.topology import Name, Standing
from bridge.operate.describe import intake_of, level_of
from bridge.settings import Settings, settings_of_file, settings_with_routes
from bridge.telemetry.printable import complain, say

_COLUMNS = ["route", "kind", "name", "messages", "state"]
#: A part in another state is a difference.
_NO_DIFFERENCE = (Standing.SAME, Standing.FEW)

levels = typer.Typer(
    help="Manage the queues and topics of routes without a store (mode levels, ladder or native).",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)


@levels.command(epilog=example("postdate levels setup --dry-run", "postdate levels setup"))
def setup(config: ConfigOption = None, output: OutputOption = Output.TEXT, dry_run: DryRunOption = False) -> None:
    """Create the queues and topics of routes without a store.

    `postdate setup` creates them too, with what the other routes need. Existing parts stay as they are; a difference is
    refused (exit code 5).
    """
    settings = _without_store(settings_with_routes(config))
    if not settings.routes:
        raise SettingsError("No route has mode levels, ladder or native. There is nothing to create.")
    make(settings, output, dry_run)


@levels.command(epilog=example("postdate levels verify", "postdate levels verify --before old.toml"))
def verify(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Compare the queues and topics with those on the broker.

    Stale ones, which only previous settings used, are listed too. They do not count as a difference. Exit code 1:
    something is missing or different.
    """
    settings = settings_with_routes(config)
    compared = verify_topology(_without_store(settings))
    found = [_standing(finding.part.route, finding.part.name, finding.state, finding.text) for finding in compared]
    places, unknown = survey_levels(settings, _before(before))
    for place in places:
        if place.use in (Use.OLD, Use.NO_ROUTE):
            found.append(_standing(place.route, Name(place.kind, place.name), place.use, place.text))
    rows(output, ["route", "what", "state", "text"], found)
    _warn(unknown, found)
    if any(finding.state not in _NO_DIFFERENCE for finding in compared):
        raise typer.Exit(FAILED)


@levels.command(epilog=example("postdate levels remove --dry-run", "postdate levels remove --before old.toml"))
def remove(
    config: ConfigOption = None,
    before: BeforeOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also delete those in use and RabbitMQ exchanges, but no intake.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also delete the messages in them.")] = False,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete stale, empty queues and topics.

    Stale means that only previous settings used them, for example when the route had no store. Exit code 5: some were
    kept, with the reason.
    """
    settings, old = settings_with_routes(config), _before(before)
    found = remove_levels(settings, old, everything, force, dry_run)
    gone = "removable" if dry_run else "removed"
    rows(output, _COLUMNS, [level_of(place, "kept" if place.kept else gone, place.kept).as_dict() for place in found])
    if not found:
        say("Nothing to remove.")
    for text in never_removed(settings, old):
        say(f"{text[0].upper()}{text[1:]}.")
    kept = [candidate for candidate in found if candidate.kept]
    for candidate in kept:
        complain(f"Kept {candidate.kind} '{candidate.name}': {candidate.kept}.")
    if kept:
        raise typer.Exit(REFUSED)


@levels.command(epilog=example("postdate levels stats", "postdate levels stats -o json"))
def stats(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Count the messages in the queues, topics and intakes.

    A message that RabbitMQ is moving at this moment is not counted.
    """
    settings = settings_with_routes(config)
    places, unknown = survey_levels(settings, _before(before))
    levels = [*map(intake_of, count_intakes(settings)), *(level_of(place, place.use, place.text) for place in places)]
    found = [level.as_dict() for level in levels]
    rows(output, _COLUMNS, found)
    _warn(unknown, found)


def _standing(route: str, name: Name, state: str, text: str) -> dict[str, Any]:
    return {"route": route, "what": str(name), "state": str(state), "text": text}


def _warn(unknown: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """Print what could not be asked; or, where all was and nothing was found, that there is nothing."""
    for text in unknown:
        say(f"Warning: {text}.")
    if not found and not unknown:
        say("No route has mode levels, ladder or native, and there are no stale queues or topics.")


def _without_store(settings: Settings) -> Settings:
    return settings.only(name for name, route in settings.routes.items() if route.mode != "redis")


def _before(files: list[Path] | None) -> list[Settings]:
    return [settings_of_file(file) for file in files or []]
