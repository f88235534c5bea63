"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Output(StrEnum):
    """The format of standard output."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file. Default: $POSTDATE_CONFIG, else ./postdate.toml."),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Output format. text is a table, or tab-separated lines in a pipe.")
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="The producer's key, instead of ids.")]
RouteOption = Annotated[
    str | None,
    typer.Option("--route", metavar="ROUTE", help="Only this route. Required with --key if there are several routes."),
]
NoteOption = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why you do this: the reason in the audit log and in the API.")
]
InOption = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Delay, e.g. 5m or 1h30m.")]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Due time: RFC 3339 with a UTC offset, or Unix milliseconds.")
]
BeforeOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--before",
        metavar="FILE",
        help="A previous settings file. Examine its RabbitMQ queues too, and its Kafka if the current settings name "
        "none. Repeatable.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what would change. Exit with the code the real run would return.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def declared(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Let a command have these parameters, of which typer makes its options."""
    found = list(parameters)
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
    return command


def example(*lines: str) -> str:
    """Return the end of a command's help: lines to copy. ``\\b`` keeps typer from joining them."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
