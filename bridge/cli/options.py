"""Options that several commands share, and how durations and times are read from them."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bridge.core.errors import SettingsError
from bridge.delay.duration import read_decimal, read_duration_ms, read_integer, read_moment_ms, write_duration


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
    Output,
    typer.Option("--output", "-o", help="Output format. text is a table, or tab-separated lines in a pipe."),
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="KEY", help="The producer's key, instead of ids.")]
RouteOption = Annotated[
    str | None,
    typer.Option("--route", metavar="ROUTE", help="Only this route. Required with --key if there are several routes."),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only dead letters whose reason starts with this text.")
]
InOption = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="Delay, e.g. 5m or 1h30m.")]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Due time: RFC 3339 with a UTC offset, or Unix milliseconds."),
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
    bool,
    typer.Option("--dry-run", help="Print what would change. Exit with the code the real run would return."),
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def example(*lines: str) -> str:
    """Return the end of a command's help: lines to copy. ``\\b`` keeps typer from joining them."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def read_due(after: str | None, at: str | None) -> tuple[int | None, int | None]:
    """Read ``--in`` and ``--at``, of which one must be given, as (delay ms, time ms). Raises ``SettingsError``."""
    if (after is None) == (at is None):
        raise SettingsError("Give one of --in (e.g. 5m) and --at (e.g. 2026-12-24T18:00:00Z).")
    if after is not None:
        return _read_delay_ms("--in", after), None
    assert at is not None
    return None, _read_time_ms("--at", at)


def due_ms(delay_ms: int | None, time_ms: int | None, now_ms: int, max_delay_ms: int) -> int:
    """Return the due time by the store's clock. Raises ``SettingsError`` beyond ``limits.max_delay``."""
    due = time_ms if time_ms is not None else now_ms + (delay_ms or 0)
    if due - now_ms > max_delay_ms:
        raise SettingsError(f"The due time is too far away. limits.max_delay allows {write_duration(max_delay_ms)}.")
    return due


def read_border_ms(option: str, text: str | None, now_ms: int) -> int | None:
    """Read a time, or a duration from now. Raises ``SettingsError``."""
    if text is None:
        return None
    if not _is_number(text):
        with suppress(ValueError):
            return now_ms + read_duration_ms(text)
    return _read_time_ms(option, text)


def _read_delay_ms(option: str, text: str) -> int:
    """Read a duration with its unit, 0 or more.

    A bare number, which is milliseconds in a header, is refused here: many who type one mean seconds.
    """
    number = text.strip()
    try:
        if _is_number(text) or read_decimal(text) is not None:
            raise SettingsError(f"{option}: {number} has no unit. Write {number}s or {number}ms.")
        ms = read_duration_ms(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from None
    if ms < 0:
        raise SettingsError(f"{option}: {number} is negative. Give a duration from now, e.g. 5m.")
    return ms


def _read_time_ms(option: str, text: str) -> int:
    """Read a time as Unix milliseconds. Raises ``SettingsError``, also for one without an offset from UTC, and for Unix
    seconds of this age: ``bridge.delay.header`` refuses these, too."""
    try:
        time_ms = read_moment_ms(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from None
    if _is_number(text) and 10**9 <= time_ms < 10**10:
        number = text.strip()
        raise SettingsError(f"{option}: {number} looks like Unix seconds. Write Unix milliseconds: {number}000.")
    return time_ms


def _is_number(text: str) -> bool:
    try:
        read_integer(text)
    except ValueError:
        return False
    return True
