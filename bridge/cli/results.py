"""What a command prints about each message that it acted on, and the exit code of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import typer

from bridge.cli.options import Output
from bridge.cli.output import rows as print_rows
from bridge.core.errors import FINE, NOT_FOUND, REFUSED
from bridge.operate.documents import VerbResult
from bridge.telemetry.printable import complain

#: States in text output; JSON has the words of the store.
_IN_WORDS: Mapping[str, str] = MappingProxyType({"claimed": "being sent", "gone": "sent", "none": "not found"})


def answer(output: Output, results: Sequence[VerbResult], gone: str) -> None:
    """Print the results, refusals and remarks, and exit with the worst code: refused before not found.

    ``gone`` is how text output calls a message that has left the store.
    """
    found = [result.as_dict() for result in results]
    words = {**_IN_WORDS, "gone": gone}
    text = [{**row, "state": words.get(str(row["state"]), row["state"])} for row in found]
    print_rows(output, ["id", "state", "due"], text if output is Output.TEXT else found)
    for result in results:
        if result.text:
            complain(f"{result.id}: {result.text}.")
    codes = {result.code for result in results}
    code = next((code for code in (REFUSED, NOT_FOUND) if code in codes), FINE)
    if code:
        raise typer.Exit(code)
