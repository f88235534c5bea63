"""What a command prints about each message that it acted on, and the exit code of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import typer

from bridge.admin.verbs import MessageResult
from bridge.cli.options import Output
from bridge.cli.output import rows as print_rows
from bridge.core.errors import FINE, NOT_FOUND, REFUSED
from bridge.telemetry.printable import complain

#: States in text output; JSON has the words of the store.
_IN_WORDS: Mapping[str, str] = MappingProxyType({"claimed": "being sent", "gone": "sent", "none": "not found"})


def answer(output: Output, results: Sequence[MessageResult], gone: str = "sent") -> None:
    """Print the results, refusals and remarks, and exit with the worst code: refused before not found.

    ``gone`` is how text output calls a message that has left the store.
    """
    found = [one.as_dict() for one in results]
    words = {**_IN_WORDS, "gone": gone}
    text = [{**row, "state": words.get(str(row["state"]), row["state"])} for row in found]
    print_rows(output, ["id", "state", "due"], text if output is Output.TEXT else found)
    for one in results:
        if one.text:
            complain(f"{one.id.decode()}: {one.text}.")
    codes = {one.code for one in results}
    code = next((code for code in (REFUSED, NOT_FOUND) if code in codes), FINE)
    if code:
        raise typer.Exit(code)
