"""Frames: what each bridge process says about itself, once a second, to the HTTP process.

A frame is one line of JSON on a socket pair. The sender never waits: while the HTTP process does not read, frames are
dropped. Both ends survive a restart of the other. A line that was cut by one is skipped by the reader.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bridge.telemetry.subject import Subject

#: More than a frame with a few hundred routes needs; the system may allow less.
_BUFFER_BYTES = 1 << 20


def trouble_rows(troubles: Mapping[Subject, str]) -> list[list[str]]:
    """Return the troubles as JSON values: the words of a subject, and its sentence."""
    return [[*subject, sentence] for subject, sentence in troubles.items()]


def troubles_in(rows: Any) -> dict[Subject, str]:
    """Return the troubles of ``trouble_rows``. Raises ``ValueError`` or ``TypeError`` for anything else."""
    return {Subject(*words): sentence for *words, sentence in rows}


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a line: the one that hears, and the one that tells."""
    hearing, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    telling.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    hearing.setblocking(False)
    telling.setblocking(False)
    return hearing, telling


class FrameLine:
    """The sending end of a line."""

    def __init__(self, telling: socket.socket) -> None:
        telling.setblocking(False)
        self._telling = telling
        self._rest = b"\n"  # ends what a process before this one could not finish

    def tell(self, frame: Mapping[str, object]) -> bool:
        """Send a frame, or drop it if the one before is still on its way. Return whether it was taken."""
        self._flush()
        if len(self._rest) > 1:
            return False
        self._rest += json.dumps(frame, separators=(",", ":"), default=str).encode() + b"\n"
        self._flush()
        return True

    def _flush(self) -> None:
        with suppress(OSError):  # full, or closed at the end
            self._rest = self._rest[self._telling.send(self._rest) :]
