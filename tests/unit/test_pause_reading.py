"""A source that holds enough reads nothing more, over TLS too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pika.adapters.utils.io_services_utils import _AsyncSSLTransport

from adapters.rabbitmq.connection import HotConnection


class Loop:
    """What pika asks of an event loop. ``turn`` calls what was asked for before it."""

    def __init__(self) -> None:
        self.reader: Callable[[], None] | None = None
        self.soon: list[Callable[[], None]] = []

    def set_reader(self, _: int, callback: Callable[[], None]) -> None:
        self.reader = callback

    def remove_reader(self, _: int) -> None:
        self.reader = None

    def add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        calls, self.soon = self.soon, []
        for call in (*calls, *([self.reader] if self.reader else [])):
            call()


class Connection(HotConnection):
    """One that is open, over TLS with a broker that always has more."""

    is_open = True

    def __init__(self, loop: Loop) -> None:
        self._keep_alive = None
        self.bytes_received = self.read = 0
        self.full = True
        socket: Any = SimpleNamespace(fileno=lambda: 1, recv=lambda most: bytes(min(most, 16_384)))
        self._transport = _AsyncSSLTransport(socket, self, loop)

    def data_received(self, data: bytes) -> None:
        self.read += len(data)
        if self.full:
            self.pause_reading()


async def test_a_paused_connection_over_tls_reads_no_further_and_goes_on_after_that() -> None:
    loop = Loop()
    connection = Connection(loop)
    loop.turn()
    read = connection.read
    for _ in range(10):
        loop.turn()
    assert connection.read == read
    connection.full = False
    connection.resume_reading()
    assert loop.soon  # TLS may have buffered what no reader tells of
    loop.turn()
    assert connection.read > read
