"""``postdate list``: messages in one state, in the order of their due moments."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.options import ConfigOption, KeyOption, Output, OutputOption, ReasonOption, RouteOption

if TYPE_CHECKING:
    from bridge.admin.desk import Desk, Filter, Row
    from bridge.settings import Settings


class Listed(StrEnum):
    """The states that can be listed."""

    PARKED = "parked"
    CLAIMED = "claimed"
    DEAD = "dead"


#: In a pipe. The place is a routing key or a record key (``_place``).
_COLUMNS = {
    Listed.PARKED: ["id", "due", "wait", "route", "place", "key", "size", "tries", "reason", "next_try"],
    Listed.CLAIMED: ["id", "due", "wait", "route", "place", "key", "size", "tries", "lease_until"],
    Listed.DEAD: ["id", "died", "route", "place", "key", "size", "tries", "reason"],
}


#: On a terminal: what is short first, and the moments only where there is room for them.
_TABLE = {
    Listed.PARKED: ["id", "when", "due", "route", "place", "key", "size", "tries", "next", "reason"],
    Listed.CLAIMED: ["id", "when", "due", "route", "place", "key", "size", "tries", "lease"],
    Listed.DEAD: ["id", "when", "died", "route", "place", "key", "size", "tries", "reason"],
}
#: The delay key is what a message is cancelled by.
_HEADS = {"key": "delay key", "due": "due at", "died": "died at", "next": "next try"}
#: What is cut where the line is too short, the first one first, and to how much, or left out altogether (0).
_CUT = [
    *(("reason", 40), ("due", 0), ("died", 0), ("reason", 16), ("size", 0), ("tries", 0)),
    *(("key", 9), ("place", 9), ("route", 8), ("reason", 8)),
]


def list_messages(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    state: Annotated[Listed, typer.Option("--state", help="parked, claimed or dead.")] = Listed.PARKED,
    route: RouteOption = None,
    key: KeyOption = None,
    reason: ReasonOption = None,
    due_after: Annotated[
        str | None, typer.Option("--due-after", metavar="WHEN", help="A moment, or a duration from now.")
    ] = None,
    due_before: Annotated[
        str | None, typer.Option("--due-before", metavar="WHEN", help="A moment, or a duration from now.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Without a limit.")] = False,
) -> None:
    """List messages: the next due first, dead letters by their death. Never bodies; `postdate show` has them.

    The size counts properties, headers and body. A message that was refused shows its next try. Text has a line of
    headings; a pipe gets tabs between the columns.
    """
    import os
    import sys

    from bridge.admin.desk import Filter
    from bridge.app.open_desk import at_desk
    from bridge.app.wiring import settings_from
    from bridge.cli.moments import read_border_ms
    from bridge.cli.output import rows, table
    from bridge.cli.select import judge_strange_route
    from bridge.telemetry.printable import say

    settings, now_ms = settings_from(config), 0

    async def gather(desk: Desk) -> tuple[list[dict[str, Any]], bool]:
        nonlocal now_ms
        now_ms = await desk.now_ms()
        wanted = Filter(
            route,
            os.fsencode(key) if key else None,
            read_border_ms("--due-after", due_after, now_ms),
            read_border_ms("--due-before", due_before, now_ms),
            reason,
        )
        return await _gather(desk, state, wanted, None if everything else limit, now_ms)

    found, more = at_desk(settings, gather, route)
    if output is Output.TEXT and sys.stdout.isatty():
        heads = _HEADS | {"when": "died" if state is Listed.DEAD else "due", "place": _place(settings)}
        table(_TABLE[state], [_short(row, now_ms) for row in found], heads, _CUT)
    elif output is Output.TEXT:
        named = {"place": _place(settings).replace(" ", "_")}
        rows(output, _COLUMNS[state], [_with_place(row) for row in found], named)
    else:
        rows(output, _COLUMNS[state], found)
    if not found:
        judge_strange_route(settings, route)
    if more:
        say(f"There are more than {limit}: use --limit, --all, or a filter.")


def _place(settings: Settings) -> str:
    """What the brokers of the routes call the place of a message."""
    from bridge.app.brokers import brokers_of

    used = {broker.KEY_NAME for broker, _ in brokers_of(settings)}
    return used.pop() if len(used) == 1 else "routing or record key"


def _with_place(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "place": row.get("routing_key", row.get("record_key"))}


def _short(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """With what is shown in place of moments, so that a line has room for the rest."""
    from bridge.cli.messages import away
    from bridge.delay.duration import read_moment_ms

    row = _with_place(row)
    again = read_moment_ms(row["next_try"]) if row.get("next_try") else None
    lease = read_moment_ms(row["lease_until"]) if row.get("lease_until") else None
    if row.get("died"):
        when = away(read_moment_ms(row["died"]), now_ms, "{} ago")
    else:
        when = away(row["due_ms"], now_ms, "overdue {}")
    next_try = away(again, now_ms, "now") if again is not None else None
    return {
        **row,
        "when": when,
        "next": next_try,
        "lease": away(lease, now_ms, "over for {}") if lease is not None else None,
    }


async def _gather(
    desk: Desk, state: Listed, wanted: Filter, limit: int | None, now_ms: int
) -> tuple[list[dict[str, Any]], bool]:
    """The messages, and whether there are more."""
    from bridge.cli.messages import as_dict, wait

    found: list[dict[str, Any]] = []
    async for row in _rows(desk, state, wanted):
        if len(found) == limit:
            return found, True
        found.append({**as_dict(row), "wait": wait(row.due_ms, now_ms)})
    return found, False


async def _rows(desk: Desk, state: Listed, wanted: Filter) -> Any:
    """Through the index where a key on a route is asked for and the index names its messages, else through them all."""
    from bridge.core.state import State

    wanted_state = State(state.value)
    if wanted.key is not None and wanted.route is not None:
        found = await desk.find(wanted.route, wanted.key)
        if not found.unlisted:
            rows: list[Row] = await desk.look(found.ids, 256)
            for row in sorted(rows, key=lambda row: (row.at_ms, row.id)):
                if row.state is wanted_state and wanted.takes(row):
                    yield row
            return
    async for row in desk.rows(wanted_state, wanted):
        yield row
