"""``postdate import``: put back what `postdate export` wrote."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from io import TextIOWrapper
from itertools import count
from typing import Annotated, Any

import typer

from bridge.cli.acting import user
from bridge.cli.listing import Looking
from bridge.cli.options import ConfigOption, DryRunOption, Output, OutputOption
from bridge.cli.output import facts
from bridge.core.errors import FAILED, SettingsError
from bridge.desk.past import AuditEntry
from bridge.operate.export import DamagedLine
from bridge.operate.importing import Import, Imported
from bridge.operate.select import unknown_route
from bridge.operate.stores import KeptStores
from bridge.pipeline.putback import RATE, Fate, Overdue, Pace, PutBack
from bridge.settings import Settings, settings_from
from bridge.settings.model import BrokerKind
from bridge.telemetry.printable import complain, say

#: Damaged lines that are named.
_NAMED = 20

OverdueOption = Annotated[
    Overdue, typer.Option("--overdue", help="What becomes of messages whose due moment has passed.")
]
MaxRateOption = Annotated[
    int, typer.Option("--max-rate", metavar="N", min=1, max=1_000_000, help="At most this many messages a second.")
]


def import_messages(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of `postdate export`. - reads standard input.")],
    config: ConfigOption = None,
    route: Annotated[
        list[str] | None, typer.Option("--route", metavar="ROUTE", help="Only this route. Repeatable.")
    ] = None,
    overdue: OverdueOption = Overdue.DELIVER,
    max_rate: MaxRateOption = RATE,
    dry_run: DryRunOption = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Put back the messages of a file of `postdate export`.

    Each keeps its id, key and due moment. What the store has stays as it is, so the import may be repeated, also while
    postdate runs. A message that was delivered after the export comes again, with the same x-delay-id.

    A damaged line is named and passed over. Exit code 1: a line was damaged or refused, or the file was cut off.
    """
    settings = settings_from(config)
    if unknown := [name for name in route or () if name not in settings.routes]:
        raise SettingsError(unknown_route(settings.routes, unknown[0]))
    ways = overdue, Pace(max_rate), dry_run
    with _opened(file) as lines:
        found = asyncio.run(_import(settings, lines, frozenset(route or ()), ways))
    _report(output, found, dry_run)
    if found.damaged or found.refused or not found.whole:
        raise typer.Exit(FAILED)


def _opened(file: str) -> AbstractContextManager[Iterable[str]]:
    """Open a file, or standard input. Bytes that are no UTF-8 damage their line only."""
    if file == "-":
        return nullcontext(TextIOWrapper(sys.stdin.buffer, "utf-8", "replace"))
    try:
        return open(file, encoding="utf-8", errors="replace")
    except OSError as error:
        raise SettingsError(f"Cannot read {file}: {error.strerror}.") from None


async def _import(
    settings: Settings, lines: Iterable[str], routes: frozenset[str], ways: tuple[Overdue, Pace, bool]
) -> Imported:
    """``ways``: how messages are put back, as ``PutBack`` takes it; the last one is whether they are only counted."""
    stores, damaged = KeptStores(settings), count(1)

    async def open_broker(broker: BrokerKind) -> PutBack:
        return PutBack(await stores.store(broker), await stores.desk(), *ways)

    def tell(text: str) -> None:
        if (number := next(damaged)) <= _NAMED:
            complain(f"{text[0].upper()}{text[1:]}.")
        elif number == _NAMED + 1:
            complain("More lines are damaged.")

    try:
        found = await Import(settings, routes, open_broker).run(lines, tell, Looking("Read"))
        put = sum(number for (_, word), number in found.counts.items() if word in (Fate.PARKED, Fate.DEAD))
        if put and not ways[2]:
            await (await stores.desk()).note(AuditEntry(user(), "import", f"the export of {found.exported}", put))
        return found
    except DamagedLine as error:
        raise SettingsError(f"Nothing was done: {error}.") from None
    finally:
        await stores.close()


def totals(counts: Mapping[tuple[str, Fate], int]) -> dict[str, int]:
    """Return the counts of all routes together. Pure."""
    return {word.value: sum(number for (_, kept), number in counts.items() if kept is word) for word in Fate}


def _report(output: Output, found: Imported, dry_run: bool) -> None:
    """Print the counts, and on standard error what was not put back."""
    document: dict[str, Any] = {"dry_run": dry_run, "exported": found.exported, "read": found.read}
    document |= totals(found.counts) | {"other_routes": found.other_routes, "damaged": found.damaged}
    document |= {"refused": found.refused.total(), "complete": found.whole}
    facts(output, document, [(name, str(value)) for name, value in document.items()])
    for reason, number in found.refused.items():
        complain(f"Messages refused: {number}. {reason[0].upper()}{reason[1:]}{'' if reason.endswith('?') else '.'}")
    if not found.whole:
        complain(
            "The file was cut off: its last line is missing, or its count does not fit. All lines before it count."
        )
    if dry_run:
        say("Nothing was changed, because of --dry-run.")
        say("Which messages were delivered after the export is not known. They are among the parked ones above.")
