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
        help="A settings file of before; its queues of RabbitMQ are looked for, too, and its Kafka where "
        "these settings have none.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only look at what is there, print it, and end with the exit code that it would have without this, as far "
        "as looking tells.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def example(*lines: str) -> str:
    """The end of a command's help: lines to copy. The mark keeps them from being run together."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
