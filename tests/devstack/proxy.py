"""A TCP proxy between a client and a server that breaks the link on command.

`Proxy` lives in the running event loop; `ThreadedProxy` has a thread and a loop of its own, for synchronous tests and
for tests that would rather not share theirs. Both take the same orders. A direction is "up" (client to server), "down"
(server to client) or "both".
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

Direction = Literal["up", "down", "both"]
Then = Literal["cut", "drop"]
T = TypeVar("T")

# How much may wait inside the proxy before it stops reading: a slow link has little room, and so has a slow proxy.
HELD_MAX_BYTES = 1 << 18
TRICKLE_S = 0.02
# SO_LINGER with no time: close() sends RST, as a crashed machine's successor or a firewall would.
LINGER_RST = struct.pack("ii", 1, 0)


class _Lane:
    """The orders for one direction, shared by all connections."""

    def __init__(self) -> None:
        self.stalled = False
        self.swallowing = False
        self.latency_s = 0.0
        self.bytes_per_s: float | None = None
        self.limit: int | None = None
        self.then: Then = "cut"
        self.read_bytes = 0
        self.forwarded_bytes = 0

    def clear(self) -> None:
        self.stalled = self.swallowing = False
        self.latency_s, self.bytes_per_s, self.limit = 0.0, None, None


class _End(asyncio.Protocol):
    """One side of one connection. What it reads goes to the peer through `lane`."""

    def __init__(self, proxy: Proxy, lane: _Lane) -> None:
        self._proxy = proxy
        self._lane = lane
        self._peer: _End | None = None
        self._held: deque[tuple[float, bytes]] = deque()  # (the moment it is due, data)
        self._held_bytes = 0
        self._free_at = 0.0  # when the slow link has carried all before
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False  # our side sent its last byte
        self._peer_is_full = False
        self.transport: asyncio.Transport | None = None

    def join(self, peer: _End) -> None:
        self._peer = peer
        self.adjust()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()  # until join()
        self._proxy._remember(self)

    def data_received(self, data: bytes) -> None:
        self._lane.read_bytes += len(data)
        if self._lane.swallowing:
            return
        rate = self._lane.bytes_per_s
        # A slow link trickles; it does not hold back a large piece and then deliver it whole.
        step = max(1, int(rate * TRICKLE_S)) if rate else len(data)
        self._free_at = max(asyncio.get_running_loop().time(), self._free_at)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            self._free_at += len(piece) / rate if rate else 0.0
            self._held.append((self._free_at + self._lane.latency_s, piece))
        self._held_bytes += len(data)
        self.adjust()

    def eof_received(self) -> bool:
        self._ended = True
        self.adjust()
        return True  # half closed: the other direction may go on

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        peer = self._peer
        self._proxy._forget(self)
        if peer is not None and peer.transport is not None and not peer.transport.is_closing():
            # A reset on one side is a reset on the other; without an error it was us who closed.
            if exc is not None:
                peer.abort()
            else:
                peer.transport.close()

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer._peer_is_full = True
            self._peer.adjust()

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer._peer_is_full = False
            self._peer.adjust()

    # Called by the proxy.

    def abort(self) -> None:
        self._held.clear()
        self._cancel_timer()
        if self.transport is not None:
            with contextlib.suppress(OSError):
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RST)
            self.transport.abort()

    def hurry(self) -> None:
        """What waits for a slow link is due at once."""
        self._held = deque((0.0, data) for _, data in self._held)
        self._free_at = 0.0

    def adjust(self) -> None:
        """Does what the orders and the clock allow now: forwards what is due, and reads or does not."""
        self._forward_due()
        transport = self.transport
        if transport is None or transport.is_closing() or self._peer is None or self._ended:
            return
        if self._lane.stalled or self._peer_is_full or self._held_bytes >= HELD_MAX_BYTES:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _forward_due(self) -> None:
        self._cancel_timer()
        loop = asyncio.get_running_loop()
        while self._held and not self._lane.stalled:
            due, data = self._held[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.adjust)
                return
            self._held.popleft()
            self._held_bytes -= len(data)
            if not self._write(data):
                return
        if self._ended and not self._held:
            self._pass_on_the_end()

    def _write(self, data: bytes) -> bool:
        """Hands data to the peer; False when a limit was reached and the link is gone."""
        lane, limit = self._lane, self._lane.limit
        if limit is not None:
            data = data[:limit]
            lane.limit = limit - len(data)
        if self._peer is not None and self._peer.transport is not None and not self._peer.transport.is_closing():
            self._peer.transport.write(data)
            lane.forwarded_bytes += len(data)
        if lane.limit == 0:
            lane.limit = None
            self._proxy._limit_reached(lane.then)
            return False
        return True

    def _pass_on_the_end(self) -> None:
        peer = self._peer
        if peer is None or peer.transport is None or peer.transport.is_closing():
            return
        if peer._ended:
            peer.transport.close()
            if self.transport is not None:
                self.transport.close()
        elif peer.transport.can_write_eof():
            peer.transport.write_eof()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Proxy:
    """`await Proxy.start(host, port)`; all orders act at once, on connections that are open and on those to come."""

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._lanes = {"up": _Lane(), "down": _Lane()}
        self._ends: set[_End] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._listener: socket.socket | None = None
        self.accepted = 0
        self.port = 0

    @classmethod
    async def start(cls, target_host: str, target_port: int, port: int = 0) -> Self:
        proxy = cls(target_host, target_port)
        proxy.port = port
        proxy._listen()
        return proxy

    async def stop(self) -> None:
        self.cut()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        await self._idle.wait()

    @property
    def connections(self) -> int:
        """Connections that are open through the proxy now."""
        return len(self._ends) // 2

    def read_bytes(self, direction: Literal["up", "down"]) -> int:
        return self._lanes[direction].read_bytes

    def forwarded_bytes(self, direction: Literal["up", "down"]) -> int:
        return self._lanes[direction].forwarded_bytes

    def cut(self) -> None:
        """Resets every connection and refuses new ones until `heal()`."""
        self._refuse()
        self.drop()

    def drop(self) -> None:
        """Resets the connections of this moment; new ones are welcome."""
        for task in self._dialling:
            task.cancel()
        for end in list(self._ends):
            end.abort()

    def stall(self, direction: Direction = "both") -> None:
        """Stays connected, accepts, reads nothing and forwards nothing, until `heal()`."""
        for lane in self._chosen(direction):
            lane.stalled = True
        self._adjust()

    def swallow(self, direction: Direction = "both") -> None:
        """Reads and throws away: the sender believes it was heard."""
        for lane in self._chosen(direction):
            lane.swallowing = True

    def slow(self, latency_s: float = 0.0, bytes_per_s: float | None = None, direction: Direction = "both") -> None:
        """Each byte arrives `latency_s` late, and no more than `bytes_per_s` of them in a second."""
        for lane in self._chosen(direction):
            lane.latency_s, lane.bytes_per_s = latency_s, bytes_per_s

    def limit(self, direction: Direction, n_bytes: int, then: Then = "cut") -> None:
        """Forwards `n_bytes` more, counted over all connections, then cuts or drops: so a reply is lost midway."""
        for lane in self._chosen(direction):
            lane.limit, lane.then = n_bytes, then
        if n_bytes == 0:
            for lane in self._chosen(direction):
                lane.limit = None
            self._limit_reached(then)

    def heal(self) -> None:
        """Takes all orders back. What a stall held is delivered; what was swallowed is gone."""
        for lane in self._lanes.values():
            lane.clear()
        if self._listener is None:
            self._listen()
        for end in self._ends:
            end.hurry()
        self._adjust()

    def _limit_reached(self, then: Then) -> None:
        """Lets what is already written leave first: an abort would take the last bytes of the limit with it."""
        if then == "cut":
            self._refuse()
        for end in list(self._ends):
            if end.transport is not None:
                end._held.clear()
                end.transport.pause_reading()
                end.transport.close()

    def _chosen(self, direction: Direction) -> list[_Lane]:
        return list(self._lanes.values()) if direction == "both" else [self._lanes[direction]]

    def _adjust(self) -> None:
        for end in list(self._ends):
            end.adjust()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        # The first time any port will do, unless one was named; after a cut it must be the one the client knows.
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def _refuse(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self.accepted += 1
            task = asyncio.get_running_loop().create_task(self._dial(client))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)

    async def _dial(self, client: socket.socket) -> None:
        """Connects to the target and joins both ends; a target that refuses looks to the client like a reset."""
        loop = asyncio.get_running_loop()
        near, far = _End(self, self._lanes["up"]), _End(self, self._lanes["down"])
        try:
            await loop.create_connection(lambda: far, *self._target)
            await loop.connect_accepted_socket(lambda: near, client)
        except (OSError, asyncio.CancelledError):
            far.abort()
            near.abort()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RST)
            client.close()
            return
        near.join(far)
        far.join(near)

    def _remember(self, end: _End) -> None:
        self._ends.add(end)
        self._idle.clear()

    def _forget(self, end: _End) -> None:
        self._ends.discard(end)
        if not self._ends:
            self._idle.set()


class ThreadedProxy:
    """The same proxy with a thread and a loop of its own; every order has taken effect when it returns."""

    def __init__(self, target_host: str, target_port: int, port: int = 0) -> None:
        # Not the policy's loop: that may be uvloop, whose sockets take no SO_LINGER.
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="devstack-proxy", daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(Proxy.start(target_host, target_port, port), self._loop)
        self._proxy = starting.result()
        self._closed = False

    @classmethod
    def before(cls, url: str) -> Self:
        """In front of the server a URL names; `through(url)` is then the way through the proxy."""
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"a proxy needs a URL with a host and a port, not {url!r}")
        return cls(parts.hostname, parts.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._proxy.port

    @property
    def connections(self) -> int:
        return self._call(lambda: self._proxy.connections)

    @property
    def accepted(self) -> int:
        return self._call(lambda: self._proxy.accepted)

    def through(self, url: str) -> str:
        """The same URL with the proxy's address in it."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def read_bytes(self, direction: Literal["up", "down"]) -> int:
        return self._call(lambda: self._proxy.read_bytes(direction))

    def forwarded_bytes(self, direction: Literal["up", "down"]) -> int:
        return self._call(lambda: self._proxy.forwarded_bytes(direction))

    def cut(self) -> None:
        self._call(self._proxy.cut)

    def drop(self) -> None:
        self._call(self._proxy.drop)

    def stall(self, direction: Direction = "both") -> None:
        self._call(lambda: self._proxy.stall(direction))

    def swallow(self, direction: Direction = "both") -> None:
        self._call(lambda: self._proxy.swallow(direction))

    def slow(self, latency_s: float = 0.0, bytes_per_s: float | None = None, direction: Direction = "both") -> None:
        self._call(lambda: self._proxy.slow(latency_s, bytes_per_s, direction))

    def limit(self, direction: Direction, n_bytes: int, then: Then = "cut") -> None:
        self._call(lambda: self._proxy.limit(direction, n_bytes, then))

    def heal(self) -> None:
        self._call(self._proxy.heal)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._proxy.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, order: Callable[[], T]) -> T:
        async def run() -> T:
            return order()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)
