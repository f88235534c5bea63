"""Filters that several commands have: each is an option, and has the name that the API has for it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

from bridge.cli.options import declared
from bridge.core.errors import SettingsError
from bridge.operate.find import Criteria, as_an_option, read_criteria

#: What the command line gave, by the names of ``FILTERS``.
Filters = Mapping[str, Any]

#: What each takes, and its help. Those in ``_COUNTS`` take whole numbers.
FILTERS = {
    "route": ("ROUTE", "Only this route."),
    "key": ("KEY", "Only messages with this producer's key."),
    "reason": ("TEXT", "Only messages whose reason starts with this text."),
    "due_after": ("TIME", "Only messages due at this time or later. A duration counts from now."),
    "due_before": ("TIME", "Only messages due before this time. A duration counts from now."),
    "parked_after": ("TIME", "Only messages that arrived at this time or later, by the store's clock."),
    "parked_before": ("TIME", "Only messages that arrived before this time."),
    "header": ("NAME=VALUE", "Only messages with this header. Without =VALUE: any value."),
    "min_size": ("BYTES", "Only messages of this size or larger."),
    "min_tries": ("N", "Only messages that were tried this often or more."),
}
_COUNTS = ("min_size", "min_tries")


def with_filters(command: Callable[..., None], names: Collection[str] = FILTERS.keys()) -> Callable[..., None]:
    """Give a command an option for each of these filters, where it takes ``filters``."""

    @wraps(command)
    def filtered(**given: Any) -> None:
        filters = {name: _only(name, given.pop(name)) for name in names}
        command(**given, filters=filters)

    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(command, eval_str=True).parameters.values():
        parameters += map(_parameter, names) if own.name == "filters" else [own]
    return declared(filtered, parameters)


def _only(name: str, values: Sequence[Any] | None) -> Any:
    """Return the one value that was given. Raises ``SettingsError`` for an empty one, as a variable of a shell that is
    not set, and for several: only the last would count."""
    if not values:
        return 0 if name in _COUNTS else None
    if len(values) > 1:
        raise SettingsError(f"{as_an_option(name)} is given more than once. Only the last would count")
    if values[0] == "":
        raise SettingsError(f"{as_an_option(name)} is empty")
    return values[0]


def _parameter(name: str) -> inspect.Parameter:
    metavar, text = FILTERS[name]
    kind: Any = list[int] | None if name in _COUNTS else list[str] | None
    option = typer.Option(as_an_option(name), metavar=metavar, min=0 if name in _COUNTS else None, help=text)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def key_in(filters: Filters) -> bytes | None:
    """Return the producer's key that was given."""
    return None if filters["key"] is None else os.fsencode(filters["key"])


def criteria_in(filters: Filters, now_ms: int) -> Criteria:
    """Read what was given. Raises ``SettingsError``."""
    return read_criteria(now_ms, as_an_option, key_in(filters), filters)
