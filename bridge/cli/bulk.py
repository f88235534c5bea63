"""Verbs on many dead letters at once: counted first, shown, asked about, then done in batches."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from bridge.core.errors import FAILED, SettingsError
from bridge.telemetry.plural import counted

if TYPE_CHECKING:
    from bridge.admin.desk import Desk, Filter, Row
    from bridge.cli.options import Output
    from bridge.settings import Settings

    #: Does something to these dead letters; to how many it was done.
    Act = Callable[[Desk, list[bytes]], Awaitable[int]]

_SAMPLE, _BATCH = 5, 500


def at_dead_letters(
    settings: Settings,
    wanted: Filter,
    verb: tuple[str, str],
    yes: bool,
    output: Output,
    act: Act,
    spares: Callable[[Row], bool] = lambda _: False,
) -> None:
    """Do ``act`` to all dead letters that match, after asking, and print to how many it was done. ``verb``: as an order
    and as a deed, such as "retry" and "retried". ``spares`` says which ones are left alone."""
    from bridge.app.open_desk import at_desk
    from bridge.cli.output import facts
    from bridge.cli.select import judge_strange_route

    order, deed = verb
    done = at_desk(settings, lambda desk: _on_dead_letters(desk, wanted, order, yes, act, spares), wanted.route)
    facts(output, {deed: done}, [(deed, str(done))])
    if not done:
        judge_strange_route(settings, wanted.route)


async def _on_dead_letters(
    desk: Desk, wanted: Filter, verb: str, yes: bool, act: Act, spares: Callable[[Row], bool]
) -> int:
    """How many it was done to.

    All ids are read first: a message that dies again meanwhile is not taken a second time. Raises ``SettingsError``
    where nobody can be asked, ``typer.Exit`` where the answer is no.
    """
    from bridge.core.state import State
    from bridge.telemetry.printable import say

    sample: list[Row] = []
    ids: list[bytes] = []
    async for row in desk.rows(State.DEAD, wanted):
        if spares(row):
            continue
        ids.append(row.id)
        if len(sample) < _SAMPLE:
            sample.append(row)
    if not ids:
        return 0
    if not yes:
        _ask(verb, len(ids), sample)
    done = 0
    for at in range(0, len(ids), _BATCH):
        done += await act(desk, ids[at : at + _BATCH])
        if at and sys.stderr.isatty():
            say(f"{done} of {len(ids)} ...")
    return done


def _ask(verb: str, count: int, sample: list[Row]) -> None:
    from bridge.telemetry.printable import printable, say

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(f"This would {verb} {counted(count, 'dead letter')} and there is nobody to ask: add --yes.")
    for row in sample:
        say(printable(f"  {row.id.decode()}  {row.route}  {row.reason}"))
    if count > len(sample):
        say(f"  ... and {count - len(sample)} more")
    if not typer.confirm(f"{verb.capitalize()} {counted(count, 'dead letter')}?", err=True):
        say("Nothing was done.")
        raise typer.Exit(FAILED)
