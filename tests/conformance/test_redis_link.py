"""The connection for scripts: replies in order, one lost call costs no other, a lost connection fails all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import InvalidResponse, NoScriptError
from redis.exceptions import TimeoutError as SlowLink

from adapters.redis.connect import connect
from adapters.redis.link import Link
from bridge.core.errors import PostdateError
from bridge.settings import Redis as RedisSettings

#: Of the tests in which it passes; the others never see theirs pass.
TIMEOUT_S, LATE_S, AMPLE_S = 0.1, 0.2, 30.0
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def linked(url: str, timeout_s: float = AMPLE_S) -> AsyncIterator[Link]:
    client = Redis.from_url(url, protocol=2, socket_timeout=AMPLE_S)
    link = Link(client.connection_pool.get_connection, client.connection_pool.release, timeout_s)
    try:
        yield link
    finally:
        await link.close()
        await client.aclose()


@asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[str]:
    """A server that greets like Redis and then does as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while b"GO" not in (asked := await reader.read(65536)) and asked:
                writer.write(b"+OK\r\n" * asked.count(b"*"))
            if asked:
                await talk(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        listening.close()


@pytest.mark.redis
def test_calls_sent_at_once_get_their_own_replies_in_order(redis_url: str) -> None:
    async def run() -> None:
        async with linked(redis_url) as link:
            answers = await asyncio.gather(*(link.send([("ECHO", n), ("ECHO", b"x" * n)]) for n in range(500)))
            assert answers == [[b"%d" % n, b"x" * n] for n in range(500)]

    asyncio.run(run())


@pytest.mark.redis
def test_no_commands_have_no_replies_and_nothing_waits_for_them(redis_url: str) -> None:
    async def run() -> None:
        async with linked(redis_url, 1.0) as link:
            assert await link.send([]) == []
            await asyncio.sleep(1.2)
            assert await link.send([("PING",)]) == [b"PONG"]

    asyncio.run(run())


@pytest.mark.redis
def test_an_error_that_the_server_answers_is_returned_beside_the_other_replies(redis_url: str) -> None:
    async def run() -> None:
        async with linked(redis_url) as link:
            missing, fine = await link.send([("EVALSHA", "0" * 40, 0), ("PING",)])
            assert isinstance(missing, NoScriptError)
            assert fine == b"PONG"

    asyncio.run(run())


@pytest.mark.redis
def test_a_cancelled_call_leaves_the_others_alone(redis_url: str) -> None:
    async def run() -> None:
        async with linked(redis_url) as link:
            await link.send([("PING",)])
            first = asyncio.ensure_future(link.send([("ECHO", "first")]))
            second = asyncio.ensure_future(link.send([("ECHO", "second")]))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == [b"second"]
            assert first.cancelled()
            assert await link.send([("ECHO", "third")]) == [b"third"]

    asyncio.run(run())


@pytest.mark.redis
def test_after_a_lost_connection_the_next_call_opens_another(redis_url: str) -> None:
    async def run() -> None:
        async with linked(redis_url) as link:
            (number,) = await link.send([("CLIENT", "ID")])
            other: Any = Redis.from_url(redis_url)
            await other.execute_command("CLIENT", "KILL", "ID", number)
            await other.aclose()
            with suppress(LinkError):  # unless the end of the connection was read before
                await link.send([("CLIENT", "ID")])
            assert (await link.send([("CLIENT", "ID")]))[0] > number

    asyncio.run(run())


def test_calls_in_flight_fail_when_the_server_closes_the_connection() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK\r\n")
        await reader.read(65536)

    async def run() -> None:
        async with server(hang_up) as url, linked(url) as link:
            assert await link.send([("GO",)]) == [b"OK"]
            answers = await asyncio.gather(*(link.send([("PING",)]) for _ in range(3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [LinkError] * 3

    asyncio.run(run())


def test_a_server_that_stops_answering_fails_every_call_in_time() -> None:
    async def freeze(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async def run() -> None:
        async with server(freeze) as url, linked(url, TIMEOUT_S) as link:
            loop = asyncio.get_running_loop()
            began = loop.time()
            answers = await asyncio.gather(*(link.send([("GO",)]) for _ in range(3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [SlowLink] * 3
            assert TIMEOUT_S <= loop.time() - began < AMPLE_S / 2

    asyncio.run(run())


def test_a_late_reply_never_answers_another_call() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(LATE_S)
        writer.write(b"+late\r\n")
        while await reader.read(65536):
            writer.write(b"+OK\r\n")

    async def run() -> None:
        async with server(slow) as url, linked(url, TIMEOUT_S) as link:
            with pytest.raises(SlowLink):
                await link.send([("GO",)])
            await asyncio.sleep(LATE_S)
            with pytest.raises(SlowLink):  # on a connection of its own, not with the late reply of the first
                await link.send([("GO",)])

    asyncio.run(run())


def test_what_is_no_redis_fails_the_call() -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        async with server(babble) as url, linked(url) as link:
            with pytest.raises(InvalidResponse):
                await link.send([("GO",)])

    asyncio.run(run())


def test_calls_that_wait_for_one_connection_fail_together_when_it_cannot_be_opened() -> None:
    async def run() -> None:
        async with server(lambda *_: asyncio.sleep(0)) as url:
            pass  # nothing listens there any more
        async with linked(url) as link:
            answers = await asyncio.gather(*(link.send([("PING",)]) for _ in range(3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [LinkError] * 3

    asyncio.run(run())


def test_a_redis_py_without_the_internals_that_postdate_uses_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(RedisSettings())
    without = type("Without", (ConnectionPool,), {"__init__": lambda self: None})
    monkeypatch.setattr("adapters.redis.link.ConnectionPool", without)
    with pytest.raises(PostdateError, match="postdate does not work with redis-py"):
        connect(RedisSettings())
