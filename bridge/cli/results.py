"""What became of each message that a verb was about: its new state, and the exit code of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import typer

from bridge.cli.options import Output
from bridge.core.errors import FINE, NOT_FOUND, REFUSED

if TYPE_CHECKING:
    from bridge.admin.desk import Desk, Row

_SAID: Mapping[str, str] = MappingProxyType({})
#: States as a person calls them.
_IN_WORDS = {"claimed": "being sent", "gone": "sent", "none": "not there"}
ON_ITS_WAY = "it is being sent at this moment: look again with `postdate show` in a few seconds"
UNKNOWN = "there is no message with this id (any more)"
DEAD = "it is a dead letter: use `postdate retry`"


class Verdict(NamedTuple):
    """One message: its state now, and where the verb was not carried out, why not and with what code."""

    id: bytes
    state: str
    text: str = ""
    code: int = FINE


def judged(one: bytes, word: str, done: dict[str, str], refused: dict[str, str]) -> Verdict:
    """Pure. ``word`` is what the store says it was: in ``done`` it leads to a new state, in ``refused`` to a reason."""
    if word in done:
        return Verdict(one, done[word])
    if word == "none":
        return Verdict(one, "none", UNKNOWN, NOT_FOUND)
    return Verdict(one, word, refused[word], REFUSED)


async def with_due(desk: Desk, verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """A row each; a message that waits is looked at again, so that what is shown is what is stored."""
    from bridge.delay.duration import write_moment

    rows = {row.id: row for row in await desk.look([one.id for one in verdicts if one.state == "parked"], 0)}
    return [
        {
            "id": one.id.decode(),
            "state": _state_now(one, rows),
            "due": write_moment(rows[one.id].due_ms) if one.id in rows else None,
            "text": one.text,
            "code": one.code,
        }
        for one in verdicts
    ]


def _state_now(one: Verdict, rows: Mapping[bytes, Row]) -> str:
    """What was to be delivered at once may be under way, or gone, by the time that it is looked at again."""
    if one.state != "parked":
        return one.state
    return rows[one.id].state.value if one.id in rows else "gone"


def answer(output: Output, rows: Sequence[dict[str, object]], said: Mapping[str, str] = _SAID) -> None:
    """Print the rows, say what was not done, and end with the worst code: refused before not found.

    In text a state may be ``said`` in another word than in JSON.
    """
    from bridge.cli.output import rows as print_rows
    from bridge.telemetry.printable import complain

    words = {**_IN_WORDS, **said}
    text = [{**row, "state": words.get(str(row["state"]), row["state"])} for row in rows]
    print_rows(output, ["id", "state", "due"], text if output is Output.TEXT else rows)
    for row in rows:
        if row["code"]:
            complain(f"{row['id']}: {row['text']}.")
    codes = {row["code"] for row in rows}
    code = next((code for code in (REFUSED, NOT_FOUND) if code in codes), FINE)
    if code:
        raise typer.Exit(code)
