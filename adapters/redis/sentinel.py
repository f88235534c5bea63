"""Follows the master that Sentinel names, and drops the connections to a former master.

A demoted master that was frozen still accepts writes, until it becomes a replica and discards them. So postdate asks
every Sentinel once a second, and when it announces a change. As soon as one names another master, every connection to
the old one is aborted, with the calls in flight. While no Sentinel answers, a failover would go unnoticed, so there is
no connection to Redis either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as SlowLink

from adapters.redis.errors import Explicit, explain
from adapters.redis.node import NodeClient

log = structlog.get_logger("postdate")

#: Host and port.
Address = tuple[str, int]

#: How often each Sentinel is asked, and how long its answer counts.
LOOK_S, FRESH_S = 1.0, 3.0
#: Announcements of another master. The Sentinel that leads the failover sends the first one before the second.
_NEWS = ("+promoted-slave", "+switch-master")


class MasterReport(NamedTuple):
    """What a Sentinel answered: the master's address, the number of its failover, and when (monotonic)."""

    address: Address
    epoch: int
    at: float


def choose_master(reports: Iterable[MasterReport], now: float, current: Address | None) -> Address | None:
    """Return the master by the fresh reports; None without one. Pure.

    The latest failover counts: a Sentinel that was cut off reports an earlier one.
    """
    fresh = [report for report in reports if now - report.at < FRESH_S]
    if not fresh:
        return None
    return max(fresh, key=lambda report: (report.epoch, report.address == current)).address


class Sentinels:
    """Knows the master from all its Sentinels. redis-py's pool uses it in place of its own Sentinel client."""

    def __init__(self, name: str, sentinels: Sequence[Redis]) -> None:
        self.master: Address | None = None
        self._name = name
        self._sentinels = {_place(sentinel): sentinel for sentinel in sentinels}
        self._reports: dict[str, MasterReport] = {}
        self._failed: dict[str, str] = {}
        self._heard = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []
        self._pool: FollowingPool | None = None
        self._closed = False

    def serve(self, pool: FollowingPool) -> None:
        """Abort this pool's connections when the master changes."""
        self._pool = pool

    async def discover_master(self, _: str) -> Address:
        """Return the master's address. Raises ``Explicit``."""
        if not self._following:
            self._following = [asyncio.ensure_future(self._follow(*each)) for each in self._sentinels.items()]
        self._judge()
        while self.master is None and len(self._failed) < len(self._sentinels):
            self._heard.clear()
            await self._heard.wait()
        if self.master is None:
            raise Explicit(self._reason())
        return self.master

    async def aclose(self) -> None:
        """Stop following, and close every connection to a Sentinel."""
        self._closed = True
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for sentinel in self._sentinels.values():
            await sentinel.aclose()

    async def _follow(self, place: str, sentinel: Redis) -> None:
        while not self._closed:
            try:
                async with sentinel.pubsub(ignore_subscribe_messages=True) as news:
                    await news.subscribe(*_NEWS)
                    while not self._closed:
                        self._learn(place, await _ask(sentinel, self._name))
                        await news.get_message(timeout=LOOK_S)  # redis-py swallows a cancellation here now and then
            except (RedisError, OSError, TimeoutError, RuntimeError) as error:
                self._failed[place] = explain(error).text
                self._judge()
                self._heard.set()
            await asyncio.sleep(LOOK_S)

    def _learn(self, place: str, report: MasterReport | None) -> None:
        if report is None:
            self._reports.pop(place, None)
            self._failed[place] = ""
        else:
            self._reports[place] = report
            self._failed.pop(place, None)
        self._judge()
        self._heard.set()

    def _judge(self) -> None:
        """Decide which server is the master. Drop the connections to a former one."""
        before, self.master = self.master, choose_master(self._reports.values(), time.monotonic(), self.master)
        if before is None or before == self.master:
            return
        dropped = self._pool.abort() if self._pool is not None else 0
        if self.master is None:
            log.warning("no master", because=self._reason(), dropped=dropped)
        else:
            log.warning("another master", master=_write(self.master), before=_write(before), dropped=dropped)

    def away(self, address: Address, error: Exception) -> Exception:
        """Return ``Explicit`` if the server could not be reached, else ``error`` itself."""
        reason = explain(error).unreachable
        if reason is None:
            return error
        return Explicit(
            f"the master that Sentinel names does not answer at {_write(address)} ({reason}). "
            "Sentinel names another master after its down-after-milliseconds"
        )

    def _reason(self) -> str:
        errors = [f"{place}: {error}" for place, error in self._failed.items() if error]
        if len(errors) < len(self._failed):
            return f"the Sentinels know no master called {self._name}. Correct the name after the slash in redis.url"
        reasons = f" ({'; '.join(errors)})" if errors else ""
        return f"no Sentinel answers{reasons}. Start one, or correct the hosts in redis.url"


def _place(sentinel: Redis) -> str:
    options = sentinel.connection_pool.connection_kwargs
    return _write((options["host"], options["port"]))


def _write(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


async def _ask(sentinel: Redis, name: str) -> MasterReport | None:
    """Ask a Sentinel for the master; None if it knows no master of this name.

    During a failover the answer to the second command still has the old address, so the first one counts.
    """
    asked: Any = sentinel.pipeline(transaction=False)
    asked.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
    asked.execute_command("SENTINEL", "MASTER", name)
    at = time.monotonic()
    address, state = await asked.execute(raise_on_error=False)
    if isinstance(address, Exception):
        raise address
    if address is None:
        return None
    facts = {} if isinstance(state, Exception) else dict(zip(state[::2], state[1::2], strict=False))
    return MasterReport((address[0].decode(), int(address[1])), int(facts.get(b"config-epoch", 0)), at)


class FollowingConnection(SentinelManagedConnection):
    """A connection to the master. It fails if the master changed while postdate was connecting."""

    async def connect_to(self, address: Address) -> None:
        """Connect to ``address``. Raises ``Explicit``, and what redis-py raises."""
        sentinels: Sentinels = self.connection_pool.sentinel_manager
        try:
            await super().connect_to(address)  # type: ignore[no-untyped-call]
        except (LinkError, SlowLink) as error:
            raise sentinels.away(address, error) from error
        if address != sentinels.master:
            await self.disconnect()
            raise Explicit(f"{_write(address)} is no longer the master. A failover is under way")


class FollowingTLSConnection(FollowingConnection, SSLConnection):
    """The same with TLS."""


class FollowingPool(SentinelConnectionPool):
    """The connections to the master."""

    def abort(self) -> int:
        """Abort every connection without sending what is buffered. Return how many there were.

        Calls in flight fail, and redis-py reconnects for the next one.
        """
        connections = (*self._available_connections, *self._in_use_connections)
        writers = [writer for connection in connections if (writer := connection._writer) is not None]
        for writer in writers:
            writer.transport.abort()  # redis-py's disconnect waits until a frozen server has read the buffer
        return len(writers)


async def ask_role(connection: FollowingConnection) -> None:
    """Raise ``Explicit`` for a replica. A server that forbids ROLE counts as a master."""
    await connection.send_command("ROLE")
    try:
        role = (await connection.read_response())[0]
    except ResponseError:
        return
    if role != b"master":
        raise Explicit(f"{connection.host}:{connection.port} is a replica now. A failover is under way")


def master_client(sentinels: Sentinels, name: str, tls: bool, options: dict[str, Any]) -> NodeClient:
    """Return a client for the master, not connected yet."""
    kind = FollowingTLSConnection if tls else FollowingConnection
    pool = FollowingPool(name, sentinels, connection_class=kind, **options)  # type: ignore[no-untyped-call]
    sentinels.serve(pool)
    client = NodeClient(connection_pool=pool)
    client.auto_close_connection_pool = True
    return client
