"""The sd_notify protocol: what a process tells the service manager that started it, in datagrams of ``NAME=value``.

Written by hand, because it is one datagram. A worker speaks the same to its parent, which tells the service manager of
all of them. Without a service manager nothing happens.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

SOCKET, WATCHDOG_USEC, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
READY, ALIVE, STOPPING, STATUS = "READY", "WATCHDOG", "STOPPING", "STATUS"
#: A status is one line for a person.
_STATUS_MAX = 1000
_DATAGRAM_MAX = 4096


class Line(NamedTuple):
    """A way to tell: a datagram socket, and the address of the other end; None where it is connected."""

    socket: socket.socket
    address: str | None = None

    def tell(self, name: str, value: str = "1") -> bool:
        """Tell one thing, without waiting. Whether it was sent; a manager that is away is no trouble of ours."""
        text = f"{name}={' '.join(value.split())[:_STATUS_MAX]}".encode(errors="replace")
        try:
            self.socket.sendto(text, self.address) if self.address else self.socket.send(text)
        except OSError:
            return False
        return True


def supervisor(environ: Mapping[str, str]) -> Line | None:
    """The line to the service manager that the environment names; None where it names none that can be used."""
    address = environ.get(SOCKET, "")
    if address[:1] not in ("/", "@") or len(address) < 2 or not hasattr(socket, "AF_UNIX"):
        return None
    # "@" stands for the NUL byte that begins an abstract address.
    return Line(_datagrams(), "\0" + address[1:] if address[0] == "@" else address)


def watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """How long the service manager waits for a sign of life of process ``pid``, in seconds; 0 where it does not."""
    text = environ.get(WATCHDOG_USEC, "")
    if environ.get(WATCHDOG_PID, str(pid)) != str(pid) or not text.isascii() or not text.isdecimal():
        return 0.0
    return int(text) / 1e6


def pair() -> tuple[socket.socket, Line]:
    """Both ends between a parent, which hears, and a worker, which tells."""
    hearing, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    hearing.setblocking(False)
    telling.setblocking(False)
    return hearing, Line(telling)


def inherited(number: int) -> Line:
    """The worker's end, by the file descriptor that its parent has handed down."""
    return Line(socket.socket(fileno=number))


def heard(hearing: socket.socket) -> list[tuple[str, str]]:
    """What has been told since the last call, as pairs of name and value."""
    told: list[tuple[str, str]] = []
    while True:
        try:
            text = hearing.recv(_DATAGRAM_MAX).decode(errors="replace")
        except OSError:  # nothing more is there
            return told
        name, _, value = text.partition("=")
        told.append((name, value))


def _datagrams() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
