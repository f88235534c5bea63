"""Answers /livez at an address of its own, from the process that the answer is about.

No client of the HTTP process reaches it, so no flood there makes a supervisor restart the bridge. What it costs the
messages is bounded: it accepts a hundred connections a second, and closes each after one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from socket import socket

import structlog

from bridge.process.http_child import bound

log = structlog.get_logger("postdate")

#: Between two connections, for a request, and for the bytes of its head.
_PAUSE_S, _PATIENCE_S, _HEAD_MAX = 0.01, 2.0, 4096


class LiveListener:
    """Serves /livez until cancelled."""

    def __init__(self, listen: str, not_alive: Callable[[], str], trouble: Callable[[str], None]) -> None:
        """``not_alive`` returns why the process is not alive, "" if it is. ``trouble`` takes a sentence about what is
        wrong with the address, "" for nothing."""
        self._listen = listen
        self._not_alive = not_alive
        self._trouble = trouble
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            listening = await bound(self._listen, "liveness", self._trouble)
            await asyncio.gather(*(self._serve(each) for each in listening))
        except Exception:
            log.critical("a mistake in postdate: liveness is not served any more", exc_info=True)
            self._trouble("liveness is not served because of a mistake in postdate, see the log")

    async def _serve(self, listening: socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                with suppress(OSError):  # the client has gone, or there are no file descriptors
                    connection, _ = await loop.sock_accept(listening)
                    task = asyncio.ensure_future(self._answer(connection))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
                await asyncio.sleep(_PAUSE_S)

    async def _answer(self, connection: socket) -> None:
        loop = asyncio.get_running_loop()
        with connection, suppress(OSError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                head = b""
                while b"\r\n\r\n" not in head and len(head) < _HEAD_MAX:
                    if not (piece := await loop.sock_recv(connection, _HEAD_MAX)):
                        return
                    head += piece
                await loop.sock_sendall(connection, self._reply(head))

    def _reply(self, head: bytes) -> bytes:
        if not head.startswith((b"GET /livez ", b"GET /livez?", b"HEAD /livez ")):
            return _written("404 Not Found", "This address answers GET /livez alone. http.listen answers all else.\n")
        if self._not_alive():
            return _written("503 Service Unavailable", "not ok\n")
        return _written("200 OK", "ok\n")


def _written(status: str, text: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    return (head + text).encode()
