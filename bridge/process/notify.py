"""The sd_notify protocol of systemd: datagrams of ``NAME=value`` to the service manager.

Hand-written, because it is one datagram. A worker uses it to report to its parent, which reports for all workers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

SOCKET, WATCHDOG_USEC, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
READY, ALIVE, STOPPING, STATUS, RELOADING = "READY", "WATCHDOG", "STOPPING", "STATUS", "RELOADING"
#: A status is one line for a person.
_STATUS_MAX = 1000
_DATAGRAM_MAX = 4096


class NotifyLine(NamedTuple):
    """A datagram socket, and the address of the other end; None where it is connected."""

    socket: socket.socket
    address: str | None = None

    def tell(self, name: str, value: str = "1") -> bool:
        """Send one value without blocking. Return whether it was sent; a missing service manager is no error."""
        text = f"{name}={' '.join(value.split())[:_STATUS_MAX]}".encode(errors="replace")
        try:
            self.socket.sendto(text, self.address) if self.address else self.socket.send(text)
        except OSError:
            return False
        return True


def supervisor(environ: Mapping[str, str]) -> NotifyLine | None:
    """Return the line to the service manager that the environment names; None without a usable one."""
    address = environ.get(SOCKET, "")
    if address[:1] not in ("/", "@") or len(address) < 2 or not hasattr(socket, "AF_UNIX"):
        return None
    # "@" stands for the NUL byte that begins an abstract address.
    return NotifyLine(_datagrams(), "\0" + address[1:] if address[0] == "@" else address)


def watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """Return how long (s) the service manager waits for a sign of life of process ``pid``; 0 for no limit."""
    text = environ.get(WATCHDOG_USEC, "")
    if environ.get(WATCHDOG_PID, str(pid)) != str(pid) or not text.isascii() or not text.isdecimal():
        return 0.0
    return int(text) / 1e6


def pair() -> tuple[socket.socket, NotifyLine]:
    """Return both ends of a line: the parent's, which hears, and the worker's, which tells."""
    hearing, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    hearing.setblocking(False)
    telling.setblocking(False)
    return hearing, NotifyLine(telling)


def inherited(number: int) -> NotifyLine:
    """Return the worker's end, by the file descriptor that its parent passed on."""
    return NotifyLine(socket.socket(fileno=number))


def heard(hearing: socket.socket) -> list[tuple[str, str]]:
    """Return what was sent since the last call, as pairs of name and value."""
    values: list[tuple[str, str]] = []
    while True:
        try:
            text = hearing.recv(_DATAGRAM_MAX).decode(errors="replace")
        except OSError:  # nothing more to read
            return values
        name, _, value = text.partition("=")
        values.append((name, value))


def _datagrams() -> socket.socket:
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    return datagrams
