"""``postdate cancel``, ``reschedule``, ``deliver`` and ``retry``: the verbs of messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from bridge.cli.acting import settings_for
from bridge.cli.filters import Filters, with_filters
from bridge.cli.operation import BulkWays, at_matching
from bridge.cli.options import (
    AtOption,
    ConfigOption,
    DryRunOption,
    IdsArgument,
    InOption,
    NoteOption,
    Output,
    OutputOption,
    YesOption,
    declared,
)
from bridge.cli.select import at_messages
from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.operate.bulk import RATE
from bridge.operate.moments import read_due
from bridge.operate.select import judge_reason
from bridge.operate.verbs import CANCEL, DELIVER, RESCHEDULE, RETRY, Verb

StateOption = Annotated[
    Literal["parked", "dead"] | None, typer.Option("--state", help="With filters. Default: parked, with --reason dead.")
]
EveryOption = Annotated[bool, typer.Option("--all", help="All messages, without a filter.")]
BulkRateOption = Annotated[
    int, typer.Option("--max-rate", metavar="N", min=1, max=100_000, help="With filters: at most this many a second.")
]
_WHICH = (
    "Name them by ids, by --key with --route, or by the filters of `postdate list`. With filters, it counts and asks "
    "first."
)


def _command(verb: Verb, text: str) -> Callable[..., None]:
    """Return the command of a verb. ``text`` is its help; a verb has only the options that it can use."""

    def command(
        ids: IdsArgument = None,
        *,
        given: StateOption = None,
        after: InOption = None,
        at: AtOption = None,
        filters: Filters,
        everything: EveryOption = False,
        note: NoteOption = "",
        max_rate: BulkRateOption = RATE,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
        config: ConfigOption = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        due = read_due(after, at) if verb.takes_due else None
        settings, key, route = settings_for(config), filters["key"], filters["route"]
        others = any(value for name, value in filters.items() if name not in ("key", "route"))
        filtered = others or everything or given is not None
        if ids and filtered:
            raise SettingsError("Give ids or filters, not both. To say why, use --note.")
        if not filtered and (ids or key is not None):
            if dry_run:
                raise SettingsError("--dry-run is for filters. See a message with `postdate show`.")
            return at_messages(verb, settings, ids, key, route, note, output, due)
        if not filtered and route is None:
            raise SettingsError("Give ids, --key with --route, filters as `postdate list` has, or --all.")
        judge_reason(filters["reason"])
        state = State(given) if given else verb.state_meant(filters["reason"])
        return at_matching(verb, settings, state, filters, due, BulkWays(note, max_rate, yes, dry_run), output)

    own = {"given": len(verb.states) > 1, "after": verb.takes_due, "at": verb.takes_due}
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    command.__doc__ = text.replace("\n\n", f"\n\n{_WHICH}\n\n", 1)
    return with_filters(declared(command, [found for found in parameters if own.get(found.name, True)]))


cancel = _command(
    CANCEL,
    "Delete parked messages or dead letters. They are never delivered.\n\n"
    "A claimed message is being sent already: it stays, and with ids or --key the exit code is 5.",
)
reschedule = _command(RESCHEDULE, "Change when parked messages are due. A time in the past means now.\n\n")
deliver = _command(DELIVER, "Make parked messages due now. A running postdate then publishes them.\n\n")
retry = _command(
    RETRY,
    "Park dead letters again, due now. Each starts with its full number of tries.\n\n"
    "Refused cancellations are skipped, because they are never delivered.",
)
