"""What the commands bench and compare share: numbers from options, output files, a report however they end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from bridge.core.errors import PostdateError, SettingsError
from bridge.delay.duration import quoted, read_duration_ms
from bridge.lab.machine import machine
from bridge.settings import Settings
from bridge.telemetry.printable import complain

Plan = TypeVar("Plan")

#: More per second, or at once, than any broker takes.
_MOST = 10_000_000


def changed(plan: Plan, **given: object) -> Plan:
    """The plan with the options that were given. Those that are None were not."""
    return replace(plan, **{name: value for name, value in given.items() if value is not None})  # type: ignore[type-var]


def chosen(option: str, known: Sequence[str], text: str) -> list[str]:
    """The names in a list with commas, in the order of the known ones. Raises ``SettingsError``."""
    wanted = {part.strip() for part in text.split(",")}
    if strange := sorted(wanted - set(known)):
        raise SettingsError(f"{option}: {quoted(strange[0])} is none of {', '.join(known)}")
    return [name for name in known if name in wanted]


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """A list separated by commas; None for None. Raises ``SettingsError`` with the wrong number and the reason."""
    return None if text is None else tuple(_number(option, part.strip()) for part in text.split(","))


def _number(option: str, text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) <= _MOST:
            return number
    raise SettingsError(f"{option}: {quoted(text)} is no number above 0 up to {_MOST:,}. Separate numbers with commas")


def whole_numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """The same for whole numbers."""
    found = numbers(option, text)
    if broken := [number for number in found or () if number != int(number)]:
        raise SettingsError(f"{option}: {broken[0]:g} is not a whole number")
    return None if found is None else tuple(map(int, found))


def seconds(text: str | None) -> float | None:
    """The value of ``--duration`` in seconds, at least 1; None for None. Raises ``SettingsError``."""
    if text is None:
        return None
    try:
        duration_ms = read_duration_ms(text)
    except ValueError as error:
        raise SettingsError(f"--duration: {error}") from None
    if duration_ms < 1000:
        hint = f". Without a unit it means milliseconds: write {text.strip()}s" if text.strip().isdecimal() else ""
        raise SettingsError(f"--duration: {quoted(text)} is less than 1s{hint}")
    return duration_ms / 1000


def check_file(file: Path) -> None:
    """Raise ``SettingsError`` if a file cannot be written, before a long measurement begins."""
    if file.is_dir():
        raise SettingsError(f"--out: {file} is a folder. Name a file")
    if not os.access(file.parent, os.W_OK):
        raise SettingsError(f"--out: cannot write to {file.parent}")


def make_folder(folder: Path) -> None:
    """Create a folder before a long measurement begins. Raises ``SettingsError`` if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise SettingsError(f"--out: cannot write to {folder} ({error.strerror})") from None


def write_whole(file: Path, data: str | bytes) -> None:
    """Write a complete file, or none. Raises ``PostdateError``."""
    try:
        file.write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        if file.is_file():  # not, for example, /dev/full
            with suppress(OSError):
                file.unlink()
        raise PostdateError(
            f"{file} cannot be written ({error.strerror}). The figures are on standard output. Later files are missing"
        ) from error


@contextmanager
def reporting(report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` at the end of the block, however it ends.

    If both the block and the report fail, the block's error stays the last one. The report's error is printed.
    """
    try:
        yield
    except BaseException:
        try:
            report()
        except PostdateError as error:
            complain(f"{error}.")
        raise
    report()


def about(now: datetime, versions: dict[str, str]) -> dict[str, Any]:
    """When, where and with which programs a report was measured."""
    return {"date": now.isoformat(timespec="seconds"), "machine": machine(), "versions": versions}


def shared_settings(settings: Settings) -> dict[str, Any]:
    """The settings that influence every figure. No addresses and no secrets."""
    return {
        "redis.durability": settings.redis.durability,
        "redis.shards": settings.redis.shards,
        "bridge.workers": settings.bridge.workers,
        "dispatch.pace_ms": settings.dispatch.pace,
    }
