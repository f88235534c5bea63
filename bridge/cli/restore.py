"""``postdate restore``: park again what the journal has and Redis has lost."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated

import typer

from bridge.cli.acting import operate, settings_for
from bridge.cli.filters import Filters, key_in, with_filters
from bridge.cli.from_intake import CompleteOption, FromIntakeOption, SinceOption, replay_intake
from bridge.cli.importing import MaxRateOption, OverdueOption
from bridge.cli.listing import Looking
from bridge.cli.operation import followed
from bridge.cli.options import ConfigOption, DryRunOption, NoteOption, Output, OutputOption, YesOption
from bridge.cli.output import ask, facts
from bridge.core.errors import FAILED, SettingsError
from bridge.operate.documents import RestoreCounts
from bridge.operate.find import as_an_option
from bridge.operate.operator import Operator
from bridge.operate.remote import NAMED
from bridge.operate.restoring import read_order
from bridge.operate.verbs import RESTORE
from bridge.pipeline.putback import RATE, Overdue, Pace
from bridge.pipeline.restore import RestoreOrder
from bridge.settings import settings_from
from bridge.telemetry.printable import complain


@partial(with_filters, names=("route", "key", "due_after", "due_before"))
def restore_messages(
    only: Annotated[str | None, typer.Argument(metavar="[ROUTE]", help="Only this route, as --route.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this message. Repeatable.")] = None,
    *,
    filters: Filters,
    cancelled: Annotated[
        bool, typer.Option("--cancelled", help="Also what was cancelled or replaced, as far back as journal.keep.")
    ] = False,
    overdue: OverdueOption = Overdue.DELIVER,
    max_rate: MaxRateOption = RATE,
    note: NoteOption = "",
    from_intake: FromIntakeOption = False,
    since: SinceOption = None,
    complete: CompleteOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Bring back what Redis has lost.

    The journal has every message: it comes back with its own id, byte for byte, at its own due moment. Without a
    journal, Kafka still has the records of a route while its intake topics keep them (--from-intake): they get new ids.
    What Redis has is left alone, so a restore may be repeated, interrupted, and run beside instances. Dead letters
    get the restore's moment as `died`. The page and the API show a running restore, and stop it.
    """
    route = only or filters["route"]
    if from_intake:
        others = any(value for name, value in filters.items() if name != "route")
        if route is None or ids or others or cancelled:
            raise SettingsError("--from-intake needs a ROUTE, and takes no other filter.")
        if NAMED.get():
            raise SettingsError("--from-intake reads Kafka and writes to Redis itself. Leave out --api.")
        ways = overdue, Pace(max_rate)
        found = asyncio.run(replay_intake(settings_from(config), route, since, ways, note, dry_run, yes, complete))
        facts(output, found, [(name, str(value)) for name, value in found.items()])
        return
    if complete:
        raise SettingsError("--complete belongs to --from-intake. A restore without a filter ends the alarm by itself.")
    if since is not None:
        raise SettingsError("--since belongs to --from-intake. Use --due-after.")
    order = read_order(
        time.time_ns() // 1_000_000,
        as_an_option,
        route=route,
        key=key_in(filters),
        ids=ids,
        due_after=filters["due_after"],
        due_before=filters["due_before"],
        cancelled=cancelled,
        overdue=overdue,
        max_rate=max_rate,
    )
    counts, trouble = operate(settings_for(config), lambda operator: _restore(operator, order, note, dry_run, yes))
    if counts is not None:
        document = counts.as_dict()
        facts(output, document, [(name.replace("_", " "), str(number)) for name, number in document.items()])
    if trouble:
        complain(trouble)
        raise typer.Exit(FAILED)


async def _restore(
    operator: Operator, order: RestoreOrder, note: str, dry_run: bool, yes: bool
) -> tuple[RestoreCounts | None, str]:
    """Count, ask, restore, and wait for the end. Return the counts, and why they are not all; "" where they are."""
    for other in await operator.operations():
        if other.verb == RESTORE and other.state == "running":
            far = f"{other.done + other.skipped:,}" + (f" of {other.total:,}" if other.total is not None else "")
            complain(f"Another restore is running, by {other.by}: {far}. They take turns; what it restores is `there`.")
    if dry_run or not yes:
        preview = await operator.preview_restore(order, progress=Looking("Counted"))
        cut = "" if preview.complete else "Not counted to the end: over the API that takes too long."
        if dry_run:
            return preview.counts, cut
        if cut:
            complain(f"Warning: {cut}")
        fact = f"Messages to restore: {preview.count}. Due now: {preview.counts.overdue}."
        ask(fact, "Restore them?", [fact])
    found = await followed(operator, await operator.restore(order, note), "Looked at")
    return found.counts, "" if found.state == "done" else found.text
