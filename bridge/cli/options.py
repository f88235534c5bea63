"""The options that several commands share, so that they are the same everywhere."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How data is written to standard output."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The settings file; else $POSTDATE_CONFIG, else ./postdate.toml."),
]
OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="text (a table; tab-separated when piped), json, or jsonl."),
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of messages.")]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="The producer's own key, in the place of ids.")
]
RouteOption = Annotated[str | None, typer.Option("--route", metavar="ROUTE", help="Only this route.")]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only dead letters whose reason begins so.")
]
BeforeOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--before",
        metavar="FILE",
        help="A previous settings file. Its RabbitMQ queues are examined too, and its Kafka if the current settings "
        "name none.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print what would change. Exit with the code the real run would return.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def example(*lines: str) -> str:
    """The end of a command's help: lines to copy. The mark keeps them from being run together."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
