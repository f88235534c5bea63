"""How ``bench`` and ``compare`` tell what they have found: in any case, and all that can be written of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.core.errors import PostdateError, SettingsError
from bridge.telemetry.printable import complain


@contextmanager
def told(tell: Callable[[], None]) -> Iterator[None]:
    """Tell it at the end of the block, however it ends. What cannot be written of it ends the command with an error,
    or is only said, where the block has ended with one: that stands last."""
    try:
        yield
    except BaseException:
        try:
            tell()
        except PostdateError as error:
            complain(f"{error}.")
        raise
    tell()


def check_place(file: Path) -> None:
    """Raise ``SettingsError`` for a file that can never be written, before a quarter of an hour is spent on it."""
    if file.is_dir():
        raise SettingsError(f"--out: {file} is a folder, and a file is needed")
    if not os.access(file.parent, os.W_OK):
        raise SettingsError(f"--out: nothing can be written to {file.parent}")


def write_whole(file: Path, data: str | bytes) -> None:
    """Write a file, or leave none: half a document helps nobody. Raises ``PostdateError``."""
    try:
        file.write_bytes(data.encode() if isinstance(data, str) else data)
    except OSError as error:
        if file.is_file():  # and not, say, /dev/full
            with suppress(OSError):
                file.unlink()
        raise PostdateError(
            f"{file} cannot be written ({error.strerror}), nor what would come after it; what was measured is printed"
        ) from error
