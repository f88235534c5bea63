"""Bulk operations of commands: counted, confirmed, begun, and followed to their end."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from typing import NamedTuple

import typer

from bridge.cli.acting import operate
from bridge.cli.filters import Filters, criteria_in
from bridge.cli.listing import Looking
from bridge.cli.options import Output
from bridge.cli.output import confirm, facts
from bridge.cli.select import explain_nothing
from bridge.core.errors import FAILED, NotFound, PostdateError
from bridge.core.state import State
from bridge.operate.bulk import MESSAGES_MAX, SAMPLE, Selection
from bridge.operate.documents import DryRun, OperationFacts
from bridge.operate.operator import Due, Operator
from bridge.operate.verbs import Verb
from bridge.settings import Settings
from bridge.telemetry.printable import complain, say

#: How often a running operation is asked for its progress: at first, and at most.
_FIRST_S, _ASK_S = 0.02, 0.25


class BulkWays(NamedTuple):
    """How a bulk operation is begun. ``dry_run``: it is only counted."""

    note: str
    max_rate: int | None
    yes: bool
    dry_run: bool


def at_matching(
    verb: Verb, settings: Settings, state: State, filters: Filters, due: Due | None, ways: BulkWays, output: Output
) -> None:
    """Ask for confirmation, act on all messages that match, and print on how many."""
    found = operate(settings, lambda operator: _act(operator, verb, state, filters, due, ways), filters["route"])
    if isinstance(found, DryRun):
        facts(output, found.as_dict(), [("messages", str(found.count))])
        say("\n".join([*_sample(found), "Nothing was changed, because of --dry-run."]))
        return
    if found is None or not (found.done or found.skipped or found.state != "done"):
        explain_nothing(settings, filters["route"])
        raise NotFound(f"No message matches that `postdate {verb.name}` changes. Nothing was done.")
    skipped = [("skipped", str(found.skipped))] if found.skipped else []
    facts(output, found.as_dict(), [(verb.done, str(found.done)), *skipped])
    if found.state != "done":
        complain(found.text)
        raise typer.Exit(FAILED)


async def _act(
    operator: Operator, verb: Verb, state: State, filters: Filters, due: Due | None, ways: BulkWays
) -> OperationFacts | DryRun | None:
    """Return the operation that has ended, or the dry run; None where nothing matches. Raises as ``confirm``."""
    wanted = criteria_in(filters, await operator.now_ms())
    what = json.dumps({"state": state.value, **wanted.given()})
    chosen = Selection(None, state, wanted, MESSAGES_MAX, what)
    preview = await operator.preview(verb, chosen, due)
    if ways.dry_run or not ways.yes:
        preview = await _counted(operator, verb, chosen, due, preview)
    if preview.complete and not preview.count:
        return None
    if ways.dry_run:
        return preview
    if not ways.yes:
        confirm(verb.name, "messages", str(preview.count), _sample(preview))
    return await followed(operator, await operator.bulk(verb, chosen, due, ways.max_rate, ways.note), "Acted on")


async def _counted(operator: Operator, verb: Verb, chosen: Selection, due: Due | None, first: DryRun) -> DryRun:
    """Count to the end."""
    found, looking = first, Looking("Counted")
    while found.next is not None:
        looking(found.count)
        more = await operator.preview(verb, chosen, due, found.next)
        sums = {"count": found.count + more.count, "sample": [*found.sample, *more.sample][:SAMPLE]}
        found = more.model_copy(update=sums)
    return found


def _sample(preview: DryRun) -> list[str]:
    lines = [f"  {row.id}  {row.route}  {row.reason or f'due {row.due}'}" for row in preview.sample]
    more = preview.count - len(lines)
    return [*lines, f"  ... and {more} more"] if more else lines


async def followed(operator: Operator, begun: OperationFacts, word: str) -> OperationFacts:
    """Show how far an operation is until it has ended. Ctrl+C stops it, a second one does not wait for that."""
    found, looking, stopping, wait_s = begun, Looking(word), False, _FIRST_S
    # Ctrl+C between two questions: an exception inside a call of the database has crashed the process.
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    while found.state == "running":
        with suppress(TimeoutError):
            await asyncio.wait_for(interrupted.wait(), wait_s)
            if stopping:
                raise KeyboardInterrupt
            interrupted.clear()
            stopping = True
            with suppress(PostdateError):  # it has ended meanwhile, or the store is away
                await operator.stop(found.id)
        wait_s = min(2 * wait_s, _ASK_S)
        found = await operator.operation(found.id)
        looking(found.done + found.skipped, found.total)
    if stopping and found.state != "done":
        complain(f"{found.text} Messages done: {found.done}.")
        raise KeyboardInterrupt
    return found
