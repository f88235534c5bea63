"""What a command did to each message: its new state, or why nothing was done; and the exit code of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import typer

from bridge.admin.desk import Desk, Row
from bridge.cli.options import Output
from bridge.cli.output import rows as print_rows
from bridge.core.errors import FINE, NOT_FOUND, REFUSED
from bridge.delay.duration import write_moment
from bridge.telemetry.printable import complain

#: States in text output; JSON has the words of the store.
_IN_WORDS: Mapping[str, str] = MappingProxyType({"claimed": "being sent", "gone": "sent", "none": "not found"})
BEING_SENT = "it is being sent now. Look again in a few seconds with `postdate show`"
UNKNOWN = "no message has this id. It was delivered or cancelled, or the id is wrong"
DEAD = "it is a dead letter. Use `postdate retry`"


class MessageResult(NamedTuple):
    """One message: its state now, and why a command refused it, with the exit code."""

    id: bytes
    state: str
    text: str = ""
    code: int = FINE


def judged(one: bytes, word: str, done: Mapping[str, str], refused: Mapping[str, str]) -> MessageResult:
    """Return the result for the state that the store answered, ``word``. Pure.

    ``done`` maps it to the new state, ``refused`` to the reason why nothing was done.
    """
    if word in done:
        return MessageResult(one, done[word])
    if word == "none":
        return MessageResult(one, "none", UNKNOWN, NOT_FOUND)
    return MessageResult(one, word, refused[word], REFUSED)


async def with_due(desk: Desk, results: Sequence[MessageResult]) -> list[dict[str, object]]:
    """Return a row for each. A parked message is read again, so that the row shows what is stored."""
    rows = {row.id: row for row in await desk.look([one.id for one in results if one.state == "parked"], 0)}
    return [
        {
            "id": one.id.decode(),
            "state": _state_now(one, rows),
            "due": write_moment(rows[one.id].due_ms) if one.id in rows else None,
            "text": one.text,
            "code": one.code,
        }
        for one in results
    ]


def _state_now(one: MessageResult, rows: Mapping[bytes, Row]) -> str:
    """Return the state after the second read: a message that became due now may be claimed or gone by then."""
    if one.state != "parked":
        return one.state
    return rows[one.id].state.value if one.id in rows else "gone"


def answer(output: Output, rows: Sequence[dict[str, object]], gone: str = "sent") -> None:
    """Print the rows and the refusals, and exit with the worst code: refused before not found.

    ``gone`` is how text output calls a message that has left the store.
    """
    words = {**_IN_WORDS, "gone": gone}
    text = [{**row, "state": words.get(str(row["state"]), row["state"])} for row in rows]
    print_rows(output, ["id", "state", "due"], text if output is Output.TEXT else rows)
    for row in rows:
        if row["code"]:
            complain(f"{row['id']}: {row['text']}.")
    codes = {row["code"] for row in rows}
    code = next((code for code in (REFUSED, NOT_FOUND) if code in codes), FINE)
    if code:
        raise typer.Exit(code)
