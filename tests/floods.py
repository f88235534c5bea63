"""Floods of the HTTP listener, from a process of their own: ``python -m tests.floods NAME PORT TOKEN SECONDS``."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

#: One object with many unknown members, 15 MB.
_HUGE = b"{" + b",".join(b'"member%d": "%s"' % (number, b"x" * 40) for number in range(240_000)) + b"}"
_READ_S = 60.0


def head(method: str, path: str, token: str, length: int | None = None) -> bytes:
    """The head of a request."""
    body = "" if length is None else f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{body}\r\n".encode()


def connect(port: int) -> socket.socket:
    """A connection with a long timeout."""
    return socket.create_connection(("127.0.0.1", port), _READ_S)


def slow_bodies(port: int, token: str, until_s: float) -> None:
    """600 connections, each with a body of one byte a second. A closed one is opened again, 80 in a second."""
    announced = head("POST", "/api/v1/messages", token, 60_000)
    places: list[socket.socket | None] = [None] * 600
    while time.monotonic() < until_s:
        began_s, opened = time.monotonic(), 0
        for number, place in enumerate(places):
            try:
                if place is not None:
                    place.sendall(b" ")
                elif opened < 80:
                    opened += 1
                    places[number] = connect(port)
                    places[number].sendall(announced + b"{")  # type: ignore[union-attr]
            except OSError:
                places[number] = None
        time.sleep(max(0.0, 1 - (time.monotonic() - began_s)))


def repeated(per_second: float, request: bytes) -> Callable[[int, str, float], None]:
    """A request with this rate, from eight threads with a connection for each request."""

    def flood(port: int, _: str, until_s: float) -> None:
        def send() -> None:
            while time.monotonic() < until_s:
                began_s = time.monotonic()
                with suppress(OSError), connect(port) as connection:
                    connection.sendall(request.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close"))
                    while connection.recv(1 << 20):
                        pass
                time.sleep(max(0.0, 8 / per_second - (time.monotonic() - began_s)))

        threads = [threading.Thread(target=send, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until_s + 2 - time.monotonic()))

    return flood


def flood_of(name: str, token: str) -> Callable[[int, str, float], None]:
    """The flood of this name."""
    if name == "slow bodies":
        return slow_bodies
    if name == "openapi":
        return repeated(90, head("GET", "/openapi.json", ""))
    if name == "huge bulk":
        return repeated(4, head("POST", "/api/v1/bulk", token, len(_HUGE)) + _HUGE)
    if name == "bulk members":  # under the limit of a bulk change
        body = json.dumps({f"{number:x}": 0 for number in range(80_000)}).encode()[: 1024 * 1024]
        return repeated(20, head("POST", "/api/v1/bulk", token, len(body)) + body)
    if name == "header filters":
        return repeated(20, head("GET", "/api/v1/messages?header=wanted=x", token))
    raise ValueError(name)


if __name__ == "__main__":
    _, chosen, at, secret, seconds = sys.argv
    flood_of(chosen, secret)(int(at), secret, time.monotonic() + float(seconds))
