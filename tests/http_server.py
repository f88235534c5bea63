"""The HTTP server of `postdate serve` in a thread, over a real store."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from bridge.http.line import Processes
from bridge.http.server import Uvicorn, make_server
from bridge.settings import Settings
from tests.devstack.service import wait_for


@contextmanager
def served(settings: Settings) -> Iterator[int]:
    """Serve on a free port of this machine; the port."""
    server = make_server(settings, Processes())
    with serving(server, server.serve) as port:
        yield port


@contextmanager
def serving(server: Uvicorn, serve: Callable[[list[socket.socket]], Coroutine[None, None, None]]) -> Iterator[int]:
    """Let ``serve`` run this server; the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(serve([listening])), daemon=True)
    thread.start()
    wait_for(lambda: server.started, "the server is up", 20)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
