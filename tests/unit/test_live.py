"""/livez at an address of its own: what it answers, and to whom."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest

from bridge.process.live import LiveListener
from tests.http_line import free_port

pytestmark = pytest.mark.slow


@asynccontextmanager
async def listening(not_alive: Callable[[], str] = str) -> AsyncIterator[int]:
    """A listener; its port."""
    port = free_port()
    troubles: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.ensure_future(LiveListener(f"127.0.0.1:{port}", not_alive, troubles.put_nowait).run())
    async with asyncio.timeout(30):
        assert await troubles.get() == ""  # once it listens
    try:
        yield port
    finally:
        task.cancel()


async def ask(port: int, request: bytes) -> bytes:
    """What it answers until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /livez HTTP/1.1\r\nHost: 10.0.0.1:8481\r\n\r\n", b"200"),
        (b"GET /livez?verbose HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\r\n\r\n", b"404"),
    ],
)
async def test_it_answers_livez_alone(request_: bytes, status: bytes) -> None:
    async with listening() as port:
        assert (await ask(port, request_)).split(b" ")[1] == status


async def test_it_says_that_the_process_is_not_alive_and_not_why() -> None:
    async with listening(lambda: "the loop of claim makes no progress") as port:
        answer = await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"claim" not in answer


async def test_clients_that_send_nothing_keep_no_other_from_an_answer() -> None:
    async with listening() as port:
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            assert (await ask(port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
