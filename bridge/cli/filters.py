"""The filters of `list` and `export`: each is an option, and has the name that the API has for it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from bridge.cli.options import declared
from bridge.operate.find import Criteria, as_an_option, read_criteria

#: What the command line gave, by the names of ``FILTERS``.
Filters = Mapping[str, Any]

KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only messages with this producer's key.")]
DueAfterOption = Annotated[
    str | None,
    typer.Option(
        "--due-after", metavar="TIME", help="Only messages due at this time or later. A duration counts from now."
    ),
]
DueBeforeOption = Annotated[
    str | None,
    typer.Option(
        "--due-before", metavar="TIME", help="Only messages due before this time. A duration counts from now."
    ),
]
FILTERS: Mapping[str, Any] = {
    "route": Annotated[str | None, typer.Option("--route", metavar="ROUTE", help="Only this route.")],
    "key": KeyOption,
    "reason": Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Only messages whose reason starts with this text.")
    ],
    "due_after": DueAfterOption,
    "due_before": DueBeforeOption,
    "parked_after": Annotated[
        str | None,
        typer.Option(
            "--parked-after",
            metavar="TIME",
            help="Only messages that arrived at this time or later, by the store's clock.",
        ),
    ],
    "parked_before": Annotated[
        str | None,
        typer.Option("--parked-before", metavar="TIME", help="Only messages that arrived before this time."),
    ],
    "header": Annotated[
        str | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="Only messages with this header. Without =VALUE: any value."
        ),
    ],
    "min_size": Annotated[
        int, typer.Option("--min-size", metavar="BYTES", min=0, help="Only messages of this size or larger.")
    ],
    "min_tries": Annotated[
        int, typer.Option("--min-tries", metavar="N", min=0, help="Only messages that were tried this often or more.")
    ],
}
_COUNTS = ("min_size", "min_tries")


def with_filters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each filter, where it takes ``filters``."""

    @wraps(command)
    def filtered(**given: Any) -> None:
        filters = {name: given.pop(name) for name in FILTERS}
        command(**given, filters=filters)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        options = [
            own.replace(name=name, default=0 if name in _COUNTS else None, annotation=option)
            for name, option in FILTERS.items()
        ]
        parameters += options if own.name == "filters" else [own]
    return declared(filtered, parameters)


def key_in(filters: Filters) -> bytes | None:
    """Return the producer's key that was given."""
    return os.fsencode(filters["key"]) if filters["key"] else None


def criteria_in(filters: Filters, now_ms: int) -> Criteria:
    """Read what was given. Raises ``SettingsError``."""
    return read_criteria(now_ms, as_an_option, key_in(filters), filters)
