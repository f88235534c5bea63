"""What ``postdate show`` and ``postdate list --state history`` print of messages that left the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.admin.desk import Desk
from bridge.admin.past import PastFilter
from bridge.admin.where import history_view
from bridge.cli.options import Output
from bridge.cli.output import facts
from bridge.delay.duration import write_moment
from bridge.parking.history import HistoryRow

#: What ``show`` prints as text, beside the moments.
_FACTS = ("id", "state", "route", "broker", "key", "size", "tries", "late_ms", "reason")


async def ended_messages(desk: Desk, wanted: PastFilter, limit: int | None) -> tuple[list[dict[str, Any]], bool]:
    """Return entries of the history as rows, and whether there are more."""
    found: list[dict[str, Any]] = []
    async for entry in desk.history(wanted):
        if len(found) == limit:
            return found, True
        found.append(history_view(entry))
    return found, False


def print_ended(entries: Sequence[HistoryRow]) -> None:
    """Print entries as text, with a line for each moment."""
    for place, entry in enumerate(entries):
        if place:
            print()
        view = history_view(entry)
        pairs = [(name.replace("_", " "), str(view[name])) for name in _FACTS if view[name] is not None]
        pairs += [(one["what"], write_moment(one["at_ms"])) for one in view["life"]]
        facts(Output.TEXT, {}, pairs)
