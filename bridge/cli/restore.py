"""``postdate restore``: park again what the journal has and Redis has lost."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from bridge.cli.acting import user
from bridge.cli.filters import Filters, with_filters
from bridge.cli.from_intake import SinceOption, replay_intake
from bridge.cli.importing import MaxRateOption, OverdueOption
from bridge.cli.listing import Looking
from bridge.cli.options import ConfigOption, DryRunOption, Output, OutputOption, YesOption
from bridge.cli.output import facts
from bridge.core.errors import FAILED, SettingsError
from bridge.core.journal import UNDONE, JournalFilter
from bridge.desk.past import AuditEntry
from bridge.operate.journals import restore
from bridge.operate.moments import read_border_ms
from bridge.operate.select import read_ids, unknown_route
from bridge.operate.stores import at_desk
from bridge.pipeline.putback import RATE, Fate, Overdue, Pace
from bridge.pipeline.restore import Restored, RestoreOrder
from bridge.settings import settings_from
from bridge.telemetry.printable import say


@partial(with_filters, names=("key", "due_after", "due_before"))
def restore_messages(
    route: Annotated[str | None, typer.Argument(metavar="[ROUTE]", help="Only this route.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this message. Repeatable.")] = None,
    *,
    filters: Filters,
    cancelled: Annotated[
        bool, typer.Option("--cancelled", help="Also what was cancelled or replaced, as far back as journal.keep.")
    ] = False,
    overdue: OverdueOption = Overdue.DELIVER,
    max_rate: MaxRateOption = RATE,
    from_intake: Annotated[
        bool, typer.Option("--from-intake", help="Without a journal: read the intake topics of a Kafka route again.")
    ] = False,
    since: SinceOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Bring back what Redis has lost.

    The journal has every message: it comes back with its own id, byte for byte, at its own due moment. Without a
    journal, Kafka still has the records of a route for the retention of its intake topics (--from-intake): they come
    back with new ids. What Redis has is left alone, so a restore may be repeated, interrupted, and run beside
    instances.
    """
    settings = settings_from(config)
    if route is not None and route not in settings.routes:
        raise SettingsError(unknown_route(settings.routes, route))
    if from_intake:
        if route is None or ids or any(filters.values()) or cancelled:
            raise SettingsError("--from-intake needs a ROUTE, and takes no other filter.")
        return replay_intake(settings, route, since, (overdue, Pace(max_rate)), dry_run, yes, output)
    if since is not None:
        raise SettingsError("--since belongs to --from-intake. Use --due-after.")
    now_ms, plain = time.time_ns() // 1_000_000, JournalFilter()
    wanted = JournalFilter(
        (*plain.states, *UNDONE) if cancelled else plain.states,
        route,
        None if filters["key"] is None else os.fsencode(filters["key"]),
        tuple(read_ids(ids)) if ids else None,
        read_border_ms("--due-after", filters["due_after"], now_ms),
        read_border_ms("--due-before", filters["due_before"], now_ms),
    )
    order = RestoreOrder(wanted, overdue, max_rate, by=str(user()))
    if dry_run or not yes:
        found = asyncio.run(restore(settings, replace(order, dry_run=True)))
        if dry_run:
            return _show(output, found)
        _confirm(found)
    looking = Looking("Looked at")
    found = asyncio.run(restore(settings, order, lambda part: looking(part.looked_at)))
    if put := found.total(Fate.PARKED) + found.total(Fate.DEAD):
        entry = AuditEntry(user(), "restore", _named(wanted), put)
        at_desk(settings, lambda desk: desk.note(entry))
    return _show(output, found)


def _named(wanted: JournalFilter) -> str:
    """Return how the audit log calls what was restored. Pure."""
    key = None if wanted.key is None else os.fsdecode(wanted.key)
    words = {"route": wanted.route, "key": key, "ids": wanted.ids and len(wanted.ids)}
    text = " ".join(f"{name}={value}" for name, value in words.items() if value is not None)
    return f"from the journal {text}".rstrip()


def _show(output: Output, found: Restored) -> None:
    document = {fate.value: found.total(fate) for fate in Fate} | {"overdue": found.overdue}
    facts(output, document, [(name.replace("_", " "), str(number)) for name, number in document.items()])


def _confirm(found: Restored) -> None:
    """Raise ``SettingsError`` where there is no terminal to ask on, ``typer.Exit`` where the answer is no."""
    text = f"Messages to restore: {found.total(Fate.PARKED) + found.total(Fate.DEAD)}. Due now: {found.overdue}."
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(f"{text} Confirm with --yes, because there is no terminal to ask on.")
    say(text)
    if not typer.confirm("Restore them?", err=True):
        say("Nothing was done.")
        raise typer.Exit(FAILED)
