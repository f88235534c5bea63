"""One connection for scripts: calls are pipelined on it, and each gets its own replies.

redis-py opens the connection and hands it over: TLS, password, database, the master that Sentinel names. From then on
hiredis packs and parses, and one timer watches the oldest call. A call through redis-py takes a connection from a pool,
sets a timer and reads through a stream, which costs three times as much as all of this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import hiredis
import redis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as SlowLink

from bridge.core.errors import PostdateError

#: A command and its arguments, as hiredis packs them.
Command = Sequence[Any]

#: An overdue call gets this long after a look, in seconds. A process that was suspended sees its timer before the
#: replies that arrived meanwhile.
_GRACE_S = 0.02


def check_seams() -> None:
    """Raise ``PostdateError`` unless this redis-py has the internals that postdate uses."""
    connection, pool = Connection(), ConnectionPool()
    parser = getattr(connection, "_parser", None)
    found = hasattr(connection, "_writer") and callable(getattr(parser, "parse_error", None))
    found = found and hasattr(SSLConnection().ssl_context, "context")
    if not (found and hasattr(pool, "_available_connections") and hasattr(pool, "_in_use_connections")):
        raise PostdateError(f"postdate does not work with redis-py {redis.__version__}. Install redis 8.1.0")


def renew_certificates(connection: AbstractConnection) -> None:
    """Let the next connect read the TLS files again. redis-py keeps what it read at the first one."""
    if isinstance(connection, SSLConnection):
        connection.ssl_context.context = None


class Link:
    """Sends commands on one connection, and opens another one when it is lost."""

    def __init__(
        self,
        take: Callable[[], Awaitable[AbstractConnection]],
        give_back: Callable[[AbstractConnection], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        """``take`` returns an open connection of redis-py, and ``give_back`` gets it back, closed."""
        self._take = take
        self._give_back = give_back
        self._timeout_s = timeout_s
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[_Wire] | None = None

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Return the reply of each command; an error that the server answered is returned as an exception.

        Raises what redis-py raises when the connection is lost, cannot be opened, or does not answer in time: all calls
        on it fail, and each may have been carried out. A cancelled call leaves the others alone.
        """
        if not commands:
            return []
        wire = self._wire
        if wire is None or wire.lost is not None:
            wire = await self._open()
        return await wire.send(commands)

    async def close(self) -> None:
        """Close the connection. Calls in flight fail."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._drop()

    async def _open(self) -> _Wire:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _opened(self, opening: asyncio.Task[_Wire]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # the calls that wait for it raise it; without one, nobody misses it

    async def _connect(self) -> _Wire:
        await self._drop()
        self._wire = _Wire(await self._take(), self._timeout_s)
        return self._wire

    async def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.fail(LinkError("Connection closed by postdate."))
            await wire.connection.disconnect(nowait=True)
            await self._give_back(wire.connection)


class _Pending(NamedTuple):
    """A call without all its replies. ``until`` is a moment of the loop's clock."""

    answer: asyncio.Future[list[Any]]
    wanted: int
    replies: list[Any]
    until: float


class _Wire(asyncio.Protocol):
    """An open connection."""

    def __init__(self, connection: AbstractConnection, timeout_s: float) -> None:
        self.connection = connection
        #: Why nothing can be sent any more.
        self.lost: RedisError | None = None
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=connection._parser.parse_error)
        self._pending: deque[_Pending] = deque()
        self._overdue: _Pending | None = None
        self._timer: asyncio.TimerHandle | None = None
        writer = connection._writer  # redis-py has no public way to its socket
        if writer is None or writer.transport.is_closing():
            raise LinkError("Connection closed by server.")
        self._transport = writer.transport
        self._streams = self._transport.get_protocol()
        self._transport.set_protocol(self)

    def send(self, commands: Sequence[Command]) -> asyncio.Future[list[Any]]:
        """Send commands at once. Raises the error that the connection was lost with."""
        if self.lost is not None:
            raise self.lost
        answer = self._loop.create_future()
        self._pending.append(_Pending(answer, len(commands), [], self._loop.time() + self._timeout_s))
        self._transport.writelines([hiredis.pack_command(tuple(command)) for command in commands])
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)
        return answer

    def data_received(self, data: bytes) -> None:
        """Hand out replies, in the order of the calls."""
        reader, pending = self._reader, self._pending
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:  # RESP2 has no false
                request = pending[0]
                request.replies.append(reply)
                if len(request.replies) == request.wanted:
                    pending.popleft()
                    if not request.answer.done():
                        request.answer.set_result(request.replies)
        except InvalidResponse as error:
            self.fail(error)
        except IndexError:
            self.fail(InvalidResponse("Protocol error, got a reply that nobody asked for"))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all calls."""
        self.fail(LinkError(f"Connection closed by server. {error or ''}".rstrip()))
        self._streams.connection_lost(error)  # redis-py waits for this when it disconnects

    def fail(self, error: RedisError) -> None:
        """Fail all calls, and close the connection without sending what is buffered."""
        if self.lost is None:
            self.lost = error
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending:
            answer = self._pending.popleft().answer
            if not answer.done():
                answer.set_exception(type(self.lost)(*self.lost.args))

    def _look(self) -> None:
        """Fail if the oldest call is overdue; else look again when it may be."""
        self._timer = None
        if not self._pending:
            return
        oldest, now = self._pending[0], self._loop.time()
        if oldest.until > now:
            self._timer = self._loop.call_later(oldest.until - now, self._look)
        elif self._overdue is not oldest:
            self._overdue = oldest
            self._timer = self._loop.call_later(_GRACE_S, self._look)
        else:
            place = f"{getattr(self.connection, 'host', '')}:{getattr(self.connection, 'port', '')}"
            self.fail(SlowLink(f"Timeout reading from {place}"))
