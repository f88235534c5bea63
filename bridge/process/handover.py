"""What a parent hands to a process that it started: the first value at once, later ones while the process runs.

They go through the standard input, so no secret appears on a command line. The input ends when the parent ends, or when
it wants the process to end.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from typing import Any

_SIZE_BYTES = 4
_READ_BYTES = 1 << 16


def packed(value: object) -> bytes:
    data = pickle.dumps(value)
    return len(data).to_bytes(_SIZE_BYTES, "big") + data


class Handover:
    """The receiving end."""

    def __init__(self, file: int = 0) -> None:
        self._file = file
        self._read = b""

    def first(self) -> Any:
        """Wait for the first value. Raises EOFError if the parent ended before."""
        while (whole := self._next()) is None:
            data = os.read(self._file, _READ_BYTES)
            if not data:
                raise EOFError("the parent ended before it handed over the settings")
            self._read += data
        return whole[0]

    def follow(self, take: Callable[[Any], None], ended: Callable[[], None] = lambda: None) -> None:
        """In a running loop: call ``take`` with each later value, and ``ended`` when the parent closes the pipe."""
        loop = asyncio.get_running_loop()
        os.set_blocking(self._file, False)
        while (early := self._next()) is not None:  # it came together with the first one
            take(early[0])

        def readable() -> None:
            try:
                data = os.read(self._file, _READ_BYTES)
            except BlockingIOError:
                return
            self._read += data
            while (whole := self._next()) is not None:
                take(whole[0])
            if not data:
                loop.remove_reader(self._file)
                ended()

        loop.add_reader(self._file, readable)

    def _next(self) -> tuple[Any] | None:
        """Return the next whole value in a tuple; None if it is not there yet."""
        end = _SIZE_BYTES + int.from_bytes(self._read[:_SIZE_BYTES], "big")
        if len(self._read) < _SIZE_BYTES or len(self._read) < end:
            return None
        data, self._read = self._read[_SIZE_BYTES:end], self._read[end:]
        return (pickle.loads(data),)  # noqa: S301 (from our own parent, through a pipe of its own)
