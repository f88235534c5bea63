"""Durations and moments on the command line."""

from __future__ import annotations

from contextlib import suppress

from bridge.core.errors import SettingsError
from bridge.delay.duration import read_decimal, read_duration_ms, read_integer, read_moment_ms, write_duration


def read_wait_ms(option: str, text: str) -> int:
    """A duration with its unit, not negative. Raises ``SettingsError``.

    A bare number, which is milliseconds in a header, is refused here: half of those who type one mean seconds.
    """
    try:
        if _is_number(text) or read_decimal(text) is not None:
            raise SettingsError(f"{option}: {text.strip()} has no unit: write {text.strip()}s or {text.strip()}ms")
        ms = read_duration_ms(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from None
    if ms < 0:
        raise SettingsError(f"{option}: {text.strip()} is negative")
    return ms


def read_at_ms(option: str, text: str) -> int:
    """A moment as Unix milliseconds. Raises ``SettingsError``, also for one without an offset from UTC, and for Unix
    seconds of our days: see ``bridge.delay.header``."""
    try:
        moment = read_moment_ms(text)
    except ValueError as error:
        raise SettingsError(f"{option}: {error}") from None
    if _is_number(text) and 10**9 <= moment < 10**10:
        raise SettingsError(f"{option}: {text.strip()} looks like Unix seconds, and {option} counts in milliseconds")
    return moment


def read_border_ms(option: str, text: str | None, now_ms: int) -> int | None:
    """A moment, or a duration from now. Raises ``SettingsError``."""
    if text is None:
        return None
    if not _is_number(text):
        with suppress(ValueError):
            return now_ms + read_duration_ms(text)
    return read_at_ms(option, text)


def read_due(after: str | None, at: str | None) -> tuple[int | None, int | None]:
    """The two options ``--in`` and ``--at``, of which one must be given: (wait ms, moment ms). Raises
    ``SettingsError``."""
    if (after is None) == (at is None):
        raise SettingsError("Give one of --in (5m) and --at (2026-12-24T18:00:00Z).")
    if after is not None:
        return read_wait_ms("--in", after), None
    assert at is not None
    return None, read_at_ms("--at", at)


def due_ms(wait_ms: int | None, at_ms: int | None, now_ms: int, max_delay_ms: int) -> int:
    """The moment asked for, by the store's clock. Raises ``SettingsError`` beyond ``limits.max_delay``."""
    due = at_ms if at_ms is not None else now_ms + (wait_ms or 0)
    if due - now_ms > max_delay_ms:
        raise SettingsError(f"That is beyond limits.max_delay, {write_duration(max_delay_ms)}.")
    return due


def _is_number(text: str) -> bool:
    try:
        read_integer(text)
    except ValueError:
        return False
    return True
