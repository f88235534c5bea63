"""Due moments as people write them: a delay from now, or a time. The same rules for options and for the API."""

from __future__ import annotations

from contextlib import suppress

from bridge.core.errors import SettingsError
from bridge.delay.duration import (
    FIRST_MS,
    LAST_MS,
    read_decimal,
    read_duration_ms,
    read_integer,
    read_moment_ms,
    write_duration,
)


def read_due(after: str | None, at: str | None, names: tuple[str, str] = ("--in", "--at")) -> tuple[int, bool]:
    """Read a delay or a time, of which one must be given, as (milliseconds, whether they count from now).

    ``names`` is how errors call the two. Raises ``SettingsError``.
    """
    if (after is None) == (at is None):
        raise SettingsError(f"Give one of {names[0]} (e.g. 5m) and {names[1]} (e.g. 2026-12-24T18:00:00Z).")
    if after is not None:
        return _read_delay_ms(names[0], after), True
    assert at is not None
    return _read_time_ms(names[1], at), False


def due_ms(due: tuple[int, bool], now_ms: int, max_delay_ms: int) -> int:
    """Return the due time by the store's clock. Raises ``SettingsError`` beyond ``limits.max_delay``."""
    ms, from_now = due
    moment_ms = now_ms + ms if from_now else ms
    if moment_ms - now_ms > max_delay_ms:
        raise SettingsError(f"The due time is too far away. limits.max_delay allows {write_duration(max_delay_ms)}.")
    return moment_ms


def read_border_ms(name: str, text: str | None, now_ms: int, back: bool = False) -> int | None:
    """Read a time, or a duration from now; ``back``: a duration back from now. Raises ``SettingsError``."""
    if text is None:
        return None
    border_ms = None
    if not _is_number(text):
        with suppress(ValueError):
            border_ms = now_ms + read_duration_ms(text) * (-1 if back else 1)
    if border_ms is None:
        border_ms = _read_time_ms(name, text, ". Or give a duration such as 5m.")
    if not FIRST_MS <= border_ms <= LAST_MS:
        raise SettingsError(f"{name}: {text.strip()} is outside the years 1 to 9999.")
    return border_ms


def _read_delay_ms(name: str, text: str) -> int:
    """Read a duration with its unit, 0 or more.

    A bare number, which is milliseconds in a header, is refused here: many who type one mean seconds.
    """
    number = text.strip()
    try:
        if _is_number(text) or read_decimal(text) is not None:
            raise SettingsError(f"{name}: {number} has no unit. Write {number}s or {number}ms.")
        ms = read_duration_ms(text)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
    if ms < 0:
        raise SettingsError(f"{name}: {number} is negative. Give a duration from now, e.g. 5m.")
    return ms


def _read_time_ms(name: str, text: str, hint: str = "") -> int:
    """Read a time as Unix milliseconds. Raises ``SettingsError`` with the hint, also for one without an offset from
    UTC; and for Unix seconds of this age: ``bridge.delay.header`` refuses these, too."""
    try:
        time_ms = read_moment_ms(text)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}{hint}") from None
    if _is_number(text) and 10**9 <= time_ms < 10**10:
        number = text.strip()
        raise SettingsError(f"{name}: {number} looks like Unix seconds. Write Unix milliseconds: {number}000.")
    return time_ms


def _is_number(text: str) -> bool:
    try:
        read_integer(text)
    except ValueError:
        return False
    return True
