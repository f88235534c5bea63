"""``postdate list``: messages in one state, by due time."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NamedTuple

import typer

from bridge.app.brokers import brokers_of
from bridge.cli.acting import operate, settings_for
from bridge.cli.filters import Filters, criteria_in, key_in, with_filters
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import rounded, rows, table, wait
from bridge.cli.select import explain_nothing
from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.delay.duration import read_moment_ms
from bridge.desk.past import PastFilter
from bridge.operate.documents import MessageFacts
from bridge.operate.moments import read_border_ms
from bridge.operate.operator import Operator, silent
from bridge.operate.select import judge_reason
from bridge.parking.history import PastState
from bridge.settings import Settings
from bridge.telemetry.printable import say

Listed = Literal["parked", "claimed", "dead", "history"]
#: How often a long look through headers tells a person how far it is (s).
_SAY_S = 2.0
#: In a pipe. ``place`` is the routing key or the record key.
_COLUMNS = {
    "parked": ["id", "due", "wait", "route", "place", "key", "size", "tries", "reason", "next_try"],
    "claimed": ["id", "due", "wait", "route", "place", "key", "size", "tries", "lease_until"],
    "dead": ["id", "died", "route", "place", "key", "size", "tries", "reason"],
    "history": ["id", "state", "ended", "late_ms", "due", "route", "key", "size", "tries", "reason"],
}
#: On a terminal: short columns first, exact times only where there is room for them.
_TABLE = {
    "parked": ["id", "when", "due", "route", "place", "key", "size", "tries", "next", "reason"],
    "claimed": ["id", "when", "due", "route", "place", "key", "size", "tries", "lease"],
    "dead": ["id", "when", "died", "route", "place", "key", "size", "tries", "reason"],
    "history": ["id", "when", "state", "ended", "late_ms", "route", "key", "size", "tries", "reason"],
}
#: "delay key": a message is cancelled by it, unlike by its routing key or record key.
_HEADS = {
    "key": "delay key",
    "due": "due at",
    "died": "died at",
    "ended": "ended at",
    "late_ms": "late ms",
    "next": "next try",
}
_WHEN = {"dead": "died", "history": "ended"}
#: What shrinks where the line is too short, in this order, and to which width; 0 drops the column.
_CUT = [
    *(("reason", 40), ("due", 0), ("died", 0), ("ended", 0), ("reason", 16), ("size", 0), ("tries", 0)),
    *(("key", 9), ("place", 9), ("route", 8), ("reason", 8)),
]


EndingOption = Annotated[
    PastState | None, typer.Option("--ending", help="With --state history: only messages that ended like this.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="With --state history: only what ended at this time or later. A duration counts back from now.",
    ),
]


@with_filters
def list_messages(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    given: Annotated[
        Listed | None, typer.Option("--state", help="State to list. Default: parked, with --reason dead.")
    ] = None,
    *,
    filters: Filters,
    ending: EndingOption = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="No maximum.")] = False,
) -> None:
    """List messages, the next due first. `--state dead` sorts by the time of failure.

    `--reason` alone means dead letters; with `--state parked`, messages that wait for another try. `--state
    history` lists what was delivered, cancelled or replaced or became a dead letter, newest first.

    size is the number of bytes of properties, headers and body. next_try is shown for messages that the broker refused.
    `postdate show` prints bodies.
    """
    settings = settings_for(config)
    state: Listed = given or ("dead" if filters["reason"] else "parked")
    route = filters["route"]
    _judge(settings, state, filters, ending or since)

    async def gather(operator: Operator) -> _Rows:
        now_ms, most = await operator.now_ms(), None if everything else limit
        if state == "history":
            from_ms = read_border_ms("--since", since, now_ms, back=True)
            past = PastFilter(route, key_in(filters), None, ending, from_ms, None, filters["reason"])
            return _Rows(*await gathered(operator.history(past, Looking()), most), now_ms)
        wanted = criteria_in(filters, now_ms)
        progress = Looking() if filters["header"] else silent  # only a look at the headers of all takes long
        found, more = await gathered(operator.messages(State(state), wanted, progress), most)
        return _Rows([{**row, "wait": wait(row["due_ms"], now_ms)} for row in found], more, now_ms)

    found = operate(settings, gather, route)
    if not found.rows and output is Output.TEXT:  # no head before an error
        explain_nothing(settings, route)
    _print(settings, output, state, found)
    if not found.rows and output is not Output.TEXT:
        explain_nothing(settings, route)
    if found.more:
        say(f"More messages match than --limit {limit}. Use a higher limit, --all, or a filter.")


class _Rows(NamedTuple):
    """Messages as rows, whether there are more, and the store's clock."""

    rows: list[dict[str, Any]]
    more: bool
    now_ms: int


def _print(settings: Settings, output: Output, state: Listed, found: _Rows) -> None:
    if output is Output.TEXT and sys.stdout.isatty():
        heads = _HEADS | {"when": _WHEN.get(state, "due"), "place": _place(settings)}
        table(_TABLE[state], [_short(row, found.now_ms) for row in found.rows], heads, _CUT)
    elif output is Output.TEXT:
        named = {"place": _place(settings).replace(" ", "_")}
        rows(output, _COLUMNS[state], [_with_place(row) for row in found.rows], named)
    else:
        rows(output, _COLUMNS[state], found.rows)


def _judge(settings: Settings, state: Listed, filters: Filters, past: str | None) -> None:
    """Raise ``SettingsError`` for options that do not go with the state."""
    if state != "history":
        if past:
            raise SettingsError("--ending and --since need --state history.")
        # Of what left the store, the reason may be the note of an operator.
        judge_reason(filters["reason"])
        return
    if any(map(filters.get, ("header", "min_size", "min_tries", "parked_after", "parked_before"))):
        options = "--header, --min-size, --min-tries, --parked-after and --parked-before"
        raise SettingsError(f"{options} select messages in the store.")
    if filters["due_after"] or filters["due_before"]:
        raise SettingsError("--due-after and --due-before select messages in the store. Use --since.")
    if not settings.history.max:
        raise SettingsError("The history is switched off (history.max = 0).")


def _place(settings: Settings) -> str:
    """Return what the brokers of the routes call the key that orders messages."""
    used = {broker.payloads.KEY_NAME for broker, _ in brokers_of(settings)}
    return used.pop() if len(used) == 1 else "routing or record key"


def _with_place(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "place": row.get("routing_key", row.get("record_key"))}


def _short(row: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """Return the row with durations in place of times, which are shorter."""

    def away(column: str, past: str) -> str | None:
        return _away(read_moment_ms(row[column]), now_ms, past) if row.get(column) else None

    when = away("ended", "{} ago") or away("died", "{} ago") or away("due", "overdue {}")
    lease = away("lease_until", "expired {} ago")
    return {**_with_place(row), "when": when, "next": away("next_try", "now"), "lease": lease}


def _away(time_ms: int, now_ms: int, past: str) -> str:
    """Return how far a time is from now, in two units at most. ``past`` is the wording for one that has passed."""
    short = " ".join(rounded(abs(time_ms - now_ms)).split()[:2])
    return f"in {short}" if time_ms > now_ms else past.format(short)


async def gathered(messages: AsyncIterator[MessageFacts], most: int | None) -> tuple[list[dict[str, Any]], bool]:
    """Return messages as rows, ``most`` of them (None: all), and whether there are more."""
    found: list[dict[str, Any]] = []
    async for message in messages:
        if len(found) == most:
            return found, True
        found.append(message.as_dict())
    return found, False


class Looking:
    """Tells a person how far a long look is."""

    def __init__(self, verb: str = "Looked at") -> None:
        self._verb = verb
        self._said_s = time.monotonic()

    def __call__(self, looked_at: int, total: int | None = None) -> None:
        """Take how many messages were looked at, of how many."""
        if time.monotonic() - self._said_s > _SAY_S and sys.stderr.isatty():
            self._said_s = time.monotonic()
            of = "" if total is None else f" of {total:,}"
            say(f"{self._verb} {looked_at:,}{of} messages. Ctrl+C stops.")
