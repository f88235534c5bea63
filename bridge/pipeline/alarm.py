"""A timer that goes off to the tenth of a millisecond, which asyncio's does not.

asyncio and uvloop count in whole milliseconds: a sleep of 1.3 ms ends after 1.1 or 2.1 ms (measured, uvloop 0.22 and
asyncio of Python 3.11), which would be half a millisecond of lateness for every message. Linux's timerfd ends it after
1.36 ms. Python has it as ``os.timerfd_create`` from 3.13 on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ITIMERSPEC = struct.Struct("@4l")


class Alarm:
    """Calls ``ring`` once after each ``set``, in the loop that was running when it was made."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._file = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._spec = ctypes.create_string_buffer(_ITIMERSPEC.size)
            self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._file >= 0:
            self._loop.add_reader(self._file, self._expired)

    def set(self, seconds: float) -> None:
        """Ring in so many seconds (more than 0), and not at the moment that was set before."""
        if self._file >= 0:
            whole, rest = divmod(max(1, int(seconds * 1e9)), 1_000_000_000)
            _ITIMERSPEC.pack_into(self._spec, 0, 0, 0, whole, rest)
            self._libc.timerfd_settime(self._file, 0, self._spec, None)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._ring)

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _expired(self) -> None:
        with suppress(BlockingIOError):  # it was set anew between ringing and now
            os.read(self._file, 8)
        self._ring()
