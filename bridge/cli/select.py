"""Which messages a command acts on: those with these ids, with a key, or all dead letters that match a filter."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Sequence

import typer

from bridge.admin.desk import Desk, Filter, Row
from bridge.admin.select import ids_of_key, read_ids, strange_route
from bridge.app.open_desk import at_desk
from bridge.cli.audited import note
from bridge.cli.options import Output
from bridge.cli.output import facts
from bridge.core.errors import FAILED, SettingsError
from bridge.core.state import State
from bridge.settings import Settings
from bridge.telemetry.printable import complain, printable, say

#: Acts on these dead letters; returns how many were still dead.
Act = Callable[[Desk, list[bytes]], Awaitable[int]]

_SAMPLE, _BATCH = 5, 500


async def targets(
    desk: Desk, settings: Settings, ids: Sequence[str] | None, key: str | None, route: str | None
) -> list[bytes]:
    """Return the ids of the messages named by ids or by key.

    Raises ``SettingsError``, ``NotFound``, and ``Refused`` for a key that too many messages have.
    """
    if bool(ids) == (key is not None):
        raise SettingsError("Give ids, or --key with --route.")
    if key is None:
        return read_ids(ids or [])
    if route is None and len(settings.routes) != 1:
        raise SettingsError(f"--key needs --route. Configured routes: {', '.join(settings.routes) or 'none'}.")
    return await ids_of_key(desk, settings, os.fsencode(key), route)


def judge_strange_route(settings: Settings, route: str | None) -> None:
    """Explain why nothing was found. Raises ``SettingsError`` for a route that is not configured."""
    text = strange_route(settings, route)
    if route is not None and route not in settings.routes:
        raise SettingsError(text)
    if text:
        complain(f"Warning: {text}")


def at_dead_letters(
    settings: Settings,
    wanted: Filter,
    verb: tuple[str, str],
    yes: bool,
    output: Output,
    act: Act,
    spares: Callable[[Row], bool] = lambda _: False,
    reason: str = "",
) -> None:
    """Ask for confirmation, ``act`` on all dead letters that match, and print on how many.

    ``verb`` is an order and a deed, such as "retry" and "retried". ``spares`` tells which ones are skipped.
    ``reason`` goes to the audit log.
    """
    order, deed = verb
    done = at_desk(
        settings, lambda desk: _on_dead_letters(desk, wanted, (order, reason), yes, act, spares), wanted.route
    )
    facts(output, {deed: done}, [(deed, str(done))])
    if not done:
        judge_strange_route(settings, wanted.route)


async def _on_dead_letters(
    desk: Desk, wanted: Filter, order: tuple[str, str], yes: bool, act: Act, spares: Callable[[Row], bool]
) -> int:
    """Return how many dead letters were acted on.

    All ids are read first: a message that dies again meanwhile is not taken a second time. Raises ``SettingsError``
    where there is no terminal to ask on, ``typer.Exit`` where the answer is no.
    """
    verb, reason = order
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
    if done:
        filters = {"route": wanted.route, "reason": wanted.reason}
        text = " ".join(f"{name}={value}" for name, value in filters.items() if value is not None)
        await note(desk, verb, f"dead letters {text}".rstrip(), done, reason)
    return done


def _ask(verb: str, count: int, sample: Sequence[Row]) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SettingsError(
            f"Dead letters to {verb}: {count}. Confirm with --yes, because there is no terminal to ask on."
        )
    for row in sample:
        say(printable(f"  {row.id.decode()}  {row.route}  {row.reason}"))
    if count > len(sample):
        say(f"  ... and {count - len(sample)} more")
    if not typer.confirm(f"{verb.capitalize()} these dead letters ({count})?", err=True):
        say("Nothing was done.")
        raise typer.Exit(FAILED)
